"""Progress bars of one run and of many; lines if the output is not a terminal."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from jaxfed.internal import console
from jaxfed.recording.entries import Entry

_RECENT = 10  # rounds whose mean time estimates the time left


@contextlib.contextmanager
def run_progress(rounds: int, *, quiet: bool) -> Iterator[Callable[[Entry], None]]:
    """Show the progress of a run; yield a function to call with the entry of each finished round.

    Without a terminal, print about ten lines, at least one a minute, and the last round.
    """
    seconds: deque[float] = deque(maxlen=_RECENT)
    accuracy = '      -'
    with _open_bar(
        TextColumn('round {task.completed:>4.0f}/{task.total:.0f}'),
        BarColumn(bar_width=14),
        TextColumn('{task.description}'),
        quiet=quiet,
    ) as (bar, show):
        task = bar.add_task('training the first round', total=rounds)
        show('training the first round', now=False)

        def report(entry: Entry) -> None:
            nonlocal accuracy
            round_, loss, failed = entry['round'], entry['train_loss'], entry.get('failed')
            if entry['test_accuracy'] is not None:
                accuracy = f'{entry["test_accuracy"]:7.2%}'
            loss_text = ('failed' if failed else '-') if loss is None else f'{loss:7.4f}'
            seconds.append(entry['seconds'])
            left = console.time_in_words(sum(seconds) / len(seconds) * (rounds - round_))
            text = f'accuracy {accuracy}  loss {loss_text:>7}  {left} left'
            bar.update(task, completed=round_, description=text)
            due = round_ % max(rounds // 10, 1) == 0 or round_ == rounds or bool(failed)
            show(f'round {round_:>4}/{rounds}  {text}', now=due)

        yield report


@contextlib.contextmanager
def grid_progress(
    runs: int, rounds: int, *, quiet: bool
) -> Iterator[tuple[Callable[..., None], Callable[[Entry], None]]]:
    """Show the progress of many runs.

    Without a terminal, print the beginning and the last round of each group of runs in one program,
    about ten lines between them for a group of several runs, and at least one line a minute.

    Args:
      runs: the number of runs.
      rounds: the sum of their rounds.
      quiet: print nothing.

    Yields:
      `begin(name, rounds, runs=1)`, to call before each group with the sum of its rounds and the
      number of its runs; and a function to call with the entry of each finished round.
    """
    started, group_runs, group_rounds, run_rounds, done, label = 0, 1, 0, 1, 0, ''
    best: float | None = None  # of the group in its last evaluation; None before the first
    # The last round, how many runs have reported it, and how many train: --halving stops others.
    last, reported, training = 0, 0, 1
    # The other columns need 40 characters; a longer name would hide them.
    name_column = Column(no_wrap=True, max_width=max(console.TERMINAL.width - 40, 10))
    with _open_bar(
        TextColumn('{task.description}', markup=False, table_column=name_column),
        BarColumn(bar_width=12),
        TextColumn('{task.percentage:>3.0f}%'),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn('left'),
        quiet=quiet,
        timed=True,
    ) as (bar, show):
        task = bar.add_task('', total=rounds)

        def begin(name: str, rounds_of_group: int, runs_of_group: int = 1) -> None:
            nonlocal \
                started, \
                group_runs, \
                group_rounds, \
                run_rounds, \
                done, \
                best, \
                last, \
                training, \
                label
            # The group before may have ended early, or another process may train it.
            bar.update(task, advance=group_rounds - done)
            first = started + 1
            started += runs_of_group
            group_runs, group_rounds, done = runs_of_group, rounds_of_group, 0
            run_rounds = rounds_of_group // runs_of_group
            best, last, training = None, 0, runs_of_group
            numbers = f'{first}' if runs_of_group == 1 else f'{first}-{started}'
            label = f'{numbers}/{runs} {name}'
            bar.update(task, description=f'{numbers}/{runs} compiling {name}', refresh=True)
            show(f'{label}: compiling')

        def report(entry: Entry) -> None:
            nonlocal done, best, last, reported, training
            if last and entry['round'] != last:
                training = reported
            # A resumed group continues after rounds that an earlier process reported.
            new = 1 if done else 1 + (entry['round'] - 1) * group_runs
            done += new
            reported = reported + 1 if entry['round'] == last else 1
            last = entry['round']
            if entry['test_accuracy'] is not None:
                others = (best or 0.0) if reported > 1 else 0.0
                best = max(others, entry['test_accuracy'])
            bar.update(task, advance=new, description=label)
            tenth = 10 * last // run_rounds > 10 * (last - 1) // run_rounds
            accuracy = '-' if best is None else f'{best:.2%}'
            of = ' of the best run' * (group_runs > 1)
            show(
                f'  round {last}, {100 * last // run_rounds} %: accuracy{of} {accuracy}',
                now=reported == training and (last == run_rounds or (group_runs > 1 and tenth)),
            )

        yield begin, report


@contextlib.contextmanager
def _open_bar(
    *columns: ProgressColumn, quiet: bool, timed: bool = False
) -> Iterator[tuple[Progress, Callable[..., None]]]:
    """Open a bar on a terminal; yield it and the `show` of the lines that replace it elsewhere."""
    animated = console.can_animate()
    with (
        Progress(*columns, console=console.TERMINAL, disable=quiet or not animated) as bar,
        console.minute_lines(timed=timed, quiet=quiet or animated) as show,
    ):
        yield bar, show
