"""Runs a list of experiments on disk: skips those that are done, trains the others."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from jaxfed import methods
from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.recording import run_files
from jaxfed.recording.progress import grid_progress
from jaxfed.runs.experiment import Experiment, look
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.load import load
from jaxfed.runs.seeds import seed_of
from jaxfed.runs.simulate import Diverged, Result, Stop, never
from jaxfed.sweeps.halving import halving
from jaxfed.sweeps.training import group, train_group

Describe = Callable[[Sequence[int]], str]  # places in a list of experiments -> what they are


def is_done(config: Config, *, measures: Literal['included', 'any'] = 'included') -> bool:
    """Whether the experiment with these settings and work directory has been trained to its end.

    Args:
      config: the settings.
      measures: whether the run there has to have these measures.

    Raises:
      ValueError: if its work directory holds a run with other settings.
    """
    folder = Path(str(config.workdir))
    if not (folder / run_files.CONFIG).exists():
        return False
    parts = methods.resolve(config.method, config.hyperparameters)
    if other := run_files.differing(folder, config, parts, measures=measures):
        words = ', '.join(f'--{name}={there}, not {now}' for name, (there, now) in other.items())
        raise ValueError(
            f'{folder} holds a run with other settings ({words}): give another folder, the same '
            'settings, or move that folder away.'
        )
    return (folder / run_files.SUMMARY).exists()


def set_up_all(configs: Iterable[Config]) -> list[Experiment]:
    """Does what `set_up` does for experiments; nothing is written before all have passed."""
    experiments = share_images(look(config) for config in configs)
    for experiment in experiments:
        run_files.make_workdir(experiment.config, experiment.parts)
    return experiments


def share_images(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Lets experiments hold one copy of the images that they have in common."""
    trained: dict[Any, Any] = {}
    tested: dict[Any, Any] = {}
    shared = []
    for experiment in experiments:
        config, dataset = experiment.config, experiment.dealt.dataset
        source = config.dataset, config.data_dir, config.npz, config.path
        # A seed draws the examples that are held out.
        seed = seed_of(config, 'validation') if config.validation else None
        held_out = source, config.validation, seed
        dataset = dataset._replace(
            x_train=trained.setdefault(source, dataset.x_train),
            x_test=tested.setdefault(held_out, dataset.x_test),
        )
        shared.append(experiment._replace(dealt=experiment.dealt._replace(dataset=dataset)))
    return shared


def run_groups(
    configs: Sequence[Config],
    folder: Path,
    groups: Sequence[Sequence[int]],
    set_up: Callable[[int], Experiment],
    describe: Describe,
    *,
    points: Sequence[Hashable] = (),
    rungs: Sequence[int] = (),
    show_failures: bool = True,
    quiet: bool = False,
) -> list[Result | Exception]:
    """Trains groups of experiments one after another; a failure ends no other group.

    Several processes may work on one folder: each experiment is trained by one of them.

    Args:
      configs: settings of experiments that are not done, each with its work directory.
      folder: that holds the work directories.
      groups: of places in `configs`, from `training.group`.
      set_up: place -> experiment; called when its group begins.
      describe: what experiments are, in one line.
      points: what is compared by halving, of each experiment; the same for the seeds of one.
      rungs: rounds after which the worse half of the points in a program is given up.
      show_failures: print each error when it occurs.
      quiet: show no progress.

    Returns:
      Of each experiment the result, or the error that ended it.
    """
    results: dict[int, Result | Exception] = {}
    rounds = [config.rounds for config in configs]

    def stop_of(numbers: Sequence[int]) -> Stop:
        return halving(rungs, [points[i] for i in numbers]) if rungs else never

    with grid_progress(len(configs), sum(rounds), quiet=quiet) as (begin, report):
        for places in groups:
            begin(describe(places), sum(rounds[i] for i in places), len(places))
            found = _train_claimed(configs, folder, places, set_up, stop_of, report, quiet)
            errors = {i: str(r) for i, r in found.items() if isinstance(r, Exception)}
            for text in dict.fromkeys(errors.values()) if show_failures else ():
                alike = [i for i, other in errors.items() if other == text]
                console.show_error(f'{describe(alike)}: {text}')
            results |= found
    return [results[i] for i in range(len(configs))]


def _train_claimed(
    configs: Sequence[Config],
    folder: Path,
    places: Sequence[int],
    set_up: Callable[[int], Experiment],
    stop_of: Callable[[Sequence[int]], Stop],
    report: Callable[[dict[str, Any]], None],
    quiet: bool,
) -> dict[int, Result | Exception]:
    """Trains the experiments of a group that no other process trains."""
    workdirs = {i: Path(str(configs[i].workdir)) for i in places}
    with _claim(workdirs, folder) as (claimed, failed):
        results: dict[int, Result | Exception] = {**failed}
        begun: dict[int, Experiment] = {}
        for i in claimed:
            try:
                if (workdirs[i] / run_files.SUMMARY).exists():  # by another process, meanwhile
                    results[i] = read_result(workdirs[i])
                else:
                    begun[i] = set_up(i)
            except (ValueError, OSError) as error:
                results[i] = error
        if not begun:
            return results
        numbers = list(begun)
        try:
            trained = train_group(
                share_images(begun.values()),
                folder,
                watch=lambda _, entry: report(entry),
                stop_of=lambda chosen: stop_of([numbers[x] for x in chosen]),
                quiet=quiet,
            )
        except (ValueError, OSError) as error:
            # Of a group that was split some experiments may have been trained to their end.
            for i in numbers:
                done = (workdirs[i] / run_files.SUMMARY).exists()
                results[i] = read_result(workdirs[i]) if done else error
        else:
            results |= dict(zip(numbers, trained, strict=True))
    return results


@contextlib.contextmanager
def _claim(
    workdirs: Mapping[int, Path], folder: Path
) -> Iterator[tuple[list[int], dict[int, Exception]]]:
    """Locks work directories; yields the places that are locked, and errors of the others."""
    claimed: list[int] = []
    failed: dict[int, Exception] = {}
    with contextlib.ExitStack() as locks:
        # One process at a time takes locks, so that two with the same group do not get half each.
        with contextlib.ExitStack() as turn:
            with contextlib.suppress(OSError):  # each work directory then has the same error
                folder.mkdir(parents=True, exist_ok=True)
                turn.enter_context(FileLock(folder / '.claim.lock'))
            for i, workdir in workdirs.items():
                try:
                    workdir.parent.mkdir(parents=True, exist_ok=True)
                    lock = workdir.with_name(f'.{workdir.name}.lock')
                    locks.enter_context(FileLock(lock, timeout=0))
                    claimed.append(i)
                except Timeout:
                    failed[i] = ValueError('another process is running it.')
                except OSError as error:
                    failed[i] = error
        yield claimed, failed


def read_result(workdir: Path) -> Result:
    """What a finished experiment has recorded."""
    model = load(workdir)
    lines = (workdir / run_files.METRICS).read_text().splitlines()
    return Result(model.summary, list(map(json.loads, lines)), model.params, model.stats, workdir)


def simulate_all(
    configs: Mapping[str, Config], folder: str | os.PathLike[str], *, quiet: bool = True
) -> dict[str, Result | Diverged | TooLarge]:
    """Run experiments, as many at once as can share a program, each recorded as if alone.

    Called again, it goes on with those that were interrupted and reads those that are done.

    Args:
      configs: name -> settings; the name is that of the work directory in `folder`.
      folder: of all of them; it is made if there is none.
      quiet: show no progress.

    Returns:
      Name -> result, or the error of one that diverged or does not fit into memory alone.

    Raises:
      ValueError: for invalid settings, data or names, before training; or for a work directory
        that is damaged or that another process works in.
      OSError: if data cannot be read, or records cannot be written.
    """
    place = Path(folder)
    for name in configs:
        if not name or Path(name).name != name or name.startswith('.'):
            raise ValueError(f'configs: {name!r} must be the name of a folder, without a slash.')
    runs = {
        name: dataclasses.replace(config, workdir=str(place / name))
        for name, config in configs.items()
    }
    left = {name: config for name, config in runs.items() if not is_done(config)}
    names, unfinished = list(left), list(left.values())
    place.mkdir(parents=True, exist_ok=True)
    with files.exclusive_lock(place):
        groups = group(unfinished, place)
        experiments = set_up_all(unfinished)
        results = run_groups(
            unfinished,
            place,
            groups,
            experiments.__getitem__,
            lambda places: ', '.join(names[i] for i in places),
            show_failures=False,
            quiet=quiet,
        )
    trained: dict[str, Result | Diverged | TooLarge] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, Diverged | TooLarge):
            raise result
        trained[name] = result
    return {name: trained.get(name) or read_result(place / name) for name in configs}
