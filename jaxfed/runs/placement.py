"""Puts the training data of clients on the devices."""

from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.engine.devices import aligned, replicate
from jaxfed.engine.types import TrainingData
from jaxfed.runs.deal import Dealt, padded
from jaxfed.types import Array, Batch, Dataset


def place_all(
    every: Sequence[Dealt], mesh: Mesh, to_input: Callable[[Array], Array]
) -> TrainingData:
    """Puts the data of X experiments on the devices: each image once, clients as index ranges."""
    clients = [np.concatenate(dealt.partition) for dealt in every]
    order, _ = padded(clients, len(every), max(map(len, clients)))
    size = np.stack([dealt.size.astype(np.int32) for dealt in every])
    arrays = (
        every[0].dataset.x_train.reshape(len(every[0].dataset.x_train), -1),
        np.stack([dealt.dataset.y_train for dealt in every]),
        order.astype(np.int32),
        (np.cumsum(size, axis=1) - size).astype(np.int32),
        size,
        np.stack([dealt.label_counts.astype(np.int32) for dealt in every]),
    )
    batches = [auxiliary_batch(dealt, to_input) for dealt in every]
    auxiliary = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    return TrainingData(*replicate((*arrays, auxiliary), mesh))


def place_some(
    dealt: Dealt, mesh: Mesh, to_input: Callable[[Array], Array], *, room: int
) -> Callable[[np.ndarray], TrainingData]:
    """Makes a function that puts the data of some clients of an experiment on the devices.

    It takes client ids with at most `room` examples, and always returns the same shapes.
    """
    dataset, partition = dealt.dataset, dealt.partition
    images = dataset.x_train.reshape(len(dataset.x_train), -1)
    auxiliary = jax.tree.map(lambda leaf: leaf[None], auxiliary_batch(dealt, to_input))
    order = np.arange(room, dtype=np.int32)[None]
    size, counts = (array[None].astype(np.int32) for array in (dealt.size, dealt.label_counts))
    order, size, counts, auxiliary = replicate((order, size, counts, auxiliary), mesh)

    def place(clients: np.ndarray) -> TrainingData:
        start = aligned((1, len(partition)), np.int32)
        x = aligned((room, images.shape[1]), images.dtype)
        y = aligned((1, room), np.int32)
        filled = 0
        for client in clients:
            examples = partition[client]
            start[0, client], end = filled, filled + len(examples)
            x[filled:end], y[0, filled:end] = images[examples], dataset.y_train[examples]
            filled = end
        x, y, start = replicate((x, y, start), mesh, copy=False)
        return TrainingData(x, y, order, start, size, counts, auxiliary)

    return place


def auxiliary_batch(dealt: Dealt, to_input: Callable[[Array], Array]) -> Batch | None:
    """The server's examples, None if it has none."""
    if not len(dealt.auxiliary):
        return None
    y = jnp.asarray(dealt.dataset.y_train[dealt.auxiliary])
    return Batch(to_input(dealt.dataset.x_train[dealt.auxiliary]), y, jnp.ones(y.shape, bool))


def in_memory(datasets: Iterable[Dataset]) -> int:
    """Bytes of images that are not mapped from files; the devices of a CPU read copies of them."""

    def mapped(array: np.ndarray | None) -> bool:
        return isinstance(array, np.memmap) or (
            array is not None and mapped(getattr(array, 'base', None))
        )

    images = {id(x): x for dataset in datasets for x in (dataset.x_train, dataset.x_test)}
    return sum(x.nbytes for x in images.values() if not mapped(x))
