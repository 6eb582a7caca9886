"""Optuna's study in the output folder: what it chose, and what became of it."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from filelock import Timeout
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from experiments.grid import runner
from experiments.search.axes import Axis, Range
from experiments.search.cells import (
    STUDY,
    Combination,
    Search,
    check_some,
    flags_of,
    with_combinations,
)
from experiments.search.ranking import score_of_cells
from jaxfed.internal.locks import lock_file
from jaxfed.recording.entries import Entry

NAME = 'search'  # of the study, and of the attribute that holds its settings
TRIES = 20  # choices for a trial that the method does not refuse

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Journal(NamedTuple):
    """An open study."""

    study: optuna.Study
    storage: JournalStorage

    @property
    def running(self) -> list[FrozenTrial]:
        """The trials without a result."""
        return self.study.get_trials(states=(TrialState.RUNNING,))


def read(search: Search) -> list[FrozenTrial]:
    """The trials of the study in the output folder, [] without a study; nothing is written.

    Raises:
      ValueError: if it is damaged, or of a search with other settings.
    """
    path = search.output / STUDY
    if not path.exists():
        return []
    try:
        storage = _storage(path)
        if NAME not in optuna.get_all_study_names(storage):  # killed before it was made
            return []
        study = optuna.load_study(study_name=NAME, storage=storage)
        held = study.user_attrs.get(NAME, {})
        trials = study.trials
    except Exception as error:  # whatever the library raises for a damaged file
        raise ValueError(f'{path} cannot be read ({error!r}); move it away.') from error
    settings = settings_of(search)
    other = [f'{held[key]}, not {settings[key]}' for key in held if held[key] != settings.get(key)]
    if other:
        raise ValueError(
            f'{path} holds a search with {"; ".join(other)}: use the same flags, or give another '
            '--output.'
        )
    return trials


@contextlib.contextmanager
def opened(search: Search) -> Iterator[Journal]:
    """Open the study in the output folder, or start one, and lock it.

    Raises:
      ValueError: as `read`, or if another process uses the study.
    """
    path = search.output / STUDY
    try:
        lock = lock_file(search.output / f'.{STUDY}.lock', timeout=0)
    except Timeout:
        raise ValueError(
            f'--output={search.output}: another process runs this search; wait for it, or give '
            'another --output.'
        ) from None
    with lock:
        _repair(path)
        read(search)
        storage = _storage(path)
        study = optuna.create_study(
            study_name=NAME, storage=storage, direction='maximize', load_if_exists=True
        )
        if not study.user_attrs:
            study.set_user_attr(NAME, settings_of(search))
        yield Journal(study, storage)


def _storage(path: Path) -> JournalStorage:
    file = str(path)
    return JournalStorage(JournalFileBackend(file, lock_obj=JournalFileOpenLock(file)))


def _repair(path: Path) -> None:
    """Remove what a killed process or a full disk leaves: Optuna's lock, and a part of a line."""
    path.with_name(f'{path.name}.lock').unlink(missing_ok=True)
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b'\n') + 1)


def settings_of(search: Search) -> dict[str, str]:
    """What must be the same when a study continues, as shown in messages."""
    assert search.optuna
    axes = [
        f'--{"range" if isinstance(axis, Range) else "grid"}={name}:'
        f'{axis if isinstance(axis, Range) else ",".join(axis)}'
        for name, axis in search.axes.items()
    ]
    flags = {
        'method': search.method,
        'seeds': search.seeds,
        'score': search.score,
        'validation': search.validation,
        'halving': ','.join(map(str, search.rungs)),
        'pruner': search.optuna.pruner,
        'sampler_seed': search.optuna.seed,
    }
    texts = {name: f'--{name}={value}' for name, value in flags.items()}
    return {'axes': ' '.join(axes), 'flag file': f'flag file {search.place}'} | texts


def ask(
    search: Search, trials: Sequence[FrozenTrial], count: int
) -> tuple[Search, list[FrozenTrial]]:
    """Choose combinations by the tree-structured Parzen estimator.

    The choice depends on the seed, the number of the trial and the earlier trials only, so an
    interrupted search continues as if it had not been interrupted. A trial that the method refuses
    is pruned at once, and another is chosen.

    Args:
      search: with the cells of the earlier trials.
      trials: all earlier trials.
      count: how many to choose that can be run, without results of each other.

    Returns:
      The search with the cells of the new trials; the new trials, refused ones included.

    Raises:
      ValueError: if the method refuses all of them.

    Reference:
      Bergstra et al., Algorithms for Hyper-Parameter Optimization, NIPS 2011.
    """
    assert search.optuna
    study = in_memory(trials)
    wanted = search.chosen + count
    for number in range(len(trials), len(trials) + TRIES * count):
        if search.chosen == wanted:
            break
        seed = np.random.SeedSequence([search.optuna.seed, number]).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(seed))
        trial = study.ask({name: _distribution(axis) for name, axis in search.axes.items()})
        search = with_trials(search, [trial])
        if combination_of(search, trial) in search.skipped:
            study.tell(trial, state=TrialState.PRUNED)
    check_some(search)
    return search, study.trials[len(trials) :]


def in_memory(trials: Sequence[FrozenTrial]) -> optuna.Study:
    """A study of these trials that is not stored."""
    study = optuna.create_study(direction='maximize')
    study.add_trials(trials)
    return study


def _distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    if not isinstance(axis, Range):
        return optuna.distributions.CategoricalDistribution(axis)
    if axis.integer:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)


def combination_of(search: Search, trial: Trial | FrozenTrial) -> Combination:
    """The flags of a trial."""
    texts = {
        name: axis.text(trial.params[name]) if isinstance(axis, Range) else trial.params[name]
        for name, axis in search.axes.items()
    }
    return flags_of(texts)


def with_trials(search: Search, trials: Sequence[Trial | FrozenTrial]) -> Search:
    """Add the cells of trials to a search."""
    combinations = [combination_of(search, trial) for trial in trials]
    search = with_combinations(search, combinations)
    runnable = sum(combination in search.cells for combination in combinations)
    return search._replace(chosen=search.chosen + runnable)


def tell_finished(search: Search, journal: Journal) -> None:
    """Record the results of the trials whose runs are finished.

    Trials that stopped early or diverged are pruned, so that Optuna avoids their neighbourhood.

    Raises:
      ValueError: if a run cannot be read, or was evaluated on test data.
    """
    study_id = journal.storage.get_study_id_from_name(NAME)
    for trial in journal.running:
        cells = search.cells[combination_of(search, trial)]
        score, given_up = score_of_cells(cells, search)
        if score.done < score.asked:
            continue
        trial_id = journal.storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        for round_, value in mean_accuracies([runner.read(cell).metrics for cell in cells]).items():
            journal.storage.set_trial_intermediate_value(trial_id, round_, value)
        if given_up or score.failed:
            journal.study.tell(trial.number, state=TrialState.PRUNED)
        else:
            journal.study.tell(trial.number, score.mean)


def mean_accuracies(metrics: Sequence[Sequence[Mapping[str, Any] | Entry]]) -> dict[int, float]:
    """Round -> mean accuracy of runs in percent, for the rounds that all of them evaluated."""
    runs = [
        {e['round']: e['test_accuracy'] for e in entries if e['test_accuracy'] is not None}
        for entries in metrics
    ]
    common = sorted(set.intersection(*map(set, runs)))
    return {round_: 100 * float(np.mean([run[round_] for run in runs])) for round_ in common}
