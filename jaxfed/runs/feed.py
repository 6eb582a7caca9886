"""Rounds with their training data: all of it on the devices, or a wave of clients at a time.

If the images do not fit into memory, each wave holds as many of a round's clients as fit. A thread
reads its images from the memory map while the wave before it trains. Waves train the same clients
on the same batches as an undivided round, and their sums give the same update.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from jax.sharding import Mesh

from jaxfed.engine import distributed
from jaxfed.engine.devices import memory
from jaxfed.engine.lanes import Schedule, schedule
from jaxfed.engine.stacking import row
from jaxfed.engine.types import TrainingData, Tuned
from jaxfed.runs.experiment import Experiment, client_steps, cohort_of
from jaxfed.runs.placement import in_memory, place_all, place_some
from jaxfed.runs.shared_program import round_arguments
from jaxfed.types import Array, Cohort

T = TypeVar('T')

IMAGE_SHARE = 0.5  # of the memory, for all images or else for the waves
WAVES = 3  # in memory: one trains, the next is read, and the last may not be released yet


class TooLarge(ValueError):
    """Experiments need more memory than the devices have."""


class Wave(NamedTuple):
    """Some of a round's clients and their training data."""

    schedule: Schedule  # its slots are places in the whole cohort
    data: TrainingData


class PlannedRound(NamedTuple):
    """A round of X experiments before it is run."""

    number: int
    cohort: Cohort  # [X, S]
    tuned: Tuned  # [X]
    waves: Iterator[Wave]


# (lanes, number of the first round, [X] bool `running`; all by default) -> the rounds.
# The feed reads `running` before every round, of rounds in waves once.
Feed = Callable[..., Iterator[PlannedRound]]


def make_feed(
    experiments: Sequence[Experiment], mesh: Mesh, to_input: Callable[[Array], Array]
) -> tuple[Feed, bool]:
    """Makes the feed of X experiments that share a program, and returns whether it uses waves.

    `to_input` normalises the server's auxiliary data.
    """
    config, dealt = experiments[0].config, experiments[0].dealt
    devices = mesh.local_devices
    # All devices of a CPU read the same copy.
    on_cpu = devices[0].platform == 'cpu'
    # Processes with unequal numbers of devices plan the same waves.
    copies = distributed.minimum('devices with one copy', len(devices)) if on_cpu else 1
    images, memory_share = dealt.dataset.x_train, IMAGE_SHARE * (memory(mesh) * copies)
    needed = images.nbytes + dealt.dataset.x_test.nbytes
    if on_cpu:
        needed += in_memory(experiment.dealt.dataset for experiment in experiments)
    fits = bool(distributed.minimum('images that fit', needed <= memory_share))
    if config.stream == 'off' or (config.stream == 'auto' and fits):
        data = place_all([experiment.dealt for experiment in experiments], mesh, to_input)
        return partial(feed_rounds, experiments, mesh.size, lambda clients: data, None), False
    if len(experiments) > 1:
        raise TooLarge(
            f'the images of {len(experiments)} experiments in one program do not fit into memory, '
            f'and --stream={config.stream} sends those of a single experiment only.'
        )
    # At most the largest cohort, at least the largest client.
    largest_cohort = np.sort(dealt.size)[-config.clients_per_round :].sum()
    room = int(min(memory_share / WAVES / images[0].nbytes, largest_cohort))
    room = max(room, int(dealt.size.max()))
    place = place_some(dealt, mesh, to_input, room=room)
    return partial(feed_rounds, experiments, mesh.size, place, room), True


def feed_rounds(
    experiments: Sequence[Experiment],
    devices: int,
    place: Callable[[np.ndarray], TrainingData],
    room: int | None,
    lanes: int,
    first: int,
    running: np.ndarray | None = None,
) -> Iterator[PlannedRound]:
    """Yields the rounds from `first` on.

    Args:
      experiments: X.
      devices: their number.
      place: client ids -> their training data.
      room: examples of a wave; None for undivided rounds, whose data is on the devices.
      lanes: of each device.
      first: number of the first round.
      running: [X] bool, read before every round, of rounds in waves once; stopped experiments do
        not train.
    """

    def load(cohort: Cohort, slots: np.ndarray) -> Wave:
        steps = [client_steps(e, row(cohort, x)) for x, e in enumerate(experiments)]
        plan = plan_wave(np.concatenate(steps), slots, lanes=lanes, devices=devices)
        return Wave(plan, place(cohort.clients.ravel()[slots]))

    rounds = plan_rounds(experiments, room, first, running)
    loaded: Iterator[Wave] = iter(())
    if room:  # a thread loads the next wave, also that of the next round
        rounds = list(rounds)
        loaded = ahead(
            partial(load, cohort, slots) for _, cohort, waves in rounds for slots in waves
        )
    for number, cohort, waves in rounds:
        ready = islice(loaded, len(waves)) if room else iter([load(cohort, s) for s in waves])
        yield PlannedRound(number, cohort, round_arguments(experiments, number, running), ready)
        for _ in ready if room else ():  # waves of a skipped round would be those of the next
            pass


def plan_rounds(
    experiments: Sequence[Experiment], room: int | None, first: int, running: np.ndarray | None
) -> Iterable[tuple[int, Cohort, list[np.ndarray]]]:
    """Yields (number, cohort [X, S], places in the cohort of the clients of each wave)."""
    for number in range(first, experiments[0].config.rounds + 1):
        cohorts = [cohort_of(experiment, number) for experiment in experiments]
        clients, epochs = map(np.stack, zip(*cohorts, strict=True))
        if running is not None:
            epochs = epochs * running[:, None].astype(np.int32)
        arrived = np.flatnonzero(epochs)
        waves = [arrived] if arrived.size else []
        if room:
            waves = split_waves(experiments[0].dealt.size[clients[0]], arrived, room)
        if not waves and any(experiment.method.always_merges for experiment in experiments):
            waves = [arrived]
        yield number, Cohort(clients, epochs), waves


def split_waves(size: np.ndarray, slots: np.ndarray, room: int) -> list[np.ndarray]:
    """Splits clients into waves, the largest first, each into the first wave with room.

    Args:
      size: [S] examples of each client of the cohort, at most `room`.
      slots: places in the cohort of the clients to train.
      room: most examples of a wave.

    Returns:
      Arrays of places in the cohort; together they are `slots`.
    """
    waves: list[list[int]] = []
    free: list[int] = []  # of each wave
    for slot in slots[np.argsort(-size[slots], kind='stable')]:
        wave = next((i for i, space in enumerate(free) if space >= size[slot]), len(waves))
        if wave == len(waves):
            waves.append([])
            free.append(room)
        waves[wave].append(int(slot))
        free[wave] -= int(size[slot])
    return [np.array(sorted(wave)) for wave in waves]


def plan_wave(steps: np.ndarray, slots: np.ndarray, *, lanes: int, devices: int) -> Schedule:
    """Schedules the clients of a wave; the schedules of all waves have the same shape.

    Args:
      steps: [X S] local steps of each client of the cohort.
      slots: places in the cohort of the wave's clients.
      lanes: of each device.
      devices: their number.
    """
    plan = schedule(steps[slots], lanes=lanes, devices=devices, cohort_size=len(steps))
    return plan._replace(slot=slots[plan.slot].astype(np.int32)) if slots.size else plan


def ahead(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yields the results of tasks in order; a thread runs the next task in the meantime."""
    thread = ThreadPoolExecutor(max_workers=1)
    try:
        # `pairwise` submits the next task before it yields the current one.
        for current, _ in pairwise(chain(map(thread.submit, tasks), [Future[T]()])):
            yield current.result()
    finally:
        thread.shutdown(cancel_futures=True)
