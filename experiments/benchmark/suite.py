"""A suite: the data sets, skews, methods and trials of a benchmark, read from a TOML file."""

import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmark.records import COLUMNS, Key, Record, key_of
from experiments.grid import runner
from experiments.grid.runner import Cell, GridRow
from jaxfed.config import DEFAULTS, SEEDS
from jaxfed.internal.messages import suggestion
from jaxfed.runs import config_flags

SUITES = Path(__file__).with_name('suites')
TUNING_SEED = 0  # the trials of a method are compared with one seed
BASELINE = 'fedavg'  # the method that the others are compared with
RESERVED = ('resume', 'seed', 'validation', 'workdir')  # flags that a benchmark sets for each run


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_table(value: Any) -> bool:
    """Whether a value maps names of folders to lists of texts."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all('/' not in name and name not in ('', '.', '..') for name in value)
        and all(map(_are_texts, value.values()))
    )


def _are_published(value: Any) -> bool:
    """Whether a value maps texts to mappings of texts."""
    return isinstance(value, dict) and all(
        isinstance(row, dict) and _are_texts([*row.values()]) for row in value.values()
    )


_TEXT = 'a text', lambda value: isinstance(value, str)
_TABLE = 'a table of lists of texts, whose names can be those of folders', _is_table
# Required key -> what its value must be, and whether a value is.
FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    'title': _TEXT,
    'seeds': ('a whole number of at least 1', lambda value: type(value) is int and value >= 1),
    'validation': ('a number between 0 and 1', lambda v: type(v) is float and 0 < v < 1),
    'flags': ('a list of texts', _are_texts),
    'datasets': _TABLE,
    'skews': _TABLE,
    'trials': _TABLE,
}
OPTIONAL: dict[str, tuple[str, Callable[[Any], bool]]] = {
    'note': _TEXT,
    'source': _TEXT,
    'score': (f'one of {", ".join(COLUMNS)}', lambda value: value in COLUMNS),
    'published': ('a table of tables of texts', _are_published),
}


class Suite(NamedTuple):
    """The settings of a benchmark."""

    name: str
    file: str  # as the page names it
    title: str
    seeds: int
    validation: float  # share of the training data that judges the trials
    flags: tuple[str, ...]  # of all runs
    datasets: Mapping[str, tuple[str, ...]]  # name -> flags
    skews: Mapping[str, tuple[str, ...]]
    # method -> flags of each trial; or a name -> flags with --method, as for another mu
    trials: Mapping[str, tuple[tuple[str, ...], ...]]
    note: str = ''  # what a reader of the answer should know
    # Of a suite that replays another benchmark:
    source: str = ''  # its reference, and how the protocol differs
    score: str = 'final'  # what it reports, one of `records.COLUMNS`
    published: Mapping[str, Mapping[str, str]] = {}  # 'DATASET/SKEW' -> method -> percent
    left_out: Mapping[str, tuple[str, ...]] = {}  # 'datasets', 'skews', 'trials', 'seeds', 'rounds'


class Place(NamedTuple):
    """What is compared: a method on a data set with a skew."""

    dataset: str
    skew: str
    method: str


def names() -> list[str]:
    """The names of the suites."""
    return sorted(path.stem for path in SUITES.glob('*.toml'))


def read_suite(name: str) -> Suite:
    """Read a suite.

    Args:
      name: of a file in suites/, or the path of another file.

    Returns:
      The suite.

    Raises:
      ValueError: if there is no such suite, or it lacks something or has an invalid value, or
        methods have unequal numbers of trials.
    """
    path = SUITES / f'{name}.toml' if name in names() else Path(name)
    if not path.is_file():
        raise ValueError(f'--suite={name} is no file{suggestion(name, names())}')
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f'--suite={name} cannot be read: {error}.') from error
    for key in FORMS:
        if key not in values:
            raise ValueError(f'--suite={name} lacks {key}, which must be {FORMS[key][0]}.')
    for key, value in values.items():
        known = FORMS | OPTIONAL
        if key not in known:
            raise ValueError(f'--suite={name} must not have {key}{suggestion(key, known)}')
        rule, holds = known[key]
        if not holds(value):
            raise ValueError(f'--suite={name}: {key} must be {rule}, got {value!r}.')
    places_ = {f'{dataset}/{skew}' for dataset in values['datasets'] for skew in values['skews']}
    for place, row in values.get('published', {}).items():
        if place not in places_ or row.keys() - values['trials'].keys():
            raise ValueError(
                f'--suite={name}: published must name DATASET/SKEW and methods of the suite, got '
                f'{place!r} with {", ".join(row)}.'
            )
    trials = {
        method: tuple(_flags(text.split()) for text in texts)
        for method, texts in values['trials'].items()
    }
    built_in = f'experiments/benchmark/suites/{path.name}'
    suite = Suite(
        path.stem,
        built_in if name in names() else name,
        values['title'],
        values['seeds'],
        values['validation'],
        _flags(values['flags']),
        {key: _flags(flags) for key, flags in values['datasets'].items()},
        {key: _flags(flags) for key, flags in values['skews'].items()},
        trials,
        **{key: values[key] for key in OPTIONAL if key in values},
    )
    try:
        for flags in [suite.flags, *suite.datasets.values(), *suite.skews.values()]:
            _read_flags(flags)
        _check_trials(suite)
    except ValueError as error:
        raise ValueError(f'--suite={name}: {error}') from error
    return suite


def _read_flags(flags: Sequence[str]) -> dict[str, Any]:
    """Name -> value; a ValueError for an unknown flag, or one that a benchmark sets."""
    for flag in flags:
        if flag.startswith('---'):
            raise ValueError(f'write {flag.lstrip("-")} without dashes, got {flag[2:]}.')
    values = config_flags.read_flags(flags)
    for name in RESERVED:
        if name in values:
            raise ValueError(f'leave {name} out, which a benchmark sets for its runs.')
    return values


def _check_trials(suite: Suite) -> None:
    """Raise a ValueError for invalid trials, no budget, or one that is larger than another."""
    if BASELINE not in suite.trials:
        raise ValueError(f'trials must have {BASELINE}, which the others are compared with.')
    budgets = {method: len(trials) for method, trials in suite.trials.items()}
    if len({*budgets.values()}) != 1 or 0 in budgets.values():
        raise ValueError(
            f'every method must have the same number of trials, at least 1, got {budgets}.'
        )
    for method, trials in suite.trials.items():
        values = [_read_flags(trial) for trial in trials]
        if any(one == other for one, other in itertools.combinations(values, 2)):
            raise ValueError(f'two trials of {method} are equal.')


def _flags(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(f'--{text}' for text in texts)


def select(suite: Suite, **chosen: Sequence[str] | None) -> Suite:
    """A suite with some of its data sets, skews or methods (`trials`).

    Raises:
      ValueError: for a name that the suite lacks, or no name.
    """
    for field, names_ in chosen.items():
        held: Mapping[str, Any] = getattr(suite, field)
        if names_ is None:
            continue
        flag = 'methods' if field == 'trials' else field
        if not names_:
            raise ValueError(f'--{flag} must name some of {", ".join(held)}, got none.')
        for name in names_:
            if name not in held:
                raise ValueError(
                    f'--{flag}: the suite {suite.name} has no {name}{suggestion(name, held)}'
                )
        kept: Any = {field: {name: held[name] for name in names_}}
        dropped = {field: tuple(name for name in held if name not in names_)}
        suite = suite._replace(**kept, left_out={**suite.left_out, **dropped})
    return suite


def shorten(suite: Suite, *, seeds: int | None, rounds: int | None) -> Suite:
    """A suite with another number of seeds; `left_out` names seeds and rounds that it lacks."""
    left_out = dict(suite.left_out)
    if rounds is not None and rounds < (own_rounds := _most_rounds(suite)):
        left_out['rounds'] = (f'{rounds + 1} to {own_rounds}',)
    if seeds is None:
        return suite._replace(left_out=left_out)
    left_out['seeds'] = tuple(map(str, range(seeds, suite.seeds)))
    return suite._replace(seeds=seeds, left_out=left_out)


def _most_rounds(suite: Suite) -> int:
    """The largest number of rounds of its runs."""
    name = '--rounds='
    trials = {
        tuple(flag for flag in trial if flag.startswith(name))  # others need not be read
        for trial in itertools.chain(*suite.trials.values())
    }
    every = itertools.product(suite.datasets.values(), suite.skews.values(), trials)
    settings = (config_flags.read_flags([*suite.flags, *d, *s, *trial]) for d, s, trial in every)
    return max(int(one.get('rounds', DEFAULTS['rounds'])) for one in settings)


def refuse(suite: Suite, extra: Sequence[str]) -> None:
    """Raise a ValueError for the first flag after -- that the suite sets for some of its runs."""
    groups = [suite.flags, *suite.datasets.values(), *suite.skews.values()]
    groups += [trial for trials in suite.trials.values() for trial in trials]
    settings = config_flags.read_flags([flag for flags in groups for flag in flags])
    for name, value in config_flags.read_flags(extra).items():
        if name in (*settings, *SEEDS, 'validation'):
            raise ValueError(
                f'--{name}={value} after --: the suite {suite.name} sets --{name} for its runs; '
                'leave it out.'
            )


def places(suite: Suite) -> list[Place]:
    """Everything that is compared, methods of one data set and skew next to each other."""
    return [
        Place(dataset, skew, method)
        for dataset in suite.datasets
        for skew in suite.skews
        for method in suite.trials
    ]


def tuning_cells(suite: Suite, place: Place, output: Path, flags: Sequence[str]) -> list[Cell]:
    """The runs of the trials of a method, judged on held-out training data; none for one trial."""
    if len(suite.trials[place.method]) == 1:
        return []
    held_out = (*flags, f'--validation={suite.validation}')
    return [
        _cell(suite, place, trial, TUNING_SEED, output / 'tuning', held_out)
        for trial in suite.trials[place.method]
    ]


def test_cells(
    suite: Suite, place: Place, trial: Sequence[str], output: Path, flags: Sequence[str]
) -> list[Cell]:
    """The runs of the chosen trial, on all training data and judged once on the test data."""
    first = _cell(suite, place, trial, 0, output / 'runs', flags)
    return [runner.with_seed(first, seed) for seed in range(suite.seeds)]


def _cell(
    suite: Suite, place: Place, trial: Sequence[str], seed: int, output: Path, flags: Sequence[str]
) -> Cell:
    base = [*suite.flags, *suite.datasets[place.dataset], *suite.skews[place.skew]]
    return runner.make_cell(
        f'{place.dataset}/{place.skew}',
        GridRow(place.method, (f'--method={place.method}',)),
        seed,
        output=output,
        flags=flags,
        variant=trial,
        base=base,
    )


def choose(
    suite: Suite, place: Place, cells: Sequence[Cell], finished: Mapping[Key, Record]
) -> tuple[str, ...] | None:
    """The flags of the trial with the best final accuracy on held-out data.

    The earlier trial wins a tie. A trial that diverged loses; if all did, the first is chosen.

    Args:
      suite: the suite.
      place: the method.
      cells: from `tuning_cells`.
      finished: all finished runs.

    Returns:
      The flags, None if a trial is not finished.
    """
    if not all(key_of(cell) in finished for cell in cells):
        return None
    scores = [finished[key_of(cell)].numbers.get('final', -1.0) for cell in cells]
    return suite.trials[place.method][scores.index(max(scores)) if cells else 0]
