"""Many experiments in as few programs as can be, each recorded as if it had been alone."""

import contextlib
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxfed import methods
from jaxfed.config import Config
from jaxfed.experiment import Experiment, set_up
from jaxfed.recording import console, records
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.sharing import program_of
from jaxfed.simulation import Diverged, Result, Stop, TooLarge, never, train_together

# Beside the work directories: a folder of checkpoints for each set of experiments in one program.
SHARED = '.together'
MEMBERS = 'members.json'

Watch = Callable[[int, dict[str, Any]], None]


def group(configs: Sequence[Config], folder: Path) -> list[list[int]]:
    """Finds out which experiments are trained by one program.

    Those that were interrupted together go on together. One that was interrupted alone goes on
    alone.

    Args:
      configs: settings of experiments that are not done, each with its work directory.
      folder: that holds the work directories.

    Returns:
      Groups of places in `configs`, every one in one group.
    """
    place = {Path(str(config.workdir)).absolute(): i for i, config in enumerate(configs)}
    left = set(range(len(configs)))
    groups: list[list[int]] = []
    for path in sorted((folder / SHARED).glob(f'*/{MEMBERS}')):
        members = _members(path, folder)
        if members and all(place.get(member) in left for member in members):
            groups.append([place[member] for member in members])
            left -= set(groups[-1])
    by_program: dict[str, list[int]] = {}
    for i in sorted(left):
        config = configs[i]
        parts = methods.resolve(config.method, config.hyperparameters)
        alone = f'{i}' if (Path(str(config.workdir)) / FOLDER).exists() else ''
        by_program.setdefault(program_of(config, parts) + alone, []).append(i)
    return sorted([*groups, *by_program.values()], key=min)


def set_up_all(configs: Sequence[Config]) -> list[Experiment]:
    """Sets experiments up, with one copy of the images that they share.

    Args:
      configs: their settings, each with its work directory.

    Returns:
      The experiments.

    Raises:
      ValueError: as `set_up`.
      OSError: as `set_up`.
    """
    images: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    experiments = []
    for config in configs:
        experiment = set_up(config)
        dataset = experiment.dealt.dataset
        source = config.dataset, config.data_dir, config.npz, config.path
        x_train, x_test = images.setdefault(source, (dataset.x_train, dataset.x_test))
        own = dataset._replace(x_train=x_train)
        if not config.validation:
            own = own._replace(x_test=x_test)
        experiments.append(experiment._replace(dealt=experiment.dealt._replace(dataset=own)))
    return experiments


def train_group(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    watch: Watch = lambda x, entry: None,
    stop: Stop = never,
    quiet: bool = True,
) -> list[Result | Diverged | TooLarge]:
    """Trains experiments that can share a program; in smaller groups where they do not fit.

    Args:
      experiments: X from `set_up_all`.
      folder: that holds their work directories.
      watch: called with an experiment's number and the metrics of each of its rounds.
      stop: says after each round whose training ends early, among those of one program.
      quiet: say nothing.

    Returns:
      The result of each, or the error of one that diverged or does not fit alone.

    Raises:
      ValueError: as `simulation.train_together`, like all others.
    """
    alone = len(experiments) == 1
    place = experiments[0].workdir if alone else _shared_folder(experiments, folder)
    train = functools.partial(train_together, experiments, place, watch=watch, stop=stop)
    try:
        results = train(quiet=True)
    except TooLarge as error:
        if alone:
            return [error]
        half = (len(experiments) + 1) // 2
        parts = [list(range(half)), list(range(half, len(experiments)))]
        told = f'{len(experiments)} experiments at once do not fit into memory: in two parts'
    except jax.errors.ConcretizationTypeError:
        # A method may compute with its hyper-parameters in Python, which no tracing can.
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
            stop=_among(stop, part, len(experiments)),
            quiet=quiet,
        )
        found |= dict(zip(part, own, strict=True))
    return [found[x] for x in range(len(experiments))]


def _renumbered(watch: Watch, part: Sequence[int]) -> Watch:
    return lambda i, entry: watch(part[i], entry)


def _among(stop: Stop, part: Sequence[int], count: int) -> Stop:
    """`stop` for some of the experiments that it knows."""

    def of_part(
        round_: int, metrics: Sequence[list[dict[str, Any]]], running: Sequence[int]
    ) -> list[int]:
        every: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        for i, x in enumerate(part):
            every[x] = metrics[i]
        stopped = stop(round_, every, [part[i] for i in running])
        return [part.index(x) for x in stopped]

    return of_part


def _shared_folder(experiments: Sequence[Experiment], folder: Path) -> Path:
    """The folder of the checkpoints of these experiments; no other holds any of them."""
    members = [str(_relative(experiment.workdir, folder)) for experiment in experiments]
    name = hashlib.blake2b('\n'.join(sorted(members)).encode(), digest_size=8).hexdigest()
    for path in (folder / SHARED).glob(f'*/{MEMBERS}'):
        if path.parent.name != name and set(_members(path, folder)) & {
            experiment.workdir.absolute() for experiment in experiments
        }:
            _remove(path.parent)
    place = folder / SHARED / name
    place.mkdir(parents=True, exist_ok=True)
    if not (place / MEMBERS).exists():
        records.write_json(place / MEMBERS, {'members': members})
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
