"""Fill the disk while a run writes, remove its folder or make it read-only, and continue.

    python -m experiments.stress.full_disk --output=experiments/results/full_disk_cpu.json

One write after another fails, and disks in memory (tmpfs, which need root) have growing sizes. A
failure must be an error in one line. With room again, the same command must give the results of an
undisturbed run.
"""

import contextlib
import errno
import functools
import itertools
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from absl import flags

from experiments.benchmarks.measuring import reporting
from experiments.stress import power_loss
from jaxfed.internal import files
from jaxfed.recording import checkpoints, log
from jaxfed.recording.run_files import METRICS

REFUSALS = 'no checkpoint in', 'holds a run without config.json (checkpoints)'
NOBODY = 65534  # a user without rights; root may write to read-only folders


class Count(NamedTuple):
    """Numbers of runs by outcome."""

    tries: int
    completed: int  # the failed write was not needed
    stopped: int  # with an error in one line, and continued
    refused: int  # stopped, and then an error that names the checkpoints
    failures: list[str]  # in words


@contextlib.contextmanager
def failing_write(number: int) -> Iterator[Callable[[], int]]:
    """Fails the write with this number, from 1; yields a function that counts the writes so far."""
    count = 0

    def write() -> None:
        nonlocal count
        count += 1
        if count == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Lines(FileIO):
        def write(self, data: Any) -> int:
            try:
                write()
            except OSError:
                super().write(data[: len(data) // 2])
                raise
            return super().write(data)

    sync, settle, save = files._sync, log.settle, checkpoints.save

    def failing_sync(path: Path) -> None:
        write()
        sync(path)

    def failing_settle(file: FileIO) -> None:
        write()
        settle(file)

    def failing_save(*arguments: Any) -> None:
        write()
        save(*arguments)

    with (
        mock.patch.object(files, '_sync', failing_sync),
        mock.patch.object(log, 'settle', failing_settle),
        mock.patch.object(checkpoints, 'save', failing_save),
        mock.patch.object(log, 'open_lines', lambda workdir: Lines(workdir / METRICS, 'ab')),
    ):
        yield lambda: count


def lose(folder: Path) -> None:
    """Removes a folder, also if a checkpoint is written into it meanwhile."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def lock_out(folder: Path) -> None:
    """Makes a folder read-only for this process."""
    paths = [folder, *folder.rglob('*')]
    for path in paths:
        path.chmod(0o500 if path.is_dir() else 0o400)
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, NOBODY, NOBODY)
        os.seteuid(NOBODY)


def unlock(folder: Path) -> None:
    """Undoes `lock_out`."""
    if os.getuid() == 0:
        os.seteuid(0)
    for path in [folder, *folder.rglob('*')]:
        path.chmod(0o700)


Act = Callable[[Path], None]
TAKEN: tuple[tuple[Act, Act], ...] = ((lose, lambda folder: None), (lock_out, unlock))


def try_once(
    folder: Path,
    job: power_loss.Job,
    reference: Sequence[Any],
    train: Callable[[], Sequence[Any] | None],
    repair: Callable[[], object] = lambda: None,
) -> str:
    """Trains a job while something fails, then to its end.

    Args:
      folder: of the job.
      job: the experiments.
      reference: the results of an undisturbed job.
      train: trains it while something fails; returns the results if it reads them.
      repair: called before it continues.

    Returns:
      'completed', 'stopped', 'refused' if the rest cannot continue, or the failure in words.
    """
    try:
        results, result = train(), 'completed'
    except (ValueError, OSError) as error:
        results, result = [], 'stopped' if '\n' not in str(error) else f'unclear: {error}'
    except Exception as error:
        results, result = [], f'{type(error).__name__}: {error}'
    finally:
        repair()
    try:
        results = results or job.finish(folder)
    except (ValueError, OSError) as error:
        # Orbax may write to a new folder when the old one is removed.
        refused = any(words in str(error) for words in REFUSALS)
        if result == 'stopped' and refused:
            return 'refused'
        return f'{result}, then not continued: {error}'
    same = power_loss.are_equal(results, reference, power_loss.TOLERANCE)
    return result if same else f'{result}, then other results'


def add_up(outcomes: dict[str, str]) -> Count:
    """Counts outcomes by the names of the tries."""
    values = list(outcomes.values())
    known = ('completed', 'stopped', 'refused')
    failures = [f'{name}: {value}' for name, value in outcomes.items() if value not in known]
    completed, stopped, refused = (values.count(outcome) for outcome in known)
    return Count(len(values), completed, stopped, refused, failures)


def fail_every_write(job: power_loss.Job, folder: Path, step: int = 1) -> Count:
    """Fails every write of a job in turn, or every `step`-th one."""
    with failing_write(0) as count:
        reference = job.finish(folder)
    outcomes = {}
    for number in range(1, count() + 1, step):
        lose(folder)

        def train(number: int = number) -> Sequence[Any]:
            with failing_write(number):
                return job.finish(folder)

        outcomes[f'write {number}'] = try_once(folder, job, reference, train)
    return add_up(outcomes)


def fill_disks(job: power_loss.Job, folder: Path, sizes: Sequence[int]) -> Count:
    """Trains a job on disks of these sizes in KiB."""
    folder.mkdir()
    reference = job.finish(folder / 'work')
    outcomes = {}
    for kib in sizes:
        lose(folder / 'work')
        mount(folder, f'size={kib}k')
        try:
            outcomes[f'{kib} KiB'] = try_once(
                folder / 'work',
                job,
                reference,
                lambda: job.finish(folder / 'work'),
                lambda: mount(folder, 'remount,size=1g'),
            )
        finally:
            subprocess.run(['umount', folder], check=True)
        (folder / 'work').mkdir()
    return add_up(outcomes)


def mount(folder: Path, options: str) -> None:
    """Puts a folder on a disk in memory, or changes the options of its disk."""
    subprocess.run(['mount', '-t', 'tmpfs', '-o', options, 'tmpfs', folder], check=True)


def take_away(job: power_loss.Job, folder: Path) -> Count:
    """Removes the folder of a job, or makes it read-only, after every round."""
    reference = job.finish(folder)
    outcomes = {}
    for round_, (act, repair) in itertools.product(range(1, power_loss.ROUNDS + 1), TAKEN):
        lose(folder)

        def after(number: int, round_: int = round_, act: Act = act) -> None:
            if number == round_:
                act(folder)

        train = functools.partial(job.train, folder, after)
        outcome = try_once(folder, job, reference, train, functools.partial(repair, folder))
        outcomes[f'{act.__name__} after round {round_}'] = outcome
    return add_up(outcomes)


def survive(sizes: Sequence[int], job: power_loss.Job) -> dict[str, Count]:
    """Tries everything; disks of limited size only as root.

    Args:
      sizes: of the disks, in KiB.
      job: the experiments.

    Returns:
      Kind -> numbers of outcomes.
    """
    with power_loss.fast_runs(pictures=True), tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        place.chmod(0o755)  # another user reads in it
        found = {
            'failed writes': fail_every_write(job, place / 'writes'),
            'taken away': take_away(job, place / 'taken'),
        }
        if os.geteuid() == 0:
            found['small disks'] = fill_disks(job, place / 'disk', sizes)
        return found


def main(args: flags.FlagValues) -> None:
    """Fills, prints and writes."""
    logging.getLogger('jaxfed').setLevel(logging.ERROR)  # warnings of damaged checkpoints
    began, sizes = time.monotonic(), list(map(int, args.sizes))
    found = {
        f'{kind}, {name}': count._asdict()
        for name, job in power_loss.JOBS.items()
        for kind, count in survive(sizes, job).items()
    }
    print(json.dumps(found, indent=2))
    described = {
        'machine': reporting.machine(),
        'settings': power_loss.SETTINGS,
        'sizes_kib': sizes,
        'seconds': round(time.monotonic() - began),
    }
    reporting.write(described | found, args.output)
    if any(count['failures'] for count in found.values()):
        raise SystemExit(1)


if __name__ == '__main__':
    kibs = (64, 256, *range(512, 4096, 512), *range(4096, 20481, 2048))
    flags.DEFINE_list('sizes', [str(kib) for kib in kibs], 'Sizes of the disks in KiB.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
