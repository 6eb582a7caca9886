"""What a person sees during and after training."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.control import Control
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import ControlType
from rich.table import Table

from jaxfed.partition.heatmap import print_heatmap
from jaxfed.values import printable

_RECENT = 10  # rounds whose mean time says how long the others take
# What is printed may hold names of files, in which brackets and colons are themselves.
_console = Console(highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def status(text: str, *, quiet: bool) -> Iterator[None]:
    """Say what is going on while it goes on.

    Args:
      text: in a word or two.
      quiet: say nothing.

    Yields:
      Nothing.
    """
    if quiet:
        yield
        return
    began = time.perf_counter()
    with _console.status(text):
        yield
    _console.print(f'{text}: {time.perf_counter() - began:.1f} s')


def say(text: str, *, quiet: bool) -> None:
    """Print a line.

    Args:
      text: the line.
      quiet: print nothing.
    """
    if not quiet:
        _console.print(text, soft_wrap=True)


@contextlib.contextmanager
def progress(rounds: int, *, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the progress over rounds.

    On a terminal as a bar; elsewhere, as in a log file, as about ten lines.

    Args:
      rounds: in all.
      quiet: show nothing.

    Yields:
      A function that takes the metrics of each round done.
    """
    columns = (
        TextColumn('round {task.completed:>4.0f}/{task.total:.0f}'),
        BarColumn(bar_width=14),
        TextColumn('{task.description}'),
    )
    bar = Progress(*columns, console=_console, disable=quiet or not _moves())
    in_lines = not quiet and not _moves()
    every = max(rounds // 10, 1)
    seconds: deque[float] = deque(maxlen=_RECENT)
    with bar:
        task = bar.add_task('', total=rounds)
        accuracy = '      -'

        def report(entry: dict[str, Any]) -> None:
            nonlocal accuracy
            if entry['test_accuracy'] is not None:
                accuracy = f'{entry["test_accuracy"]:7.2%}'
            loss = entry['train_loss']
            lost = 'failed' if entry.get('failed') else '-'
            done = entry['round']
            seconds.append(entry['seconds'])
            left = time_in_words(sum(seconds) / len(seconds) * (rounds - done))
            text = (
                f'accuracy {accuracy}  loss {lost if loss is None else f"{loss:7.4f}":>7}  '
                f'{left} left'
            )
            bar.update(task, completed=done, description=text)
            if in_lines and (done % every == 0 or done == rounds or entry.get('failed')):
                _console.print(f'round {done:>4}/{rounds}  {text}', soft_wrap=True)

        yield report


def silence() -> None:
    """Print nothing from here on but errors, as a process that others speak for."""
    _console.quiet = True


def _moves() -> bool:
    """Whether the output is a terminal that can go back on a line, as TERM=dumb cannot."""
    return _console.is_terminal and not _console.is_dumb_terminal


def time_in_words(seconds: float) -> str:
    """A time as a person reads it, '42 s' or '1:02:33'.

    Args:
      seconds: the time.

    Returns:
      Seconds below two minutes, else hours, minutes and seconds.
    """
    whole = round(seconds)
    if whole < 120:
        return f'{whole} s'
    return f'{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}'


@contextlib.contextmanager
def grid_progress(
    runs: int, rounds: int, *, quiet: bool
) -> Iterator[tuple[Callable[..., None], Callable[[dict[str, Any]], None]]]:
    """Show the progress over many runs.

    On a terminal as a bar over all their rounds; elsewhere as a line for each run or group of runs
    in one program, and about ten for the rounds of a group.

    Args:
      runs: how many.
      rounds: of all of them together.
      quiet: show nothing.

    Yields:
      A function that takes the name of what begins, its rounds in all and how many runs it is, one
      if it is not told; and one that takes the metrics of each of their rounds.
    """
    columns = (
        TextColumn('{task.fields[name]}'),
        BarColumn(bar_width=12),
        TextColumn('{task.percentage:>3.0f}%'),
        TimeElapsedColumn(),
        TextColumn('+'),
        TimeRemainingColumn(compact=True),
    )
    bar = Progress(*columns, console=_console, disable=quiet or not _moves())
    in_lines = not quiet and not _moves()
    begun, began, of_run, done, group, best = 0, time.perf_counter(), 0, 0, 1, 0.0
    with bar:
        task = bar.add_task('', total=rounds, name='')

        def begin(name: str, rounds_in_all: int, together: int = 1) -> None:
            nonlocal begun, of_run, done, group, best
            # What a run that ended early, or that another process is at, has left out.
            bar.update(task, advance=of_run - done)
            first = begun + 1
            begun, of_run, done, group, best = begun + together, rounds_in_all, 0, together, 0.0
            text = f'{first}/{runs}' if together == 1 else f'{first}-{begun}/{runs}'
            bar.update(task, name=f'{text} {name}')
            if in_lines:
                _console.print(
                    f'{text} {name} ({time_in_words(time.perf_counter() - began)})', soft_wrap=True
                )

        def report(entry: dict[str, Any]) -> None:
            nonlocal done, best
            before, done = done, done + 1
            bar.update(task, advance=1)
            best = max(best, entry['test_accuracy'] or 0.0)
            if in_lines and group > 1 and 10 * done // of_run > 10 * before // of_run:
                _console.print(
                    f'  round {entry["round"]}, {100 * done // of_run} %: best accuracy '
                    f'{best:.2%} ({time_in_words(time.perf_counter() - began)})',
                    soft_wrap=True,
                )

        yield begin, report


def show_summary(summary: dict[str, Any], workdir: Path) -> None:
    """Print the summary table and where the files are.

    Args:
      summary: as in summary.json.
      workdir: the work directory.
    """
    table = Table(title=f'{summary["method"]} on {summary["dataset"]}', show_header=False)
    table.add_column(style='bold')
    table.add_column(justify='right')
    rows = {'training': f'diverged in round {summary["rounds"]}'} if summary['failed'] else {}
    on = summary['evaluated_on']
    if on == 'validation':
        rows['evaluated on'] = 'held-out training examples; test data was not used'
    if summary['best_round'] is not None:
        final = f'{summary["final_accuracy"]:.2%}'
        rows['final accuracy'] = f'{final} after {summary["rounds"]} rounds'
        rows['best accuracy'] = f'{summary["best_accuracy"]:.2%} in round {summary["best_round"]}'
    rows |= {
        'time': f'{summary["seconds_total"]:.1f} s, of it compiling '
        f'{summary["compile_seconds"]:.1f} s',
        'a round': f'{summary["seconds_per_round"]:.3f} s, '
        f'{summary["client_steps_per_second"]:.0f} client-steps/s',
    }
    shares = [f'{on} data {summary["evaluation_share"]:.0%} of the time']
    if summary['local_accuracy'] is not None:
        rows['average local accuracy'] = f'{summary["local_accuracy"]:.2%} when last evaluated'
        shares.append(f'local models {summary["local_evaluation_share"]:.0%}')
    if summary['personal_accuracy'] is not None:
        rows['on own held-out examples'] = (
            f'local models {summary["personal_accuracy"]:.2%}, '
            f'the global one {summary["personal_global_accuracy"]:.2%}'
        )
    rows['evaluation'] = ', '.join(shares)
    if summary['target_accuracy'] is not None:
        reached = summary['rounds_to_target']
        name = f'rounds to {summary["target_accuracy"]:.0%}'
        rows[name] = str(reached) if reached else 'not reached'
    rows |= {'cost': cost} if (cost := in_words(summary['cost'])) else {}
    if summary['auxiliary_examples']:
        rows['auxiliary data'] = f'{summary["auxiliary_examples"]} examples on the server'
    for row in rows.items():
        table.add_row(*row)
    _console.print(table)
    _console.print(f'files: {workdir}/', soft_wrap=True)
    for path in sorted(workdir.glob('[!.]*')):
        _console.print(f'  {path.name}', soft_wrap=True)


def show_sweep(title: str, names: list[str], rows: list[list[str]]) -> None:
    """Print what the settings of a sweep came to.

    Args:
      title: of the table.
      names: of its columns.
      rows: a setting each.
    """
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify='right')
    for row in rows:
        table.add_row(*row)
    _console.print(table)


def in_words(cost: dict[str, Any]) -> str:
    """What a method costs beyond FedAvg, in a few words.

    Args:
      cost: of `costs.Cost`, as a dict.

    Returns:
      The words, '' for nothing.
    """
    base = cost['parameter_bytes']

    def times(bytes_: int) -> str:
        return f'{bytes_ / base:.2g}x' if bytes_ >= 0.05 * base else f'{bytes_} B'

    words = []
    for name in ('upload', 'download'):
        extra = cost[f'{name}_bytes'] - base
        if extra >= 1:
            words.append(f'{name} +{times(extra)}')
    for name, state in (('client', 'client_state_bytes'), ('server', 'server_state_bytes')):
        if cost[state]:
            words.append(f'{name} keeps {times(cost[state])}')
    if cost['forward_passes']:
        words.append(f'forward passes +{cost["forward_passes"]}')
    if cost['data_passes']:
        words.append(f'passes over the data +{cost["data_passes"]}')
    if cost['auxiliary']:
        words.append(f'{cost["auxiliary"]} examples a class')
    return ', '.join(words)


def show_plan(rows: dict[str, str], counts: np.ndarray) -> None:
    """Print what an experiment would be, and the data of its first clients.

    Args:
      rows: what -> in words.
      counts: [N, C] examples of each class of each client.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style='bold', no_wrap=True)
    table.add_column()
    for row in rows.items():
        table.add_row(*row)
    _console.print(table)
    print_heatmap(counts, _console, most=5)


def show_warning(message: str) -> None:
    """Print to standard error what is not as it could be.

    Args:
      message: what it is and what would do.
    """
    _errors().print(f'warning: {_in_a_line(message)}', soft_wrap=True)


def show_error(message: str) -> None:
    """Print an error to standard error, in words, without a traceback.

    Args:
      message: what is wrong and what would do.
    """
    _errors().print(f'error: {_in_a_line(message)}', soft_wrap=True)


def show_last_words(message: str) -> None:
    """Print an error where the process is ended in the middle of anything.

    Args:
      message: what is left.
    """
    if _moves():  # A bar may be on the line, and the cursor hidden.
        _console.control(
            Control.move_to_column(0),
            Control((ControlType.ERASE_IN_LINE, 2)),
            Control.show_cursor(True),
        )
    show_error(message)


def _in_a_line(message: str) -> str:
    """A message without line breaks and control characters, which names of files may hold."""
    return printable(' '.join(message.splitlines()))


def _errors() -> Console:
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def show_methods(rows: list[tuple[str, str, list[tuple[str, str]]]]) -> None:
    """Print the methods with their hyper-parameters, costs and papers.

    Args:
      rows: (name, one sentence, costs and paper, [(flag, default)]) a method.
    """
    table = Table(
        title="Methods; combine them with '+'",
        caption="Costs are beyond FedAvg's, of one client and round; x is the size of the "
        "network's parameters, here those of cnn on CIFAR-10.",
        show_lines=True,
    )
    table.add_column('--method', style='bold', no_wrap=True)
    table.add_column('hyper-parameters', no_wrap=True)
    table.add_column('what it does, and its paper')
    for name, text, flags in rows:
        table.add_row(name, '\n'.join(f'{flag}={value}' for flag, value in flags), text)
    _console.print(table)


def show_measures(rows: list[tuple[str, str, tuple[str, ...], bool]]) -> None:
    """Print the measures with what they record.

    Args:
      rows: (name, one sentence and cost, fields of metrics.jsonl, whether it needs local models) a
        measure.
    """
    table = Table(
        title='Measures; join them with commas',
        caption='* needs --local_eval_every, in whose rounds it is taken.',
        show_lines=True,
    )
    table.add_column('--measure', style='bold', no_wrap=True)
    table.add_column('in metrics.jsonl', no_wrap=True)
    table.add_column('what it is')
    for name, text, fields, local in rows:
        table.add_row(name + ' *' * local, '\n'.join(fields), text)
    _console.print(table)
