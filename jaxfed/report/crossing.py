"""One accuracy on several data sets and partitions: a row for each method, a column for each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxfed.config import PROBLEM, settings_that_affect
from jaxfed.recording.display import PLAIN
from jaxfed.recording.run_files import OF_PARTITION
from jaxfed.report import tables
from jaxfed.report.comparison import SCORES
from jaxfed.report.grouping import MISSING, RunGroup, name_methods, protocol_of, sample_of, settings
from jaxfed.report.tables import Cell, GroupTable

Problem = tuple[tuple[str, Any], ...]  # names of settings and values


class Crossing(NamedTuple):
    """A table with a column for each problem: data, partition, rounds, network and so on."""

    title: str  # of the accuracy
    labels: list[str]  # of the rows
    table: GroupTable


def cross(groups: Sequence[RunGroup], score: str = 'final') -> Crossing | None:
    """Arrange an accuracy by method and problem.

    The best mean of a column is marked among groups of completed runs with the same seeds; an
    asterisk marks groups without a completed run.

    Args:
      groups: the groups of runs.
      score: one of `comparison.SCORES`.

    Returns:
      The table; None if the groups are of one problem, or each row would have one cell.
    """
    accuracy, title = SCORES[score]
    by_round = title not in tables.OF_LAST_ROUND
    protocols = [_problem_of(group, by_round=by_round) for group in groups]
    problems = list(dict.fromkeys(protocols))
    of_problem = {name for protocol in protocols for name, _ in protocol}
    places: dict[tuple[Any, int], dict[Any, int]] = {}  # choice, copy -> problem -> group
    for i, group in enumerate(groups):
        chosen = tuple((k, v) for k, v in settings(group.runs[0]).items() if k not in of_problem)
        copy = sum(protocols[i] in places.get((chosen, n), ()) for n in range(i))
        places.setdefault((chosen, copy), {})[protocols[i]] = i
    if len(problems) == 1 or all(len(row) == 1 for row in places.values()):
        return None
    cells = {i: _cell(group, accuracy) for i, group in enumerate(groups)}
    alike: dict[Any, list[int]] = {}
    for i, group in enumerate(groups):
        if sample := sample_of(group, by_round=by_round):
            alike.setdefault((protocols[i], sample), []).append(i)
    for numbers in alike.values():
        cells |= tables.mark_best({i: cells[i] for i in numbers})
    rows = [
        [cells[row[problem]] if problem in row else Cell(MISSING) for problem in problems]
        for row in places.values()
    ]
    names = name_methods([dict(chosen) for chosen, _ in places])
    firsts = [groups[min(row.values())].runs[0].path for row in places.values()]
    labels = [
        name if names.count(name) == 1 else f'{name} ({path})'
        for name, path in zip(names, firsts, strict=True)
    ]
    return Crossing(title, labels, GroupTable(_labels(problems), rows))


def _problem_of(group: RunGroup, *, by_round: bool) -> Problem:
    """The settings of data and rounds, and others that are no choice, such as the network."""
    protocol = protocol_of(group, by_round=by_round)
    known = {name for name, _ in protocol} | {*settings_that_affect('evaluation')}
    every = settings(group.runs[0]).items()
    return (*protocol, *(pair for pair in every if pair[0] in PROBLEM and pair[0] not in known))


def _cell(group: RunGroup, accuracy: tables.RunNumber) -> Cell:
    mark = '' if group.counted[0].complete else ' *'
    return tables.group_cell(group, accuracy, tables.percent, mark)


def _labels(problems: Sequence[Problem]) -> list[str]:
    """Name each problem by the settings that differ."""
    every = [dict(problem) for problem in problems]
    names = dict.fromkeys(name for problem in every for name in problem)
    values = {name: {problem[name] for problem in every if name in problem} for name in names}
    differing = [name for name in names if len(values[name]) > 1]
    if 'partition_seed' in differing and 'fixed seeds' in differing:
        differing.remove('fixed seeds')  # which lists names of seeds
    return [', '.join(_words(problem, differing)) for problem in every]


def _words(problem: dict[str, Any], names: Sequence[str]) -> list[str]:
    """The values of some settings in words, without those that the problem does not have."""
    words = []
    for name in names:
        value = problem.get(name)
        if name == 'partition_seed' and value is None:
            words.append('partition by seed')
        elif name == 'fixed seeds' and value == MISSING:
            words.append('no fixed seeds')
        elif value not in (None, MISSING):
            plain = name.removeprefix(OF_PARTITION)
            words.append(str(value) if name in PLAIN else f'{plain} {value}')
    return words
