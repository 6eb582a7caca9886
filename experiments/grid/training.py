"""Checks and trains the runs of a grid, and shows their progress."""

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from experiments.grid import runner
from experiments.grid.runner import Cell
from jaxfed.engine.devices import use_every_core
from jaxfed.internal import command_line, console
from jaxfed.internal.program_cache import keep_programs
from jaxfed.recording import run_files
from jaxfed.runs.rounds import Stop, never


def train(
    cells: Sequence[Cell],
    output: Path,
    *,
    together: int,
    stop_of: Callable[[Sequence[Cell]], Stop] = lambda cells: never,
    halves: bool = False,
    untrained: Sequence[Cell] = (),
) -> dict[str, str]:
    """Check all runs of a grid, then train the unfinished ones on all cores.

    Args:
      cells: the runs.
      output: folder of the results; created after the check.
      together: see `runner.run_cells`.
      stop_of: see `runner.run_cells`.
      halves: see `runner.run_cells`.
      untrained: cells that are only checked.

    Returns:
      The failed runs, name -> reason.

    Raises:
      ValueError: for invalid settings, data or folders, before the first run.
      OSError: if data cannot be read.
    """
    with progress_lines(cells):
        check([*cells, *untrained], output)
        return runner.run_cells(cells, together=together, stop_of=stop_of, halves=halves)


def check(cells: Sequence[Cell], output: Path) -> None:
    """Check all runs of a grid, then create its folder; errors as of `train`."""
    with console.status('checking', quiet=False):
        runner.check(cells)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f'--output={output} cannot be created: {error}.') from error


@contextlib.contextmanager
def progress_lines(cells: Sequence[Cell], *, seconds: float = 60) -> Iterator[None]:
    """Print finished runs and rounds at regular intervals, unless a terminal shows a bar."""
    if console.can_animate():
        yield
        return
    ended, start = threading.Event(), time.monotonic()

    def run() -> None:
        while not ended.wait(seconds):
            elapsed = datetime.timedelta(seconds=round(time.monotonic() - start))
            console.say(f'{progress_of(cells)} ({elapsed})')

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def progress_of(cells: Sequence[Cell]) -> str:
    """The recorded progress of runs, such as '1 of 4 runs, 130 of 400 rounds'."""
    done = sum((cell.folder / run_files.SUMMARY).exists() for cell in cells)
    logs = [cell.folder / run_files.METRICS for cell in cells]
    rounds = sum(log.read_bytes().count(b'\n') for log in logs if log.exists())
    total = sum(cell.config.rounds for cell in cells)
    return f'{done} of {len(cells)} runs, {rounds} of {total} rounds'


def use_machine() -> None:
    """Use all cores, and keep compiled programs for the next start."""
    command_line.quiet_libraries()
    with contextlib.suppress(RuntimeError):  # JAX is running already, with its devices
        use_every_core()
    keep_programs()


def show_cells(cells: Sequence[Cell], title: str = '') -> None:
    """Print each run and whether it is finished.

    Raises:
      ValueError: if a folder holds a run with other settings.
    """
    done = [runner.is_done(cell) for cell in cells]
    for cell, finished in zip(cells, done, strict=True):
        state = 'done  ' if finished else 'to run'
        console.say(f'{state}  {cell.name}  {cell.config.rounds} rounds')
    console.say(f'{title}{sum(done)} of {len(cells)} runs are done.')
