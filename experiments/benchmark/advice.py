"""The section "Which method should I use" of README and documentation, from a benchmark."""

from collections.abc import Sequence
from pathlib import Path

from experiments.benchmark.page import shown
from experiments.benchmark.results import BASELINE, LEVEL, Row, missing, tables, verdicts
from experiments.benchmark.suite import Suite
from jaxfed.metrics.intervals import Paired

MOST = 4  # methods in a cell of the table
BEGIN, END = '<!-- {name} benchmark: begin -->', '<!-- {name} benchmark: end -->'


def advice(suite: Suite, rows: Sequence[Row]) -> str:
    """The answer in Markdown.

    Args:
      suite: the suite.
      rows: its finished methods, at least one.
    """
    judged, lines, without = verdicts(rows), [], []
    for (dataset, skew), table in tables(rows).items():
        where = f'{dataset}, {skew.replace("_", " ")}'
        baseline = next((row for row in table if row.place.method == BASELINE), None)
        better = [row for row in table if judged[row.place].sign > 0]
        worse = sum(judged[row.place].sign < 0 for row in table)
        compared = sum(judged[row.place].paired is not None for row in table)
        if compared and not better:
            without.append(where)
        names = [_gain(row, judged[row.place].paired) for row in better[:MOST]]
        names += [f'{len(better) - MOST} more'] * (len(better) > MOST)
        cells = [
            where,
            shown(baseline.interval('final')) if baseline else '–',
            ', '.join(names) or 'none',
            f'{len(better)} / {compared - len(better) - worse} / {worse}',
        ]
        lines.append(f'| {" | ".join(cells)} |')
    lost = 'any line' if len(without) == len(lines) else f'these lines: {"; ".join(without)}'
    nothing = f'Nothing beats FedAvg beyond chance in {lost}.' if without else ''
    head = ['data', 'FedAvg', 'better, by how much', 'better / undecided / worse']
    table_text = '\n'.join([f'| {" | ".join(head)} |', '|---' * len(head) + '|', *lines])
    about = (
        f'{suite.title}: test accuracy after the last round in percent, mean of {suite.seeds} '
        f'seeds ± half of the 95 % interval. A method is better or worse than FedAvg if a paired '
        f"t-test, adjusted by Holm's rule for the methods of a line, has p below {LEVEL}."
    )
    return '\n\n'.join(filter(None, [about, table_text, nothing, missing(suite, rows)])) + '\n'


def _gain(row: Row, paired: Paired | None) -> str:
    return f'`{row.place.method}` {shown(paired.difference, "+") if paired else ""}'


def put(text: str, name: str, path: Path) -> str:
    """The text of a file with the section of a suite replaced.

    Raises:
      ValueError: if the file lacks the marks of the section.
    """
    held = path.read_text()
    begin, end = BEGIN.format(name=name), END.format(name=name)
    if held.count(begin) != 1 or held.count(end) != 1:
        raise ValueError(f'--update: {path} must have the lines {begin} and {end} once.')
    before, _, rest = held.partition(begin)
    _, _, after = rest.partition(end)
    return f'{before}{begin}\n{text}{end}{after}'
