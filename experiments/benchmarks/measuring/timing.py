"""Measures programs in turns, so that other work on the machine affects all of them equally."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rich.progress import track

Name = TypeVar('Name')
Measurement = TypeVar('Measurement')


def seconds(run: Callable[[], Any]) -> float:
    """Wall-clock time of one call, which has to wait for its results."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleave(
    programs: Mapping[Name, Callable[[], Measurement]],
    repeats: int,
    *,
    warm_up: bool = True,
    description: str = 'measuring',
) -> dict[Name, list[Measurement]]:
    """Calls every program once in each of `repeats` turns.

    Args:
      programs: functions that return a measurement.
      repeats: number of turns.
      warm_up: whether every program is called once before, without recording it.
      description: of the progress bar.

    Returns:
      The measurements of each program, in the order of the turns.
    """
    if warm_up:
        for run in programs.values():
            run()
    measurements: dict[Name, list[Measurement]] = {name: [] for name in programs}
    for _ in track(range(repeats), description, transient=True):
        for name, run in programs.items():
            measurements[name].append(run())
    return measurements


def time_in_turns(
    programs: Mapping[Name, Callable[[], Any]], repeats: int, **keywords: Any
) -> dict[Name, list[float]]:
    """Seconds of programs that return when their results are there, as `interleave`."""

    def timer(run: Callable[[], Any]) -> Callable[[], float]:
        return lambda: seconds(run)

    return interleave({name: timer(run) for name, run in programs.items()}, repeats, **keywords)
