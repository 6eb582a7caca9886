"""Rounds with their training data: all of it on the devices, or a wave of clients at a time.

Where the images do not fit, a wave is as many of a round's clients as there is room for. Its images
are read from the memory map by a thread while the wave before it trains. Waves train the same
clients on the same batches as a round in one piece, and their sums add up to the same update.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.engine.devices import aligned, memory, replicate
from jaxfed.engine.lanes import Schedule, schedule
from jaxfed.engine.local import steps_per_epoch
from jaxfed.engine.round import TrainingData, Tuned
from jaxfed.runs.deal import Dealt
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.seeds import sample_cohort
from jaxfed.runs.shared_program import round_arguments
from jaxfed.types import Array, Batch, Cohort, Dataset

T = TypeVar('T')

# Of the memory: all images stay on the devices up to this share; where they do not, the waves take
# up to this share.
IMAGE_SHARE = 0.5
WAVES = 3  # at a time: one trains, the next is read, and the last may not be released yet


class TooLarge(ValueError):
    """Experiments need more memory than their devices have."""


class Wave(NamedTuple):
    """Some of a round's clients and what they train on."""

    plan: Schedule  # its slots are places in the whole cohort
    data: TrainingData


class Planned(NamedTuple):
    """A round before it is run, of X experiments."""

    number: int
    cohort: Cohort  # [X, S]
    tuned: Tuned  # [X]
    waves: Iterator[Wave]


# (lanes, first round, [X] whether an experiment still runs; None if all do) -> the rounds from that
# one on. Who has stopped running while they are given is looked up anew for each round.
Feed = Callable[..., Iterator[Planned]]


def make_feed(
    experiments: Sequence[Experiment], mesh: Mesh, to_input: Callable[[Array], Array]
) -> tuple[Feed, bool]:
    """Makes what gives the rounds of experiments one after another.

    Args:
      experiments: X from `set_up` that share a program.
      mesh: the devices.
      to_input: normalisation, for the server's auxiliary data.

    Returns:
      (the feed, whether images come in waves).

    Raises:
      TooLarge: if the images of several experiments do not fit into memory.
    """
    config, dataset = experiments[0].config, experiments[0].dealt.dataset
    sizes = [experiment.dealt.label_counts.sum(axis=1) for experiment in experiments]
    images = IMAGE_SHARE * image_memory(mesh)
    fits = dataset.x_train.nbytes + dataset.x_test.nbytes <= images

    def sample(number: int, runs: np.ndarray | None) -> Cohort:
        cohorts = [
            sample_cohort(e.config, n, number) for e, n in zip(experiments, sizes, strict=True)
        ]
        clients, epochs = map(np.stack, zip(*cohorts, strict=True))
        # Nobody trains for an experiment that has stopped.
        return Cohort(clients, epochs if runs is None else epochs * runs[:, None].astype(np.int32))

    def deal_wave(cohort: Cohort, slots: np.ndarray, lanes: int) -> Schedule:
        size = np.stack([n[own] for n, own in zip(sizes, cohort.clients, strict=True)])
        steps = cohort.epochs * steps_per_epoch(size, config.batch_size)
        return plan_wave(steps.ravel(), slots, lanes=lanes, devices=mesh.size)

    if config.stream == 'off' or (config.stream == 'auto' and fits):
        data = place_all([experiment.dealt for experiment in experiments], mesh, to_input)

        def whole(lanes: int, first: int, runs: np.ndarray | None = None) -> Iterator[Planned]:
            for number in range(first, config.rounds + 1):
                cohort = sample(number, runs)
                arrived, waves = np.flatnonzero(cohort.epochs), []
                if arrived.size:
                    waves = [Wave(deal_wave(cohort, arrived, lanes), data)]
                yield Planned(number, cohort, round_arguments(experiments, number), iter(waves))

        return whole, False

    if len(experiments) > 1:
        raise TooLarge(
            f'the images of {len(experiments)} experiments together come in no waves: '
            f'--stream={config.stream} is for one experiment after another.'
        )
    # Never more than the largest cohort, never less than the largest client.
    (size,) = sizes
    largest = np.sort(size)[-config.clients_per_round :].sum()
    room = max(int(min(images / WAVES / dataset.x_train[0].nbytes, largest)), int(size.max()))
    place = place_some(experiments[0].dealt, mesh, to_input, room=room)

    def in_waves(lanes: int, first: int, runs: np.ndarray | None = None) -> Iterator[Planned]:
        numbers = range(first, config.rounds + 1)
        cohorts = {number: sample(number, runs) for number in numbers}
        slots = {
            number: split_waves(size[cohort.clients[0]], np.flatnonzero(cohort.epochs), room)
            for number, cohort in cohorts.items()
        }

        def load(number: int, chosen: np.ndarray) -> Wave:
            cohort = cohorts[number]
            return Wave(deal_wave(cohort, chosen, lanes), place(cohort.clients[0, chosen]))

        loaded = ahead(partial(load, n, chosen) for n in numbers for chosen in slots[n])
        for number in numbers:
            waves = islice(loaded, len(slots[number]))
            yield Planned(number, cohorts[number], round_arguments(experiments, number), waves)

    return in_waves, True


def image_memory(mesh: Mesh) -> float:
    """Memory in bytes that images may share: a CPU's devices all read the same copy.

    Args:
      mesh: the devices.

    Returns:
      The bytes.
    """
    own = mesh.local_devices
    return memory(mesh) * (len(own) if own[0].platform == 'cpu' else 1)


def place_all(
    every: Sequence[Dealt], mesh: Mesh, to_input: Callable[[Array], Array]
) -> TrainingData:
    """Puts the training data on the devices: every image once, clients as groups of indices.

    Args:
      every: what is dealt in each of X experiments, with the same images.
      mesh: the devices.
      to_input: normalisation.

    Returns:
      The training data.
    """
    held = [np.concatenate(dealt.partition) for dealt in every]
    order = np.zeros((len(every), max(map(len, held))), np.int32)
    for own, examples in zip(order, held, strict=True):
        own[: len(examples)] = examples
    size = np.stack([_sizes(dealt.partition) for dealt in every])
    first = every[0].dataset
    arrays = (
        first.x_train,
        np.stack([dealt.dataset.y_train for dealt in every]),
        order,
        (np.cumsum(size, axis=1) - size).astype(np.int32),
        size,
        np.stack([dealt.label_counts.astype(np.int32) for dealt in every]),
    )
    batches = [own_batch(dealt.dataset, dealt.auxiliary, to_input) for dealt in every]
    auxiliary = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    return TrainingData(*replicate((*arrays, auxiliary), mesh))


def place_some(
    dealt: Dealt, mesh: Mesh, to_input: Callable[[Array], Array], *, room: int
) -> Callable[[np.ndarray], TrainingData]:
    """Makes what puts the data of some clients on the devices.

    Args:
      dealt: what is dealt, in one experiment.
      mesh: the devices.
      to_input: normalisation.
      room: examples, at least those of the clients that it is called with.

    Returns:
      (client ids) -> training data that holds the examples of these clients only, always of the
      same shapes.
    """
    dataset, partition = dealt.dataset, dealt.partition
    order, size, counts = replicate(
        (
            np.arange(room, dtype=np.int32)[None],
            _sizes(partition)[None],
            dealt.label_counts[None].astype(np.int32),
        ),
        mesh,
    )
    auxiliary = own_batch(dataset, dealt.auxiliary, to_input)
    own = replicate(jax.tree.map(lambda leaf: leaf[None], auxiliary), mesh)

    def place(clients: np.ndarray) -> TrainingData:
        start = aligned((1, len(partition)), np.int32)
        x = aligned((room, *dataset.x_train.shape[1:]), dataset.x_train.dtype)
        y = aligned((1, room), np.int32)
        filled = 0
        for client in clients:
            examples = partition[client]
            start[0, client], end = filled, filled + len(examples)
            x[filled:end], y[0, filled:end] = dataset.x_train[examples], dataset.y_train[examples]
            filled = end
        x, y, start = replicate((x, y, start), mesh, copy=False)
        return TrainingData(x, y, order, start, size, counts, own)

    return place


def split_waves(size: np.ndarray, slots: np.ndarray, room: int) -> list[np.ndarray]:
    """Splits the clients of a round into waves, the largest first, each into the first that fits.

    Args:
      size: [S] examples of each client of the cohort, none above `room`.
      slots: places in the cohort of the clients to train.
      room: examples that a wave may have.

    Returns:
      Arrays of places in the cohort; together every one of `slots` once.
    """
    waves: list[list[int]] = []
    left: list[int] = []
    for slot in slots[np.argsort(-size[slots], kind='stable')]:
        fits = (i for i, free in enumerate(left) if free >= size[slot])
        if (wave := next(fits, None)) is None:
            waves.append([])
            left.append(room)
            wave = -1
        waves[wave].append(int(slot))
        left[wave] -= int(size[slot])
    return [np.array(sorted(wave)) for wave in waves]


def plan_wave(steps: np.ndarray, slots: np.ndarray, *, lanes: int, devices: int) -> Schedule:
    """Deals the clients of a wave to lanes and devices.

    Args:
      steps: local steps of each client of the cohort, of all experiments.
      slots: places in the cohort of the wave's clients.
      lanes: of each device.
      devices: how many.

    Returns:
      The schedule, of the same shape for every wave.
    """
    plan = schedule(steps[slots], lanes=lanes, devices=devices, cohort_size=len(steps))
    return plan._replace(slot=slots[plan.slot].astype(np.int32))


def ahead(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Runs each task in a thread while the result of the one before it is used.

    Args:
      tasks: functions of nothing.

    Yields:
      Their results, in order; what a task raises is raised here.
    """
    thread = ThreadPoolExecutor(max_workers=1)
    try:
        running: Future[T] | None = None
        for task in tasks:
            following = thread.submit(task)
            if running is not None:
                yield running.result()
            running = following
        if running is not None:
            yield running.result()
    finally:
        thread.shutdown(cancel_futures=True)


def own_batch(
    dataset: Dataset, auxiliary: np.ndarray, to_input: Callable[[Array], Array]
) -> Batch | None:
    """Makes the server's own examples.

    Args:
      dataset: the images.
      auxiliary: index array, maybe empty.
      to_input: normalisation.

    Returns:
      The examples, None if there are none.
    """
    if not len(auxiliary):
        return None
    y = jnp.asarray(dataset.y_train[auxiliary])
    return Batch(to_input(dataset.x_train[auxiliary]), y, jnp.ones(y.shape, bool))


def _sizes(partition: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in partition], np.int32)
