"""The work of `alternatives`: its arrays, and its network in PyTorch for the systems that need it.

torch is imported by the functions that need it: every module that a system's process imports counts
as its memory.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

TEST_BATCH_SIZE = 500  # as jaxfed evaluates


class Task(NamedTuple):
    """What every system does: federated averaging with SGD without momentum."""

    model: str
    shape: Sequence[int]  # height, width, channels of an image
    classes: int
    clients: int
    clients_per_round: int
    examples_per_client: int
    batch_size: int
    local_epochs: int
    learning_rate: float
    rounds: int
    eval_every: int  # rounds; the last one is always evaluated
    test_examples: int
    shards: int = 0  # of one class, for each client
    alpha: float | None = None  # of the Dirichlet distribution of each client's classes

    def evaluates(self, number: int) -> bool:
        """Whether an evaluation follows the round of this number, from 1."""
        return number % self.eval_every == 0 or number == self.rounds


class Work(NamedTuple):
    """The work of every system; its arrays are files in the folder."""

    folder: str
    task: Task
    mean: list[float]  # of each channel, in the units of the files
    std: list[float]
    cores: int
    gpu: bool  # JAX computes on one, so PyTorch must too


class Rounds(NamedTuple):
    """The rounds of a system."""

    seconds: list[float]  # of every round: training, aggregation and evaluation
    accuracy: float  # on the test images, after the last round
    compile_seconds: float | None = None  # before the first round


def network(work: Work) -> 'torch.nn.Module':
    """The network in PyTorch, initialised by its defaults, on the device that trains."""
    from experiments.benchmarks.programs.torch_networks import torch_network

    height, width, channels = work.task.shape
    model = torch_network(work.task.model, work.task.classes, shape=(height, width, channels))
    return model.to('cuda' if work.gpu else 'cpu')


def read_arrays(work: Work, split: str, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 'train' or 'test', normalised: [n, H, W, channels] float32 and labels [n] int32."""
    x, y = (np.load(f'{work.folder}/{part}_{split}.npy', mmap_mode='r')[rows] for part in 'xy')
    return (x - np.asarray(work.mean, np.float32)) / np.asarray(work.std, np.float32), y


def read_examples(work: Work, split: str, rows: slice) -> 'torch.utils.data.TensorDataset':
    """Rows of 'train' or 'test', normalised: [n, channels, H, W] float32 and labels [n] int64."""
    import torch

    x, y = read_arrays(work, split, rows)
    images = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()
    return torch.utils.data.TensorDataset(images, torch.from_numpy(y.astype(np.int64)))


def train_examples(work: Work, client: int) -> 'torch.utils.data.TensorDataset':
    """The examples of a client."""
    n = work.task.examples_per_client
    return read_examples(work, 'train', slice(client * n, (client + 1) * n))


def train_locally(
    task: Task, model: 'torch.nn.Module', examples: 'torch.utils.data.Dataset'
) -> None:
    """Trains a client's network for its local epochs, in place."""
    import torch
    from torch.utils.data import DataLoader

    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    batches = DataLoader(examples, batch_size=task.batch_size, shuffle=True)
    model.train()
    for x, y in itertools.chain.from_iterable(itertools.repeat(batches, task.local_epochs)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()


def measure_accuracy(model: 'torch.nn.Module', examples: 'torch.utils.data.TensorDataset') -> float:
    """The share of correct predictions."""
    import torch
    from torch.utils.data import DataLoader

    device = next(model.parameters()).device
    correct = 0
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(examples, batch_size=TEST_BATCH_SIZE):
            correct += int((model(x.to(device)).argmax(1) == y.to(device)).sum())
    return correct / len(examples)
