"""Trains experiments in as few programs as possible, each recorded as if alone."""

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from filelock import Timeout

from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.internal.backend import on_cpu
from jaxfed.internal.locks import exclusive_lock, lock_file
from jaxfed.internal.messages import first_line
from jaxfed.internal.signals import Interrupted
from jaxfed.recording import run_files
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.runs.experiment import Experiment, parts_of
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.rounds import Stop, never
from jaxfed.runs.shared_program import TRACER_ERROR, program_key
from jaxfed.runs.simulate import Diverged, Result, train_experiments

# Next to the work directories: one folder of checkpoints for each program.
SHARED = '.together'
MEMBERS = 'members.json'

# Default number of experiments in a program. All of them end at the same time, so a larger number
# delays the first result. One experiment nearly fills the cores of a CPU; a few more share the
# compilation and balance clients of unequal sizes. An accelerator needs more clients at once, the
# smaller the network: of `cnn` with grouped convolutions, 16 and 32 experiments train 1.3 times as
# fast as one on an H200.
MOST, MOST_ON_CPU = 32, 8

TrainingResult = Result | Diverged | TooLarge

# Numbers of the experiments in a program -> the decision which of them stop early.
StopOf = Callable[[Sequence[int]], Stop]


def program_size(config: Config, *, most: int = 0) -> int:
    """The largest number of experiments in a new program.

    Args:
      config: the settings of one of them.
      most: the number that the user chose; 0 for the default of the device.
    """
    if config.stream == 'on':
        return 1
    return most or (MOST_ON_CPU if on_cpu() else MOST)


def unwritten(folder: Path) -> list[Path]:
    """The files of programs that were trained, but ended before all summaries were written."""
    return sorted((folder / SHARED).glob(f'*/{run_files.SUMMARIES}'))


def finish_program(path: Path, folder: Path) -> None:
    """Write the summaries of a program that ended after training, before all had been written.

    Args:
      path: summaries.json, which names them.
      folder: the parent of the work directories.
    """
    try:
        recorded = files.read_json(path)
    except ValueError:
        if path.exists():
            raise
        return  # another process has finished the program
    root = Path(os.path.abspath(folder))
    summaries = {Path(os.path.abspath(path.parent / name)): recorded[name] for name in recorded}
    for workdir, summary in summaries.items():
        if root not in workdir.parents:
            raise ValueError(f'{path} is damaged: remove {path.parent} to restart its experiments.')
        if summary is not None:
            run_files.check_summary(summary, path)
    # Other runs were moved away, or begun again alone.
    workdirs = [w for w in summaries if summaries[w] is not None and has_shared_checkpoints(w)]
    with contextlib.ExitStack() as locks:
        try:
            for workdir in workdirs:
                locks.enter_context(exclusive_lock(workdir))
        except ValueError:  # the process that trained them still writes
            return
        for workdir in workdirs:
            if path.exists() and not (workdir / run_files.SUMMARY).exists():
                files.write_json(workdir / run_files.SUMMARY, summaries[workdir])
        _remove(path.parent)


def group(
    configs: Sequence[Config],
    folder: Path,
    *,
    most: int = 0,
    settings: Sequence[Hashable] = (),
) -> list[list[int]]:
    """Group unfinished experiments by the program that trains them.

    Experiments that were interrupted in one program continue in one program. An experiment that was
    interrupted alone, or whose images are streamed, is a group by itself.

    Args:
      configs: the settings of the experiments, each with its work directory.
      folder: the parent of the work directories.
      most: the largest size of a new group; 0 for the default of the device.
      settings: one for each experiment if those of equal settings must be in one group; () if not.

    Returns:
      Groups of indices into `configs`. The groups of a program have nearly equal sizes, because
      groups of equal size share the compiled program.

    Raises:
      ValueError: if `configs` has only some of the experiments that were interrupted in one
        program, or one of these was moved away or restarted.
    """
    groups = _interrupted_groups(configs, folder)
    fresh = sorted(set(range(len(configs))) - set(itertools.chain(*groups)))

    def key(i: int) -> tuple[str, int]:
        config = configs[i]
        interrupted_alone = (Path(str(config.workdir)) / FOLDER).exists()
        alone = interrupted_alone or program_size(config, most=most) == 1
        parts = parts_of(config)
        return program_key(config, parts), i if alone else -1

    for numbers in _group_by(fresh, key):
        units = _group_by(numbers, settings.__getitem__) if settings else [[i] for i in numbers]
        most_units = program_size(configs[numbers[0]], most=most) // max(map(len, units))
        count = -(-len(units) // max(most_units, 1))
        cuts = [len(units) * k // count for k in range(count + 1)]
        groups += [[*itertools.chain(*units[a:b])] for a, b in itertools.pairwise(cuts)]
    return sorted(groups, key=min)


def _group_by(numbers: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for i in numbers:
        groups.setdefault(key(i), []).append(i)
    return list(groups.values())


def _interrupted_groups(configs: Sequence[Config], folder: Path) -> list[list[int]]:
    index = {Path(str(config.workdir)).absolute(): i for i, config in enumerate(configs)}
    groups: list[list[int]] = []
    for path in sorted((folder / SHARED).glob(f'*/{MEMBERS}')):
        members = _read_members(path, folder)
        if index.keys() >= {*members} and all(map(has_shared_checkpoints, members)):
            # An experiment is in one group only.
            groups.append([index.pop(member) for member in members])
        elif any(map(_is_trained_elsewhere, members)):
            continue  # it was not interrupted
        elif reason := _refusal(members, index.keys(), path.parent):
            raise ValueError(reason)
    return groups


def _refusal(members: Sequence[Path], known: Set[Path], place: Path) -> str | None:
    """Why an interrupted program cannot continue without some members; None if others restart."""
    if not _has_rounds(place):
        return None
    lost = [member for member in members if not has_shared_checkpoints(member)]
    if lost:
        if len(lost) == len(members) or known.isdisjoint(members):
            return None
        reason = f'{lost[0]} is without {run_files.METRICS}'
        if (lost[0] / FOLDER).exists():
            reason = f'{lost[0]} was begun again alone'
        return (
            f'{len(members)} experiments were interrupted together, and {reason}: put its '
            f'files back to continue, or remove {place} to restart the others.'
        )
    # Absent members with a summary were trained alone.
    absent = [member for member in members if member not in known]
    missing = [member.name for member in absent if not (member / run_files.SUMMARY).exists()]
    if len(missing) in (0, len(members)):
        return None
    names = ', '.join(missing[:4] + ['...'] * (len(missing) > 4))
    return (
        f'{members[0].parent}: {len(members)} experiments were interrupted together, but '
        f'{len(missing)} of them are missing now ({names}): include all of them to '
        f'continue, or remove {place} to restart them.'
    )


def lock_of(workdir: Path) -> Path:
    """The lock that a process holds while it trains an experiment of several."""
    return workdir.with_name(f'.{workdir.name}.lock')


def _is_trained_elsewhere(workdir: Path) -> bool:
    """Whether another process holds the lock of an experiment."""
    if not workdir.exists():
        return False
    try:
        with lock_file(lock_of(workdir), timeout=0):
            return False
    except Timeout:
        return True


def _has_rounds(place: Path) -> bool:
    """Whether a folder of checkpoints has one."""
    return any((place / FOLDER).glob('[0-9]*'))


def has_shared_checkpoints(workdir: Path) -> bool:
    """Whether an experiment was begun in a program with others."""
    return (workdir / run_files.METRICS).exists() and not (workdir / FOLDER).exists()


def has_checkpoints(workdir: Path, folder: Path) -> bool:
    """Whether an experiment, begun alone or with others of a folder, has records of its state."""
    shared = (folder / SHARED).glob(f'*/{MEMBERS}')
    together = any(workdir.absolute() in _read_members(path, folder) for path in shared)
    return together or (workdir / FOLDER).exists()


def train_group(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    settings: Sequence[Hashable] = (),
    stop_of: StopOf = lambda numbers: never,
    watch: Callable[[dict[str, Any]], None] = lambda entry: None,
    late: Callable[[int], None] = lambda signal: None,
    quiet: bool = True,
) -> list[TrainingResult]:
    """Train experiments that can share a program, in smaller groups if they do not fit.

    Args:
      experiments: X, set up.
      folder: the parent of their work directories.
      settings: X, as in `group`; a single setting that does not fit is divided nevertheless.
      stop_of: decides which experiments of a program stop early; it receives their numbers.
      watch: called with the metrics of each round of each experiment.
      late: called with a signal in the last round of all.
      quiet: print nothing.

    Returns:
      The result of each, or the error of one that diverged or does not fit, alone or with the
      others of its begun program.

    Raises:
      ValueError: as `simulate.train_experiments`, like all other errors.
    """
    results: dict[int, TrainingResult] = {}
    signals: list[int] = []
    pending = [list(range(len(experiments)))]
    while pending:
        numbers = pending.pop(0)
        part = [experiments[x] for x in numbers]
        begun = all((experiment.workdir / run_files.METRICS).exists() for experiment in part)
        checkpoints = part[0].workdir if len(part) == 1 else _shared_folder(part, folder)
        if begun and not _has_rounds(checkpoints):
            places = part[0].workdir if len(part) == 1 else f'{len(part)} experiments in {folder}'
            console.say(f'{places}: no checkpoint, starting again at round 1', quiet=quiet)
        try:
            trained = train_experiments(
                part,
                checkpoints,
                quiet=True,
                watch=lambda _, entry: watch(entry),
                stop=stop_of(numbers),
                late=signals.append,
            )
        except TooLarge as error:
            if len(part) == 1:
                results[numbers[0]] = error
                continue
            if _has_rounds(checkpoints):
                advice = (
                    f'{len(part)} experiments that one program has begun do not fit into memory '
                    f'now: continue with more memory and the same --stream, or remove '
                    f'{checkpoints} to restart them.'
                )
                results |= dict.fromkeys(numbers, TooLarge(advice))
                continue
            smaller = _halves(numbers, settings)
            reason = f'{len(part)} experiments do not fit into memory: training them in two parts'
            if settings and len({settings[i] for i in numbers}) > 1:
                reason += ', which --halving compares apart'
        except TRACER_ERROR as error:
            smaller = _group_by(numbers, lambda x: _exact_key(experiments[x]))
            if len(smaller) == 1 or _has_rounds(checkpoints):
                raise
            reason = (
                f'one program for each hyper-parameter: --method={part[0].config.method} may take '
                f'Python numbers only ({first_line(error)})'
            )
            if settings:
                reason += ', which --halving compares apart'
        else:
            results |= zip(numbers, trained, strict=True)
            if len(part) > 1:
                _remove(checkpoints)
            if signals and pending:
                raise Interrupted('stopped after the last round of a program', signals[0])
            for signal in signals:
                late(signal)
            continue
        pending = smaller + pending
        _remove(checkpoints)
        console.say(reason, quiet=quiet)
    return [results[x] for x in range(len(experiments))]


def _halves(numbers: Sequence[int], settings: Sequence[Hashable]) -> list[list[int]]:
    """Cut some experiments in half, if possible where another of their settings begins."""
    units = _group_by(numbers, settings.__getitem__) if settings else []
    if len(units) < 2:
        units = [[i] for i in numbers]
    half = (len(units) + 1) // 2
    return [[*itertools.chain(*part)] for part in (units[:half], units[half:])]


def _exact_key(experiment: Experiment) -> str:
    return program_key(experiment.config, experiment.parts, exact=True)


def _shared_folder(experiments: Sequence[Experiment], folder: Path) -> Path:
    """Return the folder of the checkpoints of these experiments, and remove stale ones."""
    workdirs = [experiment.workdir.absolute() for experiment in experiments]
    members = [str(workdir.relative_to(folder.absolute())) for workdir in workdirs]
    name = hashlib.blake2b('\n'.join(sorted(members)).encode(), digest_size=8).hexdigest()
    # The records of these checkpoints were moved away.
    for path in (folder / SHARED).glob(f'*/{MEMBERS}'):
        if path.parent.name != name and {*workdirs} & {*_read_members(path, folder)}:
            _remove(path.parent)
    place = folder / SHARED / name
    if not all(map(has_shared_checkpoints, workdirs)):
        _remove(place)
    place.mkdir(parents=True, exist_ok=True)
    if not (place / MEMBERS).exists():
        files.write_json(place / MEMBERS, {'members': members})
    return place


def _read_members(path: Path, folder: Path) -> list[Path]:
    """Return the work directories of the experiments in one program."""
    try:
        names = files.read_json(path)['members']
        if not names or len(set(names)) < len(names):
            raise ValueError('it must have different names')
        return [folder.absolute() / name for name in names]
    except (ValueError, KeyError, TypeError) as error:
        # The order of its checkpoints' rows is unknown.
        raise ValueError(
            f'{path} is damaged: remove {path.parent} to restart its experiments.'
        ) from error


def _remove(place: Path) -> None:
    """Remove a folder of checkpoints, and its parent if that is empty then."""
    (place / run_files.SUMMARIES).unlink(missing_ok=True)  # needs the rest
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.parent.rmdir()
