"""Runs a list of experiments on disk: skips finished ones, trains the others."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.internal.locks import LOCK, exclusive_lock
from jaxfed.internal.program_cache import kept_programs
from jaxfed.internal.signals import Interrupted
from jaxfed.recording import log, run_files, trackers
from jaxfed.recording.progress import grid_progress
from jaxfed.runs.arrays import checked_arrays, name_arrays
from jaxfed.runs.deal import columns_of, data_digest, deal
from jaxfed.runs.experiment import Experiment, build_method, make_experiment, parts_of
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.load import load
from jaxfed.runs.notices import show_notices
from jaxfed.runs.own_optimizer import name_optimizers
from jaxfed.runs.rounds import never
from jaxfed.runs.seeds import seed_of
from jaxfed.runs.simulate import Diverged, Result
from jaxfed.runs.tensors import init_digest
from jaxfed.sweeps.claims import RunsElsewhere, claim, finish_programs
from jaxfed.sweeps.training import StopOf, group, train_group
from jaxfed.types import Dataset


def is_done(config: Config, *, measures: Literal['included', 'any'] = 'included') -> bool:
    """Whether the run of these settings in its work directory is finished.

    Args:
      config: the settings, with the work directory.
      measures: whether the recorded run must include the measures of `config`.

    Raises:
      ValueError: if the work directory holds a run with other settings.
    """
    folder = Path(str(config.workdir))
    if not (folder / run_files.CONFIG).exists():
        return False
    parts = parts_of(config)
    if other := run_files.differing(folder, config, parts, measures=measures):
        words = ', '.join(run_files.in_words(other, '{}, not {}'))
        raise ValueError(
            f'{folder} holds a run with other settings ({words}): name another folder, use the '
            'same settings, or move that folder away.'
        )
    return _is_finished(folder)


def _is_finished(workdir: Path) -> bool:
    return (workdir / run_files.SUMMARY).exists()


def warn_of_copies(done: Iterable[Config]) -> None:
    """Warn if finished runs lack files or copies of their metrics that are asked for now."""
    lacking: dict[str, int] = {}
    for config in done:
        recorded = files.read_json(Path(str(config.workdir)) / run_files.CONFIG)
        for name in ('save_clients', 'csv', *trackers.PACKAGES):
            if getattr(config, name) and not recorded.get(name):
                lacking[name] = lacking.get(name, 0) + 1
    for name, number in lacking.items():
        console.show_warning(
            f'--{name} has no effect on {console.counted(number, "finished run")} without it; '
            'move their folders away to train them again.'
        )


def check_same_data(done: Iterable[Config]) -> None:
    """Raise a ValueError if data, or the file of --init_from, have changed since runs finished.

    Args:
      done: the settings of finished runs, each with its work directory; of those that read the same
        data the first with a record of it is compared.
    """
    first: dict[Any, tuple[Config, Path]] = {}
    for config in done:
        path = Path(str(config.workdir)) / run_files.PARTITION
        if path.exists():
            first.setdefault(('data_digest', source_of(config)), (config, path))
            first.setdefault(('init_digest', config.init_from), (config, path))
    for (name, _), (config, path) in first.items():
        recorded = files.read_json(path).get(name)
        if not recorded:
            continue
        now = _data_digest(config) if name == 'data_digest' else init_digest(config).get(name)
        if recorded != now:
            raise ValueError(
                f'{path} describes other data or another file of --init_from than there are now, '
                'but the runs of a folder are compared with each other: name another directory, or '
                'move this one away.'
            )


def _data_digest(config: Config) -> str:
    _, method = build_method(config)  # the server's examples are not dealt to clients
    return data_digest(deal(config, auxiliary_per_class=method.auxiliary).dataset, {})


def set_up_all(configs: Iterable[Config], dataset: Dataset | None = None) -> list[Experiment]:
    """Do the work of `set_up` for many experiments; nothing is written unless all are valid."""
    experiments = share_images(make_experiment(config, None, dataset) for config in configs)
    for experiment in experiments:
        run_files.make_workdir(experiment.config, experiment.parts)
    return experiments


def source_of(config: Config) -> tuple[Any, ...]:
    """What the images of an experiment depend on."""
    return config.dataset, config.data_dir, config.npz, config.path, columns_of(config)


def share_images(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Replace equal images of experiments by one copy."""
    copies: dict[Any, Any] = {}
    shared = []
    for experiment in experiments:
        config, dataset = experiment.config, experiment.dealt.dataset
        source = source_of(config)
        # A seed selects the held-out examples.
        seed = seed_of(config, 'validation') if config.validation else None
        dataset = dataset._replace(
            x_train=copies.setdefault(source, dataset.x_train),
            x_test=copies.setdefault((source, config.validation, seed), dataset.x_test),
        )
        shared.append(experiment._replace(dealt=experiment.dealt._replace(dataset=dataset)))
    return shared


def run_groups(
    configs: Sequence[Config],
    folder: Path,
    groups: Sequence[Sequence[int]],
    set_up: Callable[[int], Experiment],
    describe: Callable[[Sequence[int]], str],
    *,
    settings: Sequence[Hashable] = (),
    stop_of: StopOf = lambda numbers: never,
    show_failures: bool = True,
    quiet: bool = False,
) -> list[Result | Exception]:
    """Train groups of experiments one after another; a failure does not stop other groups.

    Several processes may share a folder: only one of them trains each experiment.

    Args:
      configs: the settings of unfinished experiments, each with its work directory.
      folder: the parent of the work directories.
      groups: indices into `configs`, from `training.group`.
      set_up: index -> experiment; called when its group starts.
      describe: indices -> one line about these experiments.
      settings: as in `training.group`.
      stop_of: indices of the experiments in a program -> which of them stop early.
      show_failures: print each error when it occurs.
      quiet: show no progress.

    Returns:
      The result of each experiment, or the error that stopped it.

    Raises:
      ValueError: if a lock of `folder` seems to be left over.
      Interrupted: if SIGINT or SIGTERM was received, and experiments are left.
    """
    results: dict[int, Result | Exception] = {}
    signals: list[int] = []  # of the last rounds of programs
    rounds = [config.rounds for config in configs]
    workdirs = [Path(str(config.workdir)) for config in configs]
    with grid_progress(len(configs), sum(rounds), quiet=quiet) as (begin, report):

        def train(experiments: Mapping[int, Experiment]) -> Sequence[Result | Exception]:
            indices = list(experiments)
            return train_group(
                share_images(experiments.values()),
                folder,
                settings=[settings[i] for i in indices] if settings else (),
                stop_of=lambda numbers: stop_of([indices[x] for x in numbers]),
                watch=report,
                late=signals.append,
                quiet=quiet,
            )

        for numbers in groups:
            if signals:
                raise Interrupted('stopped after the last round of a program', signals[0])
            begin(describe(numbers), sum(rounds[i] for i in numbers), len(numbers))
            found = _train_claimed({i: workdirs[i] for i in numbers}, folder, set_up, train)
            errors = {i: str(r) for i, r in found.items() if isinstance(r, Exception)}
            for text in dict.fromkeys(errors.values()) if show_failures else ():
                same = [i for i, other in errors.items() if other == text]
                line = f'{describe(same)}: {text}'
                if isinstance(found[same[0]], RunsElsewhere):
                    console.say(line)
                else:
                    console.show_error(line)
            results |= found
    return [results[i] for i in range(len(configs))]


def _train_claimed(
    workdirs: Mapping[int, Path],
    folder: Path,
    set_up: Callable[[int], Experiment],
    train: Callable[[Mapping[int, Experiment]], Sequence[Result | Exception]],
) -> dict[int, Result | Exception]:
    """Train the experiments of a group that no other process trains, or has trained."""
    with claim(workdirs, folder) as failed:
        results: dict[int, Result | Exception] = {**failed}
        experiments: dict[int, Experiment] = {}
        for i in [i for i in workdirs if i not in failed]:
            try:
                if _is_finished(workdirs[i]):  # by another process in the meantime
                    results[i] = read_result(workdirs[i])
                else:
                    experiments[i] = set_up(i)
            except (ValueError, OSError) as error:
                results[i] = error
        try:
            if experiments:
                results |= zip(experiments, train(experiments), strict=True)
        except (ValueError, OSError) as error:
            # A part of a group that was split may be finished.
            for i in experiments:
                results[i] = read_result(workdirs[i]) if _is_finished(workdirs[i]) else error
    return results


def read_result(workdir: Path) -> Result:
    """Read the result of a finished experiment."""
    model, summary = load(workdir), run_files.read_summary(workdir / run_files.SUMMARY)
    metrics = log.read(workdir, summary['rounds'])
    return Result(summary, metrics, model.params, model.stats, workdir)


def simulate_all(
    configs: Mapping[str, Config],
    folder: str | os.PathLike[str],
    *,
    dataset: Dataset | Mapping[str, Any] | None = None,
    quiet: bool | None = None,
    compilation_cache: bool = True,
) -> dict[str, Result | Diverged | TooLarge]:
    """Run experiments, as many at once as can share a program, each recorded as if alone.

    A second call continues interrupted experiments and reads finished ones.

    Args:
      configs: name -> settings; the experiment's work directory is `folder/name`, also if the
        settings name another one.
      folder: the parent of the work directories; created if it does not exist.
      dataset: arrays in memory instead of the data that the settings name; as in `simulate`. The
        settings must name the same columns.
      quiet: show no progress; by default progress is shown in a terminal and in a notebook.
      compilation_cache: keep compiled programs in ~/.cache/jaxfed, so that a later run of the same
        program does not compile again.

    Returns:
      Name -> result, or the error of one that diverged or does not fit into memory.

    Raises:
      ValueError: for invalid settings, data or names, before training; or for a work directory
        that is damaged or used by another process.
      Unavailable: if a chosen tracker cannot be opened.
      Interrupted: if SIGINT or SIGTERM was received, and experiments are left.
      OSError: if data cannot be read, or records cannot be written.
    """
    place = Path(folder)
    if not isinstance(configs, Mapping):
        raise ValueError(f'configs must map names to settings, got {type(configs).__name__}.')
    for name, config in configs.items():
        if not isinstance(name, str) or not isinstance(config, Config):
            raise ValueError(
                f'configs: {name!r} must be a text with a jaxfed.Config, got '
                f'{type(config).__name__}.'
            )
        if not name or Path(name).name != name or name.startswith('.'):
            raise ValueError(f'configs: {name!r} must be the name of a folder, without a slash.')
    columns = {columns_of(config) for config in configs.values()}
    if dataset is not None and len(columns) > 1:
        raise ValueError('configs: the columns of dataset must be the same in all of them.')
    arrays = None if dataset is None else checked_arrays(dataset, *columns)
    if arrays is not None:
        configs = {name: name_arrays(config, arrays) for name, config in configs.items()}
    configs = dict(zip(configs, name_optimizers(configs.values()), strict=True))
    placed = {
        name: dataclasses.replace(config, workdir=str(place / name))
        for name, config in configs.items()
    }
    if (place / run_files.CONFIG).exists():
        raise ValueError(f'{place} holds a run; name another directory for several.')
    finish_programs(place)
    names = [name for name, config in placed.items() if not is_done(config)]
    unfinished = [placed[name] for name in names]
    warn_of_copies(placed[name] for name in placed if name not in names)
    quiet = not console.is_watched() if quiet is None else quiet
    place.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(place), kept_programs(compilation_cache):
        groups = group(unfinished, place)
        try:
            if unfinished and arrays is None:  # the names of arrays have a digest
                check_same_data(config for name, config in placed.items() if name not in names)
            experiments = set_up_all(unfinished, arrays)
        except BaseException:
            (place / LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # if another file is in it
                place.rmdir()
            raise
        if not quiet:
            show_notices(experiments)
        results = run_groups(
            unfinished,
            place,
            groups,
            experiments.__getitem__,
            lambda numbers: ', '.join(names[i] for i in numbers),
            show_failures=False,
            quiet=quiet,
        )
    trained: dict[str, Result | Diverged | TooLarge] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, Diverged | TooLarge):
            raise result
        trained[name] = result
    return {name: trained.get(name) or read_result(place / name) for name in configs}
