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

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.devices import aligned, memory, replicate
from jaxfed.experiment import Experiment, cohort_steps, sample_cohort
from jaxfed.lanes import Schedule, schedule
from jaxfed.round import TrainingData
from jaxfed.types import Array, Batch, Cohort, Dataset

T = TypeVar('T')

# Of the memory: all images stay on the devices up to this share; where they do not, the waves take
# up to this share.
IMAGE_SHARE = 0.5
WAVES = 3  # at a time: one trains, the next is read, and the last may not be released yet


class Wave(NamedTuple):
    """Some of a round's clients and what they train on."""

    plan: Schedule  # its slots are places in the whole cohort
    data: TrainingData


class Planned(NamedTuple):
    """A round before it is run."""

    number: int
    cohort: Cohort
    learning_rate: float
    waves: Iterator[Wave]


# (lanes, first round) -> an experiment's rounds from that one on
Feed = Callable[[int, int], Iterator[Planned]]


def make_feed(
    experiment: Experiment, mesh: Mesh, to_input: Callable[[Array], Array]
) -> tuple[Feed, bool]:
    """Makes what gives an experiment's rounds one after another.

    Args:
      experiment: from `set_up`.
      mesh: the devices.
      to_input: normalisation, for the server's auxiliary data.

    Returns:
      (the feed, whether images come in waves).
    """
    config, dealt = experiment.config, experiment.dealt
    dataset, size = dealt.dataset, dealt.label_counts.sum(axis=1)
    auxiliary = own_batch(dataset, dealt.auxiliary, to_input)
    given = (dataset, dealt.partition, dealt.label_counts, auxiliary, mesh)
    images = IMAGE_SHARE * image_memory(mesh)
    fits = dataset.x_train.nbytes + dataset.x_test.nbytes <= images
    deal_wave = partial(plan_wave, devices=mesh.size)

    def planned(number: int, cohort: Cohort, waves: Iterator[Wave]) -> Planned:
        rate = config.learning_rate * config.lr_decay ** (number - 1)
        return Planned(number, cohort, rate, waves)

    if config.stream == 'off' or (config.stream == 'auto' and fits):
        data = place_all(*given)

        def whole(lanes: int, first: int) -> Iterator[Planned]:
            for number in range(first, config.rounds + 1):
                cohort = sample_cohort(config, size, number)
                arrived, waves = np.flatnonzero(cohort.epochs), []
                if arrived.size:
                    plan = deal_wave(cohort_steps(config, size, cohort), arrived, lanes=lanes)
                    waves = [Wave(plan, data)]
                yield planned(number, cohort, iter(waves))

        return whole, False

    # Never more than the largest cohort, never less than the largest client.
    largest = np.sort(size)[-config.clients_per_round :].sum()
    room = max(int(min(images / WAVES / dataset.x_train[0].nbytes, largest)), int(size.max()))
    place = place_some(*given, room=room)

    def in_waves(lanes: int, first: int) -> Iterator[Planned]:
        numbers = range(first, config.rounds + 1)
        cohorts = {number: sample_cohort(config, size, number) for number in numbers}
        slots = {
            number: split_waves(size[cohort.clients], np.flatnonzero(cohort.epochs), room)
            for number, cohort in cohorts.items()
        }

        def load(number: int, chosen: np.ndarray) -> Wave:
            cohort = cohorts[number]
            plan = deal_wave(cohort_steps(config, size, cohort), chosen, lanes=lanes)
            return Wave(plan, place(cohort.clients[chosen]))

        loaded = ahead(partial(load, n, chosen) for n in numbers for chosen in slots[n])
        for number in numbers:
            yield planned(number, cohorts[number], islice(loaded, len(slots[number])))

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
    dataset: Dataset,
    partition: Sequence[np.ndarray],
    label_counts: np.ndarray,
    auxiliary: Batch | None,
    mesh: Mesh,
) -> TrainingData:
    """Puts the training data on the devices: every image once, clients as groups of indices.

    Args:
      dataset: the images.
      partition: N index arrays, the examples of each client.
      label_counts: [N, C].
      auxiliary: the server's own examples.
      mesh: the devices.

    Returns:
      The training data.
    """
    size = _sizes(partition)
    start = (np.cumsum(size) - size).astype(np.int32)
    order = np.concatenate(partition).astype(np.int32)
    arrays = (dataset.x_train, dataset.y_train, order, start, size, label_counts.astype(np.int32))
    x, y, order, start, size, counts = replicate(arrays, mesh)
    return TrainingData(x, y, order, start, size, counts, replicate(auxiliary, mesh))


def place_some(
    dataset: Dataset,
    partition: Sequence[np.ndarray],
    label_counts: np.ndarray,
    auxiliary: Batch | None,
    mesh: Mesh,
    *,
    room: int,
) -> Callable[[np.ndarray], TrainingData]:
    """Makes what puts the data of some clients on the devices.

    Args:
      dataset: the images.
      partition: N index arrays, the examples of each client.
      label_counts: [N, C].
      auxiliary: the server's own examples.
      mesh: the devices.
      room: examples, at least those of the clients that it is called with.

    Returns:
      (client ids) -> training data that holds the examples of these clients only, always of the
      same shapes.
    """
    order, size, counts = replicate(
        (np.arange(room, dtype=np.int32), _sizes(partition), label_counts.astype(np.int32)), mesh
    )
    own = replicate(auxiliary, mesh)

    def place(clients: np.ndarray) -> TrainingData:
        start = aligned((len(partition),), np.int32)
        x = aligned((room, *dataset.x_train.shape[1:]), dataset.x_train.dtype)
        y = aligned((room,), np.int32)
        filled = 0
        for client in clients:
            examples = partition[client]
            start[client], end = filled, filled + len(examples)
            x[filled:end], y[filled:end] = dataset.x_train[examples], dataset.y_train[examples]
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
      steps: [S] local steps of each client of the cohort.
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
