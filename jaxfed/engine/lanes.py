"""Assignment of the clients of a round to devices and lanes.

A lane is one entry of the stacked axis; every device has L lanes. A lane that has finished a client
takes the next one, so long clients do not idle the other lanes, and memory grows with lanes, not
with clients. The lanes of a device step together; devices wait for each other only at the end of
the round.

The schedule of a device is a list of events in the order of time, one for each of its clients: "run
all lanes for `steps` local steps; then lane `lane` has finished the client at this position, and
starts the one at position `next`". The host computes it and passes it to the compiled round as
arrays of fixed shape, so that every cohort uses the same program.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Schedule(NamedTuple):
    """Which lane trains which client of the cohort, and when.

    Letters: D devices, L lanes of each, M the largest number of clients of a device. Positions
    number a device's clients in the order in which they finish.
    """

    slot: np.ndarray  # [D, M] int32, the client at each position, as its place in the cohort
    steps: np.ndarray  # [D, M] int32, local steps of all lanes before the client is finished
    lane: np.ndarray  # [D, M] int32, the lane that trains it
    next: np.ndarray  # [D, M] int32, position of the lane's next client, -1 for none
    first: np.ndarray  # [D, L] int32, position of the client each lane starts with
    clients: np.ndarray  # [D] int32, clients of the device; later positions are not used

    @property
    def used(self) -> np.ndarray:
        """[D, M] bool, the positions that hold a client."""
        return np.arange(self.slot.shape[1]) < self.clients[:, None]

    @property
    def executed(self) -> int:
        """Steps that the program executes, including those of idle lanes."""
        return int(self.steps.sum()) * self.first.shape[1]

    @property
    def length(self) -> int:
        """Steps one after another, of the device with the most."""
        return int(self.steps.sum(axis=1).max())


def schedule(
    steps: Sequence[int] | np.ndarray,
    *,
    lanes: int,
    devices: int = 1,
    cohort_size: int | None = None,
) -> Schedule:
    """Assigns clients to lanes, longest first, each to the lane that is free first.

    Args:
      steps: local steps of each client.
      lanes: L, of each device.
      devices: D; L D must be in 1..S.
      cohort_size: S, which determines the schedule's shape; None for the number of clients.

    Returns:
      The schedule.

    Raises:
      ValueError: if there are more lanes than clients, or none.
    """
    steps = np.asarray(steps, np.int64)
    cohort_size = cohort_size or len(steps)
    if lanes < 1 or devices < 1 or lanes * devices > cohort_size:
        raise ValueError(
            f'lanes={lanes} times devices={devices} must be in 1..{cohort_size}, the clients of a '
            'round.'
        )
    # Several devices have room for twice their share; balanced schedules never need more.
    room = cohort_size if devices == 1 else min(cohort_size, 2 * -(-cohort_size // devices))
    assigned: list[list[tuple[int, int, int]]] = [[] for _ in range(devices)]  # (end, lane, slot)
    free = [(0, lane, device) for lane in range(lanes) for device in range(devices)]
    for slot in np.argsort(-steps, kind='stable'):
        now, lane, device = heapq.heappop(free)
        while len(assigned[device]) == room:
            now, lane, device = heapq.heappop(free)
        end = now + int(steps[slot])
        assigned[device].append((end, lane, int(slot)))
        heapq.heappush(free, (end, lane, device))

    result = Schedule(
        slot=np.zeros((devices, room), np.int32),
        steps=np.zeros((devices, room), np.int32),
        lane=np.zeros((devices, room), np.int32),
        next=np.full((devices, room), -1, np.int32),
        first=np.zeros((devices, lanes), np.int32),
        clients=np.array([len(clients) for clients in assigned], np.int32),
    )
    for device, clients in enumerate(assigned):
        now, last = 0, dict[int, int]()
        for position, (end, lane, slot) in enumerate(sorted(clients, key=lambda c: c[0])):
            result.slot[device, position], result.lane[device, position] = slot, lane
            result.steps[device, position] = end - now
            if lane in last:
                result.next[device, last[lane]] = position
            else:
                result.first[device, lane] = position
            now, last[lane] = end, position
    return result


def choose_lanes(
    steps: Sequence[np.ndarray], *, cohort_size: int, most: int, devices: int = 1
) -> int:
    """The largest number of lanes with at least 90 % useful steps.

    The share of useful steps, sum_i K_i / (D L max_l sum_{i on l} K_i), is estimated on random
    cohorts. If it is below 90 % for every L <= `most`, the result is the L with the largest share.

    Args:
      steps: X arrays [N], the local steps K_i of every client of each experiment.
      cohort_size: S, clients a round of each experiment.
      most: the largest useful number of lanes of a device.
      devices: D.

    Returns:
      L, in 1..min(X S // D, most).
    """
    rng = np.random.default_rng(0)
    # Large cohorts differ little, and scheduling them is slow.
    rounds = max(1, min(20, 20_000 // (len(steps) * cohort_size)))
    cohorts = [
        np.concatenate([rng.choice(clients, cohort_size, replace=False) for clients in steps])
        for _ in range(rounds)
    ]

    def useful(lanes: int) -> float:
        length = sum(schedule(c, lanes=lanes, devices=devices).length for c in cohorts)
        return sum(int(cohort.sum()) for cohort in cohorts) / max(length * lanes * devices, 1)

    limit = min(len(steps) * cohort_size // devices, most)
    # Above 32 only every quarter of a power of two: a finer choice gains nothing.
    choices = (n for n in range(1, limit) if n <= 32 or n % 2 ** (n.bit_length() - 3) == 0)
    share = {lanes: useful(lanes) for lanes in (*choices, limit)}
    best = max(share, key=lambda lanes: share[lanes])
    return max((lanes for lanes, value in share.items() if value >= 0.9), default=best)
