"""Dealing the clients of a round to lanes.

A lane is one slot of the stacked axis. A lane that has finished a client takes the next one, so a
few long clients do not leave the others idle, and memory grows with lanes, not with clients.

The schedule is a list of events in the order of time, one for each client: "run all lanes for
`steps` local steps; then lane `lane` has finished the client in slot `slot` and starts the one in
slot `next_slot`". It is computed on the host and given to the compiled round as arrays of fixed
shape, so that every cohort uses the same program.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Schedule(NamedTuple):
    """Which lane trains which client of the cohort, and when. Slots number the cohort's clients."""

    first_slot: np.ndarray  # [L] int32, the client each lane starts with
    steps: np.ndarray  # [S] int32, local steps of all lanes before event e
    lane: np.ndarray  # [S] int32, the lane whose client is finished at event e
    slot: np.ndarray  # [S] int32, that client
    next_slot: np.ndarray  # [S] int32, the client the lane takes next, -1 for none

    @property
    def executed(self) -> int:
        """Steps the program executes, idle lanes counted in."""
        return int(self.steps.sum()) * len(self.first_slot)


def schedule(steps: Sequence[int] | np.ndarray, *, lanes: int) -> Schedule:
    """Deal clients to lanes, longest first, each to the lane that is free first.

    Args:
      steps: [S] local steps of each client of the cohort.
      lanes: L, in 1..S.

    Returns:
      The schedule.

    Raises:
      ValueError: if `lanes` is not in 1..S.
    """
    steps = np.asarray(steps, np.int64)
    if not 1 <= lanes <= len(steps):
        raise ValueError(f'lanes={lanes} must lie in 1..{len(steps)}, the clients of a round.')
    order = np.argsort(-steps, kind='stable')
    first, rest = order[:lanes], list(order[lanes:])
    running = [(int(steps[slot]), lane, int(slot)) for lane, slot in enumerate(first)]
    heapq.heapify(running)
    events, now = [], 0
    while running:
        end, lane, slot = heapq.heappop(running)
        following = int(rest.pop(0)) if rest else -1
        events.append((end - now, lane, slot, following))
        now = end
        if following >= 0:
            heapq.heappush(running, (end + int(steps[following]), lane, following))
    columns = np.asarray(events, np.int32).T
    return Schedule(first.astype(np.int32), *columns)


def choose_lanes(steps: np.ndarray, *, cohort_size: int, most: int, seed: int = 0) -> int:
    """Choose the number of lanes: the largest that keeps most of the executed steps useful.

    The share of useful steps, sum_i K_i / (L max_l sum_{i on l} K_i), is estimated on random
    cohorts. The largest L <= `most` with a share of at least 85 % is taken, else the L with the
    largest share.

    Args:
      steps: [N] local steps K_i of every client.
      cohort_size: S, clients a round.
      most: the largest number of lanes worth having on the device.
      seed: of the random cohorts.

    Returns:
      L, in 1..min(S, most).
    """
    rng = np.random.default_rng(seed)
    cohorts = [rng.choice(steps, cohort_size, replace=False) for _ in range(20)]

    def useful(lanes: int) -> float:
        executed = sum(schedule(cohort, lanes=lanes).executed for cohort in cohorts)
        return sum(int(cohort.sum()) for cohort in cohorts) / max(executed, 1)

    share = {lanes: useful(lanes) for lanes in range(1, min(cohort_size, most) + 1)}
    good = [lanes for lanes, value in share.items() if value >= 0.85]
    return max(good) if good else max(share, key=lambda lanes: share[lanes])
