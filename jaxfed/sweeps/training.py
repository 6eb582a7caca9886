"""Trains experiments in as few programs as possible, each recorded as if it were trained alone."""

import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxfed import methods
from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.recording import run_files
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.shared_program import program_key
from jaxfed.runs.simulate import Diverged, Result, Stop, never, train_together

# Beside the work directories: a folder of checkpoints for each set of experiments in one program.
SHARED = '.together'
MEMBERS = 'members.json'

# Experiments in a program by default. All of them end at the same time, so with more of them the
# first result is later. On a CPU, whose cores one experiment keeps nearly busy, a few are enough to
# compile once and to even out clients of unequal sizes over the cores. An accelerator wants many
# clients side by side; 32 experiments of 10 clients each fill it.
MOST, MOST_ON_CPU = 32, 8

# What JAX raises where Python or NumPy computes with a traced value.
TRACER_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

Watch = Callable[[int, dict[str, Any]], None]


def group(configs: Sequence[Config], folder: Path, *, most: int = 0) -> list[list[int]]:
    """Groups experiments that are not done by the program that trains them.

    Experiments that were interrupted in one program go on in one program. One that was interrupted
    alone goes on alone, and so does one whose images are streamed.

    Args:
      configs: settings of the experiments, each with its work directory.
      folder: that holds the work directories.
      most: experiments in a group that begins; 0 for the default of the device.

    Returns:
      Groups of places in `configs`, every place in one group; the groups of a program have nearly
      one size, so that a compiled program serves the next group of that size.

    Raises:
      ValueError: if experiments were interrupted in one program and only some of them are among
        these.
    """
    groups = _interrupted_groups(configs, folder)
    left = set(range(len(configs))) - set(itertools.chain(*groups))
    by_program: dict[str, list[int]] = {}
    for i in sorted(left):
        config = configs[i]
        parts = methods.resolve(config.method, config.hyperparameters)
        single = config.stream == 'on' or (Path(str(config.workdir)) / FOLDER).exists()
        by_program.setdefault(program_key(config, parts) + f'{i}' * single, []).append(i)
    most = most or (MOST_ON_CPU if jax.default_backend() == 'cpu' else MOST)
    for places in by_program.values():
        count = -(-len(places) // most)
        cuts = [len(places) * k // count for k in range(count + 1)]
        groups += [places[a:b] for a, b in itertools.pairwise(cuts)]
    return sorted(groups, key=min)


def _interrupted_groups(configs: Sequence[Config], folder: Path) -> list[list[int]]:
    place = {Path(str(config.workdir)).absolute(): i for i, config in enumerate(configs)}
    left = set(range(len(configs)))
    groups: list[list[int]] = []
    for path in sorted((folder / SHARED).glob(f'*/{MEMBERS}')):
        members = _members(path, folder)
        # A member that was moved away or begun anew cannot go on, nor can the others without it.
        if not members or not all(map(_has_shared_checkpoints, members)):
            continue
        asked = [place[member] for member in members if place.get(member) in left]
        if len(asked) == len(members):
            groups.append(asked)
            left -= set(asked)
        elif asked and any((path.parent / FOLDER).glob('[0-9]*')):
            others = [member.name for member in members if place.get(member) not in left]
            shown = ', '.join(others[:4] + ['...'] * (len(others) > 4))
            raise ValueError(
                f'{members[0].parent}: {len(members)} experiments were interrupted together, of '
                f'which {len(others)} are not asked for now ({shown}): ask for all of them, so '
                f'that they go on, or remove {path.parent} to begin them anew.'
            )
    return groups


def _has_shared_checkpoints(workdir: Path) -> bool:
    return (workdir / run_files.METRICS).exists() and not (workdir / FOLDER).exists()


def train_group(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    watch: Watch = lambda x, entry: None,
    stop_of: Callable[[Sequence[int]], Stop] = lambda numbers: never,
    quiet: bool = True,
) -> list[Result | Diverged | TooLarge]:
    """Trains experiments that can share a program; in smaller groups where they do not fit.

    Args:
      experiments: X that are set up.
      folder: that holds their work directories.
      watch: called with an experiment's number and the metrics of each of its rounds.
      stop_of: numbers of the experiments in a program -> the function that ends training of some of
        them early.
      quiet: print nothing.

    Returns:
      The result of each, or the error of one that diverged or does not fit alone.

    Raises:
      ValueError: as `simulate.train_together`, like all other errors.
    """
    results: dict[int, Result | Diverged | TooLarge] = {}
    pending = [list(range(len(experiments)))]
    while pending:
        numbers = pending.pop(0)
        part = [experiments[x] for x in numbers]
        checkpoints = part[0].workdir if len(part) == 1 else _shared_folder(part, folder)

        def watch_part(i: int, entry: dict[str, Any], numbers: list[int] = numbers) -> None:
            watch(numbers[i], entry)

        try:
            trained: Sequence[Result | Diverged | TooLarge] = train_together(
                part, checkpoints, quiet=True, watch=watch_part, stop=stop_of(numbers)
            )
        except TooLarge as error:
            if len(part) > 1:
                half = (len(part) + 1) // 2
                pending = [numbers[:half], numbers[half:], *pending]
                _remove(checkpoints)
                console.say(
                    f'{len(part)} experiments in one program do not fit into memory: in two parts',
                    quiet=quiet,
                )
                continue
            trained = [error]
        except TRACER_ERRORS:
            kinds = _by_exact_program(part)
            if len(kinds) == 1:
                raise
            pending = [[numbers[i] for i in kind] for kind in kinds] + pending
            _remove(checkpoints)
            console.say(
                f'--method={part[0].config.method} takes Python numbers only: a program for each '
                'of its hyper-parameters',
                quiet=quiet,
            )
            continue
        if len(part) > 1:
            _remove(checkpoints)
        results |= dict(zip(numbers, trained, strict=True))
    return [results[x] for x in range(len(experiments))]


def _by_exact_program(experiments: Sequence[Experiment]) -> list[list[int]]:
    kinds: dict[str, list[int]] = {}
    for x, experiment in enumerate(experiments):
        key = program_key(experiment.config, experiment.parts, exact=True)
        kinds.setdefault(key, []).append(x)
    return list(kinds.values())


def _shared_folder(experiments: Sequence[Experiment], folder: Path) -> Path:
    """The folder of the checkpoints of these experiments; no other holds any of them."""
    members = [str(_relative(experiment.workdir, folder)) for experiment in experiments]
    name = hashlib.blake2b('\n'.join(sorted(members)).encode(), digest_size=8).hexdigest()
    workdirs = {experiment.workdir.absolute() for experiment in experiments}
    # Checkpoints whose records were moved away are of no use any more.
    for path in (folder / SHARED).glob(f'*/{MEMBERS}'):
        if path.parent.name != name and workdirs & set(_members(path, folder)):
            _remove(path.parent)
    place = folder / SHARED / name
    if not all(_has_shared_checkpoints(experiment.workdir) for experiment in experiments):
        _remove(place)
    place.mkdir(parents=True, exist_ok=True)
    if not (place / MEMBERS).exists():
        files.write_json(place / MEMBERS, {'members': members})
    return place


def _relative(workdir: Path, folder: Path) -> Path:
    return workdir.absolute().relative_to(folder.absolute())


def _members(path: Path, folder: Path) -> list[Path]:
    """Work directories of the experiments in one program; none if the file cannot be read."""
    try:
        names = json.loads(path.read_text())['members']
        return [folder.absolute() / name for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _remove(place: Path) -> None:
    """Removes a folder of checkpoints, and the folder of all such folders if it was the last."""
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.parent.rmdir()
