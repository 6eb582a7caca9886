"""Progress bars of one run and of many; lines if the output is not a terminal."""

import contextlib
import dataclasses
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


@dataclasses.dataclass
class _Group:
    """Runs in one program."""

    label: str = ''
    runs: int = 1
    rounds: int = 0  # of all runs
    done: int = 0
    last: int = 0  # the last round
    reported: int = 0  # how many runs have reported it
    training: int = 1  # how many runs train; --halving stops others
    best: float | None = None  # accuracy in the last evaluation; None before the first

    def add(self, entry: Entry) -> int:
        """Count a finished round of a run; return how many rounds are new."""
        if self.last and entry['round'] != self.last:
            self.training = self.reported
        # A resumed group continues after rounds that an earlier process reported.
        new = 1 if self.done else 1 + (entry['round'] - 1) * self.runs
        self.done += new
        self.reported = self.reported + 1 if entry['round'] == self.last else 1
        self.last = entry['round']
        if entry['test_accuracy'] is not None:
            others = (self.best or 0.0) if self.reported > 1 else 0.0
            self.best = max(others, entry['test_accuracy'])
        return new


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
    started, group = 0, _Group()
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
            nonlocal started, group
            # The group before may have ended early, or another process may train it.
            bar.update(task, advance=group.rounds - group.done)
            first = started + 1
            started += runs_of_group
            numbers = f'{first}' if runs_of_group == 1 else f'{first}-{started}'
            label = f'{numbers}/{runs} {name}'
            group = _Group(label, runs_of_group, rounds_of_group, training=runs_of_group)
            bar.update(task, description=f'{numbers}/{runs} compiling {name}', refresh=True)
            show(f'{label}: compiling')

        def report(entry: Entry) -> None:
            bar.update(task, advance=group.add(entry), description=group.label)
            last, every = group.last, group.rounds // group.runs
            tenth = group.runs > 1 and 10 * last // every > 10 * (last - 1) // every
            of = ' of the best run' * (group.runs > 1)
            accuracy = '-' if group.best is None else f'{group.best:.2%}'
            show(
                f'  round {last}, {100 * last // every} %: accuracy{of} {accuracy}',
                now=group.reported == group.training and (last == every or tenth),
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
