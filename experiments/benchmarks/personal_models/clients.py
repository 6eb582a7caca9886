"""The clients and the start of `personal_models`, for jaxfed and in the files that PFLlib reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors.numpy import save_file

from experiments.benchmarks.programs.pfllib import write_examples
from jaxfed import Config, Dataset
from jaxfed.data import channel_statistics, load_dataset
from jaxfed.export import torch_kernel
from jaxfed.models import make_model
from jaxfed.partition import dirichlet
from jaxfed.runs.deal import deal
from jaxfed.runs.tensors import named


class Protocol(NamedTuple):
    """What both programs do."""

    clients: int = 20
    alpha: float = 0.1
    examples: int = 3600  # of CIFAR-10's training part, before the clients are cut
    held_out: float = 0.25
    multiple: int = 40  # a client's examples are a multiple of it: 30 are whole batches, 10 tested
    most: int | None = None  # examples of a client
    batch_size: int = 10
    learning_rate: float = 0.005
    rounds: int = 12
    eval_every: int = 3
    last: int = 2  # evaluations whose mean is the score
    seeds: int = 3


PROTOCOLS = {
    'settings': Protocol(),
    'one_batch': Protocol(
        most=40, batch_size=30, learning_rate=0.05, rounds=20, eval_every=5, seeds=1
    ),
}


def choose_images(protocol: Protocol, data_dir: str | None) -> Dataset:
    """The images of all clients, the same for every seed, and 100 test images."""
    whole = load_dataset('cifar10', data_dir=data_dir)
    rows = np.random.default_rng(0).permutation(len(whole.y_train))[: protocol.examples]
    return Dataset.from_arrays(
        whole.x_train[rows],
        whole.y_train[rows],
        whole.x_test[:100],
        whole.y_test[:100],
        name='cifar10_part',
        num_classes=whole.num_classes,
    )


def cut(
    parts: Sequence[np.ndarray], multiple: int, most: int | None, seed: int
) -> list[np.ndarray]:
    """Drops random examples of each client, so that it has a multiple of them, at most `most`."""
    rng = np.random.default_rng(seed)
    return [
        np.sort(rng.permutation(part)[: len(part) // multiple * multiple][:most]) for part in parts
    ]


def write_partition(protocol: Protocol, labels: np.ndarray, seed: int, path: Path) -> None:
    """Writes the Dirichlet partition of a seed for `--partition_file`."""
    parts = dirichlet(
        labels,
        num_clients=protocol.clients,
        alpha=protocol.alpha,
        seed=seed,
        min_size=protocol.multiple,
        balanced=True,
    )
    cut_parts = cut(parts, protocol.multiple, protocol.most, seed)
    clients = [part.tolist() for part in cut_parts]
    path.write_text(json.dumps({'clients': clients, 'num_examples': len(labels)}))


def write_clients(config: Config, dataset: Dataset, folder: Path) -> list[tuple[int, int]]:
    """Writes the clients that jaxfed trains as PFLlib's files train/0.npz, test/0.npz, ...

    Each file has an array `data` of one dictionary: x [n, channels, H, W] float32, normalised as
    jaxfed normalises, and y [n] int64.

    Returns:
      Training and test examples of each client.
    """
    dealt = deal(config, dataset)
    mean, std = channel_statistics(dataset.x_train)
    for part, clients in (('train', dealt.partition), ('test', dealt.personal)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for client, rows in enumerate(clients):
            x = (dataset.x_train[rows] - mean) / std
            write_examples(folder / part / f'{client}.npz', x, dataset.y_train[rows])
    return [(len(a), len(b)) for a, b in zip(dealt.partition, dealt.personal, strict=True)]


def write_start(model: str, dataset: Dataset, seed: int, path: Path) -> None:
    """Writes initial parameters for `--init_from`, and beside them an NPZ file for PyTorch."""
    shape = dataset.x_train.shape[1:]
    made = make_model(model, input_shape=shape, num_classes=dataset.num_classes)
    params = jax.device_get(made.init(jax.random.key(seed)))
    stats = jax.device_get(made.stats)
    arrays = {name: np.asarray(array) for name, array in named(params, stats).items()}
    save_file(arrays, path)
    for_torch: dict[str, Any] = torch_layout(arrays)
    np.savez(path.with_suffix('.npz'), **for_torch)


def torch_layout(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The kernels and biases of convolutions and dense layers as PyTorch stores them."""
    channels = arrays['conv2.kernel'].shape[-1]
    result = {}
    for name, array in arrays.items():
        layer, leaf = name.rsplit('.', 1)
        if leaf == 'kernel':
            result[f'{layer}.weight'] = torch_kernel(array, channels if layer == 'hidden' else 0)
        elif leaf == 'bias' and not layer.startswith('norm'):
            result[name] = array
    return result
