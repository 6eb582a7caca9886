"""Runs of one setting that differ in nothing but their seed, as one with mean and deviation."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxfed.config import SEEDS, settings_that_affect
from jaxfed.metrics import rounds_to_target
from jaxfed.report.reading import Run, with_defaults

_LONGEST = 3  # settings that a label may tell


class Group(NamedTuple):
    """Runs with the same settings and different seeds."""

    label: str
    runs: tuple[Run, ...]  # ascending by seed

    @property
    def counted(self) -> tuple[Run, ...]:
        """Those that a mean is of: with all rounds, or every run where there is no such.

        What a run has reached that diverged, was given up or is on its way is no sample of what a
        whole one does.
        """
        return tuple(run for run in self.runs if run.complete) or self.runs


class Spread(NamedTuple):
    """A number of every counted run of a group that has it."""

    mean: float
    deviation: float | None  # of the sample; None of a single run


class Curve(NamedTuple):
    """A field by round, over the runs of a group that have it."""

    rounds: np.ndarray  # [T], those in which one of these runs has a value
    mean: np.ndarray  # [T], over those that have one
    deviation: np.ndarray | None  # [T], of the sample, NaN where one has it; None of a single run


def settings(run: Run) -> dict[str, str]:
    """Everything that determines what a run trains, but its seeds, as flags would say it.

    Args:
      run: the run.

    Returns:
      Name -> value; hyper-parameters as 'fedlmd.beta', whether they were given or are defaults.
    """
    config = with_defaults(run.config)
    parts = config.pop('method_parts')
    given = config.pop('hyperparameters')
    own = config.pop('partition_settings')
    for name in (*SEEDS, 'versions', 'device', *settings_that_affect('machine', 'records')):
        config.pop(name, None)
    for part in parts:
        config |= {f'{part["name"]}.{name}': v for name, v in part['hyperparameters'].items()}
    if not parts:  # a method of one's own
        config |= given
    config |= {f'partition.{name}': value for name, value in own.items()}
    return {name: shown(value) for name, value in config.items()}


def shown(value: Any) -> str:
    """A JSON value in few characters.

    Args:
      value: as `json` reads it.

    Returns:
      A string as it is, a dash for None, anything else as JSON.
    """
    if value is None:
        return '–'
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def group(runs: Sequence[Run]) -> list[Group]:
    """Put runs that differ in nothing but their seeds together.

    Two runs with the same settings and the same seeds are no two samples, so they are apart.

    Args:
      runs: any.

    Returns:
      The groups in the order of their first runs, each with a label of its own.
    """
    together: dict[Any, list[Run]] = {}
    copies: Counter[Any] = Counter()
    for run in runs:
        key = tuple(sorted(settings(run).items()))
        same = key, run.seeds
        together.setdefault((key, copies[same]), []).append(run)
        copies[same] += 1
    found = [sorted(each, key=lambda run: run.seeds) for each in together.values()]
    labels = _labels([each[0] for each in found])
    return [Group(label, tuple(each)) for label, each in zip(labels, found, strict=True)]


def differing(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Settings that are not the same in all groups.

    Args:
      groups: from `group`.

    Returns:
      Name -> value of each group, a dash where it has no such setting.
    """
    return {name: values for name, values in _table(groups).items() if len(set(values)) > 1}


def equal(groups: Sequence[Group]) -> dict[str, str]:
    """Settings that are the same in all groups.

    Args:
      groups: from `group`.

    Returns:
      Name -> value.
    """
    return {name: values[0] for name, values in _table(groups).items() if len(set(values)) == 1}


def _table(groups: Sequence[Group]) -> dict[str, list[str]]:
    each = [settings(g.runs[0]) for g in groups]
    names = dict.fromkeys(name for held in each for name in held)
    return {name: [held.get(name, '–') for held in each] for name in names}


def _labels(runs: Sequence[Run]) -> list[str]:
    """Methods, told apart by the settings in which runs of one method differ, or by directory."""
    every = [settings(run) for run in runs]
    labels = []
    for run, own in zip(runs, every, strict=True):
        method = run.config['method']
        alike = [held for held in every if held['method'] == method]
        names = [name for name in own if len({held.get(name) for held in alike}) > 1]
        told = ', '.join(f'{name} {own[name]}' for name in names)
        labels.append(f'{method}, {told}' if told and len(names) <= _LONGEST else method)
    return [
        label if labels.count(label) == 1 else f'{label} ({run.path})'
        for label, run in zip(labels, runs, strict=True)
    ]


def spread(group: Group, number: Callable[[Run], float | None]) -> Spread | None:
    """Mean and deviation of a number over the counted runs of a group.

    Args:
      group: the group.
      number: of a run; None if it has none.

    Returns:
      Both; None if none of them has it.
    """
    values = [value for value in map(number, group.counted) if value is not None]
    return spread_of(values) if values else None


def spread_of(values: Sequence[float] | np.ndarray) -> Spread:
    """Mean and deviation of numbers.

    Args:
      values: at least one.

    Returns:
      The mean, and the deviation of the sample, None of a single number.
    """
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation)


def curve(group: Group, values: Callable[[Run], dict[int, float]]) -> Curve | None:
    """Mean and deviation of a field by round, each over the runs that have it in that round.

    Args:
      group: the group.
      values: of a run, round -> value.

    Returns:
      The curve; None if no run has a value.
    """
    found = [held for held in map(values, group.runs) if held]
    if not found:
        return None
    rounds = sorted(set().union(*found))
    held_or_nan = np.array([[held.get(r, np.nan) for r in rounds] for held in found], float)
    rows = np.ma.masked_invalid(held_or_nan)
    deviation = rows.std(axis=0, ddof=1).filled(np.nan) if len(rows) > 1 else None
    return Curve(np.array(rounds), rows.mean(axis=0).data, deviation)


def class_accuracy(group: Group) -> tuple[np.ndarray, np.ndarray] | None:
    """Accuracy of each class by round, mean over the runs of a group that have it in that round.

    Args:
      group: the group.

    Returns:
      [T] rounds in which a run has it, and [T, C]; None if there is none.
    """
    found = [held for held in (run.by_class('class_accuracy') for run in group.runs) if held]
    sizes = {len(next(iter(held.values()))) for held in found}
    if len(sizes) != 1:
        return None
    rounds = sorted(set().union(*found))
    means = [np.mean([held[r] for held in found if r in held], axis=0) for r in rounds]
    return np.array(rounds), np.array(means)


def final(run: Run) -> float | None:
    """Accuracy when last evaluated.

    Args:
      run: the run.

    Returns:
      The accuracy in 0..1; None if it was never evaluated.
    """
    return next(reversed(run.values('test_accuracy').values()), None)


def best(run: Run) -> tuple[float, int] | None:
    """Highest accuracy and its first round.

    Args:
      run: the run.

    Returns:
      (accuracy in 0..1, round); None if it was never evaluated.
    """
    held = run.values('test_accuracy')
    round_ = max(held, key=lambda r: held[r], default=None)
    return None if round_ is None else (held[round_], round_)


def to_target(run: Run, target: float | None) -> int | None:
    """First round with an accuracy of at least the target.

    Args:
      run: the run.
      target: in 0..1; None for the run's own.

    Returns:
      The round, None if it was not reached or there is no target.
    """
    target = run.config.get('target_accuracy') if target is None else target
    held = run.values('test_accuracy')
    return None if target is None else rounds_to_target((list(held), list(held.values())), target)
