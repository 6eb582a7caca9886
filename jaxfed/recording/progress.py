"""Progress bars of one run and of many; about ten lines each if the output is not a terminal."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jaxfed.internal import console
from jaxfed.internal.console import time_in_words

_RECENT = 10  # rounds whose mean time estimates the time left

Entry = dict[str, Any]  # a line of metrics.jsonl


@contextlib.contextmanager
def run_progress(rounds: int, *, quiet: bool) -> Iterator[Callable[[Entry], None]]:
    """Show the progress of a run; yield a function that takes the entry of each finished round."""
    bar, in_lines = _progress_bar(
        TextColumn('round {task.completed:>4.0f}/{task.total:.0f}'),
        BarColumn(bar_width=14),
        TextColumn('{task.description}'),
        quiet=quiet,
    )
    every = max(rounds // 10, 1)
    seconds: deque[float] = deque(maxlen=_RECENT)
    with bar:
        task = bar.add_task('', total=rounds)
        accuracy = '      -'

        def report(entry: Entry) -> None:
            nonlocal accuracy
            round_, loss, failed = entry['round'], entry['train_loss'], entry.get('failed')
            if entry['test_accuracy'] is not None:
                accuracy = f'{entry["test_accuracy"]:7.2%}'
            loss_text = ('failed' if failed else '-') if loss is None else f'{loss:7.4f}'
            seconds.append(entry['seconds'])
            left = time_in_words(sum(seconds) / len(seconds) * (rounds - round_))
            text = f'accuracy {accuracy}  loss {loss_text:>7}  {left} left'
            bar.update(task, completed=round_, description=text)
            if in_lines and (round_ % every == 0 or round_ == rounds or failed):
                console.say(f'round {round_:>4}/{rounds}  {text}', quiet=False)

        yield report


@contextlib.contextmanager
def grid_progress(
    runs: int, rounds: int, *, quiet: bool
) -> Iterator[tuple[Callable[..., None], Callable[[Entry], None]]]:
    """Show the progress of many runs.

    Without a terminal, prints a line for each group of runs in one program, and about ten for the
    rounds of a group of several runs.

    Args:
      runs: the number of runs.
      rounds: the sum of their rounds.
      quiet: print nothing.

    Yields:
      `begin(name, rounds, runs=1)`, called before each group with the sum of its rounds and the
      number of its runs; and a function that takes the entry of each finished round.
    """
    bar, in_lines = _progress_bar(
        TextColumn('{task.fields[name]}'),
        BarColumn(bar_width=12),
        TextColumn('{task.percentage:>3.0f}%'),
        TimeElapsedColumn(),
        TextColumn('+'),
        TimeRemainingColumn(compact=True),
        quiet=quiet,
    )
    start = time.perf_counter()
    started, group_runs, group_rounds, done, best = 0, 1, 0, 0, 0.0
    with bar:
        task = bar.add_task('', total=rounds, name='')

        def elapsed() -> str:
            return time_in_words(time.perf_counter() - start)

        def begin(name: str, rounds_of_group: int, runs_of_group: int = 1) -> None:
            nonlocal started, group_runs, group_rounds, done, best
            # The group before may have ended early, or another process may train it.
            bar.update(task, advance=group_rounds - done)
            first = started + 1
            started += runs_of_group
            group_runs, group_rounds, done, best = runs_of_group, rounds_of_group, 0, 0.0
            numbers = f'{first}' if runs_of_group == 1 else f'{first}-{started}'
            bar.update(task, name=f'{numbers}/{runs} {name}')
            console.say(f'{numbers}/{runs} {name} ({elapsed()})', quiet=not in_lines)

        def report(entry: Entry) -> None:
            nonlocal done, best
            done += 1
            bar.update(task, advance=1)
            best = max(best, entry['test_accuracy'] or 0.0)
            if not in_lines or group_runs == 1:
                return
            if 10 * done // group_rounds > 10 * (done - 1) // group_rounds:
                text = f'  round {entry["round"]}, {100 * done // group_rounds} %: best accuracy '
                console.say(f'{text}{best:.2%} ({elapsed()})', quiet=False)

        yield begin, report


def _progress_bar(*columns: ProgressColumn, quiet: bool) -> tuple[Progress, bool]:
    """Return a bar, and whether lines are printed in its place."""
    animated = console.can_animate()
    bar = Progress(*columns, console=console.TERMINAL, disable=quiet or not animated)
    return bar, not quiet and not animated
