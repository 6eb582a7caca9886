"""One accuracy on several data sets and partitions: a row for each method, a column for each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxfed.recording.run_files import OF_PARTITION
from jaxfed.report import tables
from jaxfed.report.comparison import SCORES
from jaxfed.report.grouping import MISSING, RunGroup, name_methods, protocol_of, settings
from jaxfed.report.tables import Cell, GroupTable

_PLAIN = 'dataset', 'partition'  # settings whose values need no name beside them


class Crossing(NamedTuple):
    """A table with a column for each problem, that is data, partition and rounds."""

    title: str  # of the accuracy
    labels: list[str]  # of the rows
    table: GroupTable


def cross(groups: Sequence[RunGroup], score: str = 'final') -> Crossing | None:
    """Arrange an accuracy by method and problem.

    The best mean of a column is marked among groups of completed runs; an asterisk marks groups
    without one.

    Args:
      groups: the groups of runs.
      score: one of `comparison.SCORES`.

    Returns:
      The table; None if the groups are of one problem, or each row would have one cell.
    """
    accuracy, title = SCORES[score]
    by_round = title not in tables.OF_LAST_ROUND
    protocols = [protocol_of(group, by_round=by_round) for group in groups]
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
    complete = [i for i, group in enumerate(groups) if group.counted[0].complete]
    for problem in problems:
        cells |= tables.mark_best({i: cells[i] for i in complete if protocols[i] == problem})
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


def _cell(group: RunGroup, accuracy: tables.RunNumber) -> Cell:
    mark = '' if group.counted[0].complete else ' *'
    return tables.group_cell(group, accuracy, tables.percent, mark)


def _labels(problems: Sequence[tuple[tuple[str, Any], ...]]) -> list[str]:
    """Name each problem by the settings that differ."""
    every = [dict(problem) for problem in problems]
    names = dict.fromkeys(name for problem in every for name in problem)
    values = {name: {problem[name] for problem in every if name in problem} for name in names}
    differing = [name for name in names if len(values[name]) > 1]
    labels = []
    for problem in every:
        words = [
            str(problem[name])
            if name in _PLAIN
            else f'{name.removeprefix(OF_PARTITION)} {problem[name]}'
            for name in differing
            if problem.get(name) not in (None, MISSING)
        ]
        labels.append(', '.join(words) or MISSING)
    return labels
