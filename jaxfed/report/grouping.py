"""Groups of runs that differ only in their seeds, with means over the seeds."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxfed.config import (
    PART_SEEDS,
    SEEDS,
    SETTINGS,
    settings_that_affect,
    unread_settings,
)
from jaxfed.internal.console import counted
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.recording.run_files import OF_PARTITION, flat_settings, with_defaults
from jaxfed.report.reading import RecordedRun

MISSING = '–'  # None in a table
_MAX_LABEL_SETTINGS = 3
_MAX_HEADER_VALUES = 6
_LARGEST_PLAIN = 1e15

# Settings in the header of the page, with their names there; those of the partition follow it.
_HEADER = {
    'method': 'method',
    'dataset': 'dataset',
    'partition': 'partition',
    'num_clients': 'clients',
    'clients_per_round': 'clients a round',
    'rounds': 'rounds',
    'local_epochs': 'local epochs',
    'batch_size': 'batch size',
    'learning_rate': 'learning rate',
}

# What sets the data and the clients.
_DATA = (
    'dataset', 'npz', 'path', 'image_column', 'label_column', 'user_column', 'validation',
    'fixed seeds',
    *(name for name, setting in SETTINGS.items() if setting.group == 'partition'),
)  # fmt: skip


class RunGroup(NamedTuple):
    """Runs with the same settings and different seeds."""

    label: str
    runs: tuple[RecordedRun, ...]  # ascending by seed

    @property
    def counted(self) -> tuple[RecordedRun, ...]:
        """The completed runs, or all runs if none is complete.

        A run that diverged, stopped early or is unfinished is not a sample of the completed ones.
        """
        return tuple(run for run in self.runs if run.complete) or self.runs


class MeanCurve(NamedTuple):
    """A field by round, over the runs of a group."""

    rounds: np.ndarray  # [T], all in which a run has a value
    mean: np.ndarray  # [T], over the runs with a value
    deviation: np.ndarray | None  # [T], NaN if one run has a value; None for a single run


def settings(run: RecordedRun) -> dict[str, str]:
    """Return the settings of training and evaluation, without seeds, as texts.

    Hyper-parameters have names such as 'fedlmd.beta', also those with default values.
    """
    config = with_defaults(run.config)
    # Runs in which a part of the randomness is fixed are no samples of runs in which all varies.
    config['fixed seeds'] = (
        ', '.join(name for name in PART_SEEDS if config[name] is not None) or None
    )
    config = flat_settings(config)
    skipped = {*SEEDS, 'parts', 'versions', 'device', *settings_that_affect('machine', 'records')}
    skipped |= unread_settings(config['partition'])
    return {name: shown(value) for name, value in config.items() if name not in skipped}


def settings_of_partition(run: RecordedRun) -> dict[str, str]:
    """Return the settings that determine the run's partition, without its name."""
    name = run.config['partition']
    used = partition_settings(name) if name in PARTITIONS else ()
    every = settings(run).items()
    return {key: value for key, value in every if key in used or key.startswith(OF_PARTITION)}


def protocol_of(group: RunGroup, *, by_round: bool) -> tuple[Any, ...]:
    """The settings that are equal for groups whose accuracies compare: of data and rounds.

    Args:
      group: the group of runs.
      by_round: whether the number depends on which rounds are evaluated, as the best accuracy does.
    """
    names = {'rounds', 'eval_every'} if by_round else {'rounds'}
    seeds = {run.config.get('partition_seed') for run in group.runs}
    # Runs of one partition compare with others of the same one.
    fixed = seeds.pop() if len(seeds) == 1 else None
    return (*_data_of(group.runs[0], names), ('partition_seed', fixed))


def sample_of(group: RunGroup, *, by_round: bool) -> Any:
    """What is equal for groups whose means compare: protocol and seeds; None if a run is missing.

    Args:
      group: the group of runs; a mean that leaves some of them out is not one of all seeds.
      by_round: as in `protocol_of`.
    """
    if not all(run.complete for run in group.runs):
        return None
    return protocol_of(group, by_round=by_round), frozenset(run.seeds for run in group.runs)


def _data_of(run: RecordedRun, further: Container[str] = ()) -> tuple[tuple[str, str], ...]:
    """The settings of a run's data and partition, and further ones."""
    return tuple(
        (name, value)
        for name, value in settings(run).items()
        if name in _DATA or name in further or name.startswith(OF_PARTITION)
    )


def changed_data(runs: Sequence[RecordedRun]) -> list[str]:
    """Sentences about ended runs whose data differs although their settings and seeds do not."""
    sentences: dict[Any, str] = {}
    known: dict[Any, RecordedRun] = {}
    for run in (run for run in runs if run.summary):  # it has the number of auxiliary examples
        flipped = run.config.get('malicious'), run.config.get('attack')
        aside, begun = run.total('auxiliary_examples'), run.config.get('init_from')
        key = _data_of(run), run.seeds, flipped, aside, begun
        for name, value in run.digests.items():
            first = known.setdefault((key, name), run)
            if value != first.digests[name]:
                what = {'digest': 'clients', 'data_digest': 'data'}.get(name, 'initial parameters')
                sentences[key] = (
                    f'{first.path} and {run.path} have the same seeds and settings of the data, '
                    f'but other {what}: files or code have changed in between. Do not compare them.'
                )
    return list(sentences.values())


def conditions_of(group: RunGroup) -> set[tuple[str, str]]:
    """The settings that affect training and evaluation, without hyper-parameters of the method."""
    counted = settings_that_affect('training', 'evaluation')
    return {pair for pair in settings(group.runs[0]).items() if pair[0] in counted}


def header(groups: Sequence[RunGroup]) -> dict[str, tuple[str, str]]:
    """Return the most important settings: setting -> (its name in the header, its values)."""
    runs = [run for group in groups for run in group.runs]
    every = [settings(run) for run in runs]
    facts = {}
    for name, title in _HEADER.items():
        facts[name] = title, _join(values[name] for values in every)
        if name == 'partition':
            of_partition = [settings_of_partition(run) for run in runs]
            for key in dict.fromkeys(itertools.chain(*of_partition)):
                title = key.removeprefix(OF_PARTITION).replace('_', ' ')
                facts[key] = title, _join(v[key] for v in of_partition if key in v)
    facts['seed'] = 'seeds', _join(run.seed for run in sorted(runs, key=lambda run: run.seeds))
    return facts


def _join(texts: Iterable[str]) -> str:
    values = list(dict.fromkeys(texts))
    if len(values) > _MAX_HEADER_VALUES:
        return f'{", ".join(values[:3])}, … {values[-1]} ({len(values)} values)'
    return ', '.join(values)


def shown(value: Any) -> str:
    """Format a JSON value: strings without quotes, None as a dash, 1.0 as 1."""
    if value is None:
        return MISSING
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_PLAIN:
        value = int(value)  # from Python, a setting may be an integer or not
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def group(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """Group runs that differ only in their seeds, in the order of the first runs.

    Runs with equal settings and seeds are not independent samples: they form different groups, of
    which the first has a completed run, if there is one.
    """
    groups: dict[Any, list[int]] = {}
    copies: Counter[Any] = Counter()
    for i in sorted(range(len(runs)), key=lambda i: not runs[i].complete):
        key = tuple(sorted(settings(runs[i]).items()))
        groups.setdefault((key, copies[key, runs[i].seeds]), []).append(i)
        copies[key, runs[i].seeds] += 1
    by_first = sorted(groups.values(), key=min)
    samples = itertools.chain(*(_samples([runs[i] for i in sorted(places)]) for places in by_first))
    ordered = [sorted(members, key=lambda run: run.seeds) for members in samples]
    labels = _labels([members[0] for members in ordered])
    return [RunGroup(label, tuple(runs)) for label, runs in zip(labels, ordered, strict=True)]


def _samples(runs: list[RecordedRun]) -> list[list[RecordedRun]]:
    """Split runs that share values of their fixed seeds, as a partition, from those with others."""
    found: dict[Any, list[RecordedRun]] = {}
    for run in runs:
        found.setdefault(tuple(run.config.get(name) for name in PART_SEEDS), []).append(run)
    shared = any(len(members) > 1 for members in found.values())
    return list(found.values()) if shared else [runs]


def _labels(runs: Sequence[RecordedRun]) -> list[str]:
    """Name each run by its method and the settings that differ within the method, or by path."""
    labels = name_methods([settings(run) for run in runs])
    for describe in (_fixed_seeds, lambda run: f' ({run.path})'):
        labels = [
            label if labels.count(label) == 1 else f'{label}{describe(run)}'
            for label, run in zip(labels, runs, strict=True)
        ]
    return labels


def name_methods(every: Sequence[dict[str, str]]) -> list[str]:
    """Name each of some settings by the method and those that differ within it, if they are few."""
    labels = []
    for run_settings in every:
        method = run_settings['method']
        same_method = [other for other in every if other['method'] == method]
        # A setting that only some partitions have is named if those that have it differ.
        names = [n for n in run_settings if len({o[n] for o in same_method if n in o}) > 1]
        if 1 <= len(names) <= _MAX_LABEL_SETTINGS:
            short = {name: name.removeprefix(f'{method}.') for name in names}
            method += ', ' + ', '.join(f'{short[name]} {run_settings[name]}' for name in names)
        labels.append(method)
    return labels


def _fixed_seeds(run: RecordedRun) -> str:
    """', partition_seed 1' for a run with this fixed seed."""
    values = {name: run.config.get(name) for name in PART_SEEDS}
    return ''.join(f', {name} {value}' for name, value in values.items() if value is not None)


def settings_by_group(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Return setting -> its value in each group, a dash in groups without it."""
    every = [settings(group.runs[0]) for group in groups]
    names = dict.fromkeys(itertools.chain(*every))
    return {name: [values.get(name, MISSING) for values in every] for name in names}


def equal(groups: Sequence[RunGroup]) -> dict[str, str]:
    """Return setting -> value, for settings that are equal in all groups."""
    by_group = settings_by_group(groups)
    return {name: values[0] for name, values in by_group.items() if len(set(values)) == 1}


def mean_curve(
    group: RunGroup, values: Callable[[RecordedRun], dict[int, float]]
) -> MeanCurve | None:
    """Average a field over the runs of a group; None if no run has a value."""
    curves = [curve for run in group.runs if (curve := values(run))]
    if not curves:
        return None
    rounds = sorted(set().union(*curves))
    table = np.array([[curve.get(r, np.nan) for r in rounds] for curve in curves], float)
    rows = np.ma.masked_invalid(table)
    deviation = rows.std(axis=0, ddof=1).filled(np.nan) if len(rows) > 1 else None
    return MeanCurve(np.array(rounds), rows.mean(axis=0).data, deviation)


def class_accuracy(group: RunGroup) -> tuple[np.ndarray, np.ndarray] | None:
    """Average the accuracy of each class over the runs of a group.

    Returns:
      [T] rounds in which a run has it, and [T, C] means over the runs that have it; None if no run
      has it, or runs differ in their classes.
    """
    curves = [curve for run in group.runs if (curve := run.class_accuracy())]
    if len({len(next(iter(curve.values()))) for curve in curves}) != 1:
        return None
    rounds = sorted(set().union(*curves))
    means = [np.mean([curve[r] for curve in curves if r in curve], axis=0) for r in rounds]
    return np.array(rounds), np.array(means)


def seeds(group: RunGroup) -> str:
    """Return the number of seeds of the means, as '2 of 3 seeds'; '' for a single run."""
    counted, every = len(group.counted), len(group.runs)
    if every == 1:
        return ''
    return f'{every} seeds' if counted == every else f'{counted} of {every} seeds'


def seeds_by_round(group: RunGroup) -> str:
    """Return the number of seeds of the curves, as '3 seeds, 2 after round 40'; '' for one run."""
    finite = [[e['round'] for e in run.metrics if not e.get('failed')] for run in group.runs]
    ends = [rounds[-1] for rounds in finite if rounds]
    if len(group.runs) == 1 or not ends:
        return ''
    words = [counted(len(ends), 'seed')]
    for last in sorted(set(ends))[:-1]:
        words.append(f'{sum(end > last for end in ends)} after round {last}')
    return ', '.join(words)


def state(group: RunGroup) -> str:
    """Return the state of the runs: one text if they are equal, else the exceptions by seed."""
    if len({run.state for run in group.runs}) == 1:
        return group.runs[0].state
    if len(group.counted) == len(group.runs):
        return '; '.join(f'seed {run.seed}: {run.state}' for run in group.runs)
    others = [f'seed {r.seed}: {r.state}' for r in group.runs if r.state != 'finished']
    return '; '.join([f'mean of {seeds(group)}', *others])
