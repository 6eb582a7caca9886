"""Many experiments in as few programs as can be, each recorded as if it had been alone."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxfed import methods
from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.recording import run_files
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.runs.experiment import Experiment, make_experiment
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.load import load
from jaxfed.runs.seeds import seed_of
from jaxfed.runs.shared_program import program_of
from jaxfed.runs.simulate import Diverged, Result, Stop, never, train_experiments

# Beside the work directories: a folder of checkpoints for each set of experiments in one program.
SHARED = '.together'
MEMBERS = 'members.json'

# Experiments of a program, where nobody says how many. They all end together, so with more of them
# the first result comes later. On a CPU, whose cores one experiment keeps nearly busy, what is won
# is compiling once and clients of unequal sizes evened out over the cores; a few do for both. An
# accelerator wants many clients side by side; 32 experiments of 10 clients each fill it.
MOST, MOST_ON_CPU = 32, 8

Watch = Callable[[int, dict[str, Any]], None]


def group(configs: Sequence[Config], folder: Path, *, most: int = 0) -> list[list[int]]:
    """Finds out which experiments are trained by one program.

    Those that were interrupted together go on together. One that was interrupted alone goes on
    alone, and so does one whose images come in waves.

    Args:
      configs: settings of experiments that are not done, each with its work directory.
      folder: that holds the work directories.
      most: experiments in a group that begins; 0 chooses by what trains them.

    Returns:
      Groups of places in `configs`, every one in one group; those of a program of nearly one size,
      so that what one group has compiled does for the next one of its size.

    Raises:
      ValueError: if some experiments were interrupted together with others that are not among
        these, and would have to begin anew.
    """
    place = {Path(str(config.workdir)).absolute(): i for i, config in enumerate(configs)}
    left = set(range(len(configs)))
    groups: list[list[int]] = []
    for path in sorted((folder / SHARED).glob(f'*/{MEMBERS}')):
        members = _members(path, folder)
        # One that was moved away or begun anew alone cannot go on, nor can the others without it.
        if not members or not all(map(_stopped_together, members)):
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
    by_program: dict[str, list[int]] = {}
    for i in sorted(left):
        config = configs[i]
        parts = methods.resolve(config.method, config.hyperparameters)
        alone = config.stream == 'on' or (Path(str(config.workdir)) / FOLDER).exists()
        by_program.setdefault(program_of(config, parts) + f'{i}' * alone, []).append(i)
    most = most or (MOST_ON_CPU if jax.default_backend() == 'cpu' else MOST)
    for places in by_program.values():
        count = -(-len(places) // most)
        cuts = [len(places) * k // count for k in range(count + 1)]
        groups += [places[a:b] for a, b in itertools.pairwise(cuts)]
    return sorted(groups, key=min)


def _stopped_together(workdir: Path) -> bool:
    """Whether an experiment has records, but no checkpoints of its own."""
    return (workdir / run_files.METRICS).exists() and not (workdir / FOLDER).exists()


def is_done(config: Config) -> bool:
    """Whether an experiment has been trained to its end.

    Args:
      config: its settings, with its work directory.

    Returns:
      True if it has; False if it was not begun or not finished.

    Raises:
      ValueError: if its work directory holds a run with other settings.
    """
    folder = Path(str(config.workdir))
    if not (folder / run_files.SUMMARY).exists():
        return False
    parts = methods.resolve(config.method, config.hyperparameters)
    if other := run_files.differing(folder, config, parts):
        told = ', '.join(f'--{name}={was}, not {now}' for name, (was, now) in other.items())
        raise ValueError(
            f'{folder} holds a run with other settings ({told}): give another folder, or the same '
            'settings.'
        )
    return True


def set_up_all(configs: Iterable[Config]) -> list[Experiment]:
    """Does what `set_up` does for experiments; nothing is written before all have passed.

    Args:
      configs: their settings, each with its work directory.

    Returns:
      The experiments, which hold one copy of the images that they have in common.

    Raises:
      ValueError: as `set_up`.
      OSError: as `set_up`.
    """
    experiments = share_images(make_experiment(config) for config in configs)
    for experiment in experiments:
        run_files.make_workdir(experiment.config, experiment.parts)
    return experiments


def share_images(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Lets experiments hold one copy of the images that they have in common.

    Args:
      experiments: from `set_up` or `make_experiment`; one may be made after the other.

    Returns:
      The same.
    """
    trained: dict[Any, Any] = {}
    tested: dict[Any, Any] = {}
    shared = []
    for experiment in experiments:
        config, dataset = experiment.config, experiment.dealt.dataset
        source = config.dataset, config.data_dir, config.npz, config.path
        # What is held out is drawn by a seed.
        drawn = seed_of(config, 'validation') if config.validation else None
        held = source, config.validation, drawn
        own = dataset._replace(
            x_train=trained.setdefault(source, dataset.x_train),
            x_test=tested.setdefault(held, dataset.x_test),
        )
        shared.append(experiment._replace(dealt=experiment.dealt._replace(dataset=own)))
    return shared


def simulate_all(
    configs: Mapping[str, Config], folder: str | os.PathLike[str], *, quiet: bool = True
) -> dict[str, Result | Diverged | TooLarge]:
    """Run experiments, as many at once as can share a program, each recorded as if alone.

    Given again, it goes on with those that were interrupted and reads those that are done.

    Args:
      configs: name -> settings; the name is that of the work directory in `folder`.
      folder: of all of them; made if need be.
      quiet: show no progress.

    Returns:
      Name -> result, or the error of one that diverged or does not fit into memory alone.

    Raises:
      ValueError: for settings, data or names that do not do, before training.
    """
    place = Path(folder)
    for name in configs:
        if not name or Path(name).name != name or name.startswith('.'):
            raise ValueError(f'configs: {name!r} must be the name of a folder, without a slash.')
    own = {
        name: dataclasses.replace(config, workdir=str(place / name))
        for name, config in configs.items()
    }
    left = [name for name, config in own.items() if not is_done(config)]
    place.mkdir(parents=True, exist_ok=True)
    trained: dict[str, Result | Diverged | TooLarge] = {}
    with files.alone(place):
        groups = group([own[name] for name in left], place)
        experiments = set_up_all(own[name] for name in left)
        rounds = sum(own[name].rounds for name in left)
        with console.grid_progress(len(left), rounds, quiet=quiet) as (begin, report):
            for places in groups:
                names = [left[i] for i in places]
                begin(', '.join(names), sum(own[name].rounds for name in names), len(names))
                results = train_group(
                    [experiments[i] for i in places],
                    place,
                    watch=lambda _, entry: report(entry),
                    quiet=quiet,
                )
                trained |= dict(zip(names, results, strict=True))
    return {name: trained.get(name) or _read(place / name) for name in configs}


def _read(workdir: Path) -> Result:
    """What a finished experiment has left."""
    found = load(workdir)
    lines = (workdir / run_files.METRICS).read_text().splitlines()
    return Result(found.summary, list(map(json.loads, lines)), found.params, found.stats, workdir)


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
      experiments: X from `set_up_all`.
      folder: that holds their work directories.
      watch: called with an experiment's number and the metrics of each of its rounds.
      stop_of: numbers of the experiments of a program -> who says after each round whose training
        ends early, among these.
      quiet: say nothing.

    Returns:
      The result of each, or the error of one that diverged or does not fit alone.

    Raises:
      ValueError: as `simulate.train_experiments`, like all others.
    """
    alone = len(experiments) == 1
    place = experiments[0].workdir if alone else _shared_folder(experiments, folder)
    stop = stop_of(range(len(experiments)))
    try:
        results = train_experiments(experiments, place, quiet=True, watch=watch, stop=stop)
    except TooLarge as error:
        if alone:
            return [error]
        half = (len(experiments) + 1) // 2
        parts = [list(range(half)), list(range(half, len(experiments)))]
        told = f'{len(experiments)} experiments at once do not fit into memory: in two parts'
    except TypeError:
        # What JAX raises where a method computes with its hyper-parameters in Python or NumPy.
        kinds: dict[str, list[int]] = {}
        for x, experiment in enumerate(experiments):
            kind = program_of(experiment.config, experiment.parts, exact=True)
            kinds.setdefault(kind, []).append(x)
        if len(kinds) == 1:
            raise
        parts = list(kinds.values())
        told = (
            f'--method={experiments[0].config.method} takes Python numbers only: a program for '
            'each of its hyper-parameters'
        )
    else:
        if not alone:
            _remove(place)
        return list(results)
    _remove(place)
    console.say(told, quiet=quiet)
    found: dict[int, Result | Diverged | TooLarge] = {}
    for part in parts:
        own = train_group(
            [experiments[x] for x in part],
            folder,
            watch=_renumbered(watch, part),
            stop_of=_of_part(stop_of, part),
            quiet=quiet,
        )
        found |= dict(zip(part, own, strict=True))
    return [found[x] for x in range(len(experiments))]


def _renumbered(watch: Watch, part: Sequence[int]) -> Watch:
    return lambda i, entry: watch(part[i], entry)


def _of_part(
    stop_of: Callable[[Sequence[int]], Stop], part: Sequence[int]
) -> Callable[[Sequence[int]], Stop]:
    return lambda numbers: stop_of([part[i] for i in numbers])


def _shared_folder(experiments: Sequence[Experiment], folder: Path) -> Path:
    """The folder of the checkpoints of these experiments; no other holds any of them.

    Checkpoints of which somebody has moved the records away are of no use any more.
    """
    members = [str(_relative(experiment.workdir, folder)) for experiment in experiments]
    name = hashlib.blake2b('\n'.join(sorted(members)).encode(), digest_size=8).hexdigest()
    for path in (folder / SHARED).glob(f'*/{MEMBERS}'):
        if path.parent.name != name and set(_members(path, folder)) & {
            experiment.workdir.absolute() for experiment in experiments
        }:
            _remove(path.parent)
    place = folder / SHARED / name
    if not all(_stopped_together(experiment.workdir) for experiment in experiments):
        _remove(place)
    place.mkdir(parents=True, exist_ok=True)
    if not (place / MEMBERS).exists():
        files.write_json(place / MEMBERS, {'members': members})
    return place


def _relative(workdir: Path, folder: Path) -> Path:
    return workdir.absolute().relative_to(folder.absolute())


def _members(path: Path, folder: Path) -> list[Path]:
    """Work directories of experiments in one program; none where that cannot be read."""
    try:
        names = json.loads(path.read_text())['members']
        return [folder.absolute() / name for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _remove(place: Path) -> None:
    """Removes a folder of checkpoints, and that of all such folders with the last."""
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.parent.rmdir()
