"""The sections "Which method should I use" of README and documentation, from a benchmark."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.benchmark.page import shown
from experiments.benchmark.ranks import different, rank, rank_sentence
from experiments.benchmark.results import (
    BASELINE,
    LEVEL,
    Row,
    in_words,
    missing,
    other_effects,
    tables,
    verdicts,
)
from experiments.benchmark.suite import Suite
from jaxfed.metrics.intervals import Paired

MOST = 6  # methods that are named for a data set and skew
WIDTH = 100  # of a summary, characters
KINDS = ('benchmark', 'benchmark summary')
BEGIN, END = '<!-- {name} {kind}: begin -->', '<!-- {name} {kind}: end -->'


def sections(suite: Suite, rows: Sequence[Row]) -> dict[str, str]:
    """The text of each of `KINDS`; arguments as of `advice`."""
    return dict(zip(KINDS, (advice(suite, rows), summary(suite, rows)), strict=True))


def advice(suite: Suite, rows: Sequence[Row]) -> str:
    """The answer in Markdown.

    Args:
      suite: the suite.
      rows: its finished methods, at least one.
    """
    judged, lines, without = verdicts(suite, rows), [], []
    for (dataset, skew), table in tables(rows).items():
        where = f'{dataset}, {skew.replace("_", " ")}'
        baseline = next((row for row in table if row.place.method == BASELINE), None)
        better = [row for row in table if judged[row.place].sign > 0]
        worse = sum(judged[row.place].sign < 0 for row in table)
        compared = sum(judged[row.place].compared for row in table)
        if compared and not better:
            without.append(where)
        names = _first([_gain(row, judged[row.place].paired) for row in better])
        cells = [
            where,
            _baseline(baseline),
            names or 'none',
            f'{len(better)} / {compared - len(better) - worse} / {worse}',
        ]
        lines.append(f'| {" | ".join(cells)} |')
    lost = 'any line' if len(without) == len(lines) else f'these lines: {"; ".join(without)}'
    nothing = f'Nothing beats FedAvg beyond chance in {lost}.' if without else ''
    head = ['data', 'FedAvg', 'better, by how much', 'better / undecided / worse']
    table_text = '\n'.join([f'| {" | ".join(head)} |', '|---' * len(head) + '|', *lines])
    measured = f'{suite.title}: test accuracy after the last round in percent'
    about = (
        f'{measured}, mean of {suite.seeds} seeds ± half of the 95 % interval. A method is better '
        "or worse than FedAvg if a paired t-test, adjusted by Holm's rule for the methods of the "
        f'suite, has p below {LEVEL}. Intervals are not adjusted.'
    )
    if suite.seeds == 1:
        about = f'{measured}, one seed, so there are no intervals and nothing is compared.'
    failed = [f'{row.place.method} ({in_words([row.place[:2]])})' for row in rows if row.failed]
    diverged = f'Not compared, because a run diverged: {", ".join(failed)}.' if failed else ''
    ranking = rank_sentence(rank(rows))
    effects = other_effects(suite, rows)
    texts = [about, table_text, nothing, effects, ranking, diverged, missing(suite, rows)]
    return '\n\n'.join(filter(None, texts)) + '\n'


def summary(suite: Suite, rows: Sequence[Row]) -> str:
    """The answer in a few lines; arguments as of `advice`."""
    judged, won, lost, below = verdicts(suite, rows), [], [], []
    for key, table in tables(rows).items():
        worse = [f'`{row.place.method}`' for row in table if judged[row.place].sign < 0]
        below += [f'{_first(worse)} on {in_words([key])}'] if worse else []
        better = [f'`{row.place.method}`' for row in table if judged[row.place].sign > 0]
        if better:
            won.append(f'{_first(better)} on {in_words([key])}')
        elif any(judged[row.place].compared for row in table):
            lost.append(key)
    ranked = [f'`{name}`' for name in different(rank(rows))]
    failed = [row.place[:2] for row in rows if row.place.method == BASELINE and row.failed]
    sentences = [
        f'{suite.title}, {len(suite.trials)} methods, {suite.seeds} seeds.',
        f'Better than FedAvg beyond chance: {"; ".join(won)}.' if won else '',
        f'No method beats FedAvg beyond chance on {in_words(lost)}.' if lost else '',
        f'Worse: {"; ".join(below)}.' if below else '',
        other_effects(suite, rows),
        f'By mean rank FedAvg differs from {", ".join(ranked)}.' if ranked else '',
        f'Not compared, because a run of FedAvg diverged: {in_words(failed)}.' if failed else '',
        missing(suite, rows),
    ]
    text = ' '.join(filter(None, sentences))
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False) + '\n'


def _baseline(row: Row | None) -> str:
    """The accuracy of FedAvg, and how many seeds it is of if some are missing."""
    if row is None:
        return '–'
    part = '' if row.complete else f' ({len(row.values("final"))} of {row.asked} seeds)'
    return shown(row.interval('final')) + part


def _first(names: Sequence[str]) -> str:
    more = [f'{len(names) - MOST} more'] * (len(names) > MOST)
    return ', '.join([*names[:MOST], *more])


def _gain(row: Row, paired: Paired | None) -> str:
    return f'`{row.place.method}` {shown(paired.difference, "+") if paired else ""}'


def put(texts: Mapping[str, str], name: str, path: Path) -> str:
    """The text of a file with the sections of a suite replaced, those of `KINDS` that it has.

    Raises:
      ValueError: if the file lacks the marks of a section.
    """
    held = path.read_text()
    marks = {k: (BEGIN.format(name=name, kind=k), END.format(name=name, kind=k)) for k in KINDS}
    present = [kind for kind in KINDS if any(mark in held for mark in marks[kind])]
    for kind in present or KINDS[:1]:
        begin, end = marks[kind]
        if held.count(begin) != 1 or held.count(end) != 1:
            raise ValueError(f'--update: {path} must have the lines {begin} and {end} once.')
        before, _, rest = held.partition(begin)
        _, _, after = rest.partition(end)
        held = f'{before}{begin}\n{texts[kind]}{end}{after}'
    return held
