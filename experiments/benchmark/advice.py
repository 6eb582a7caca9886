"""The sections "Which method should I use" of README and documentation, from a benchmark."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.benchmark.answers import (
    Answer,
    diverged,
    further,
    in_words,
    make_answers,
    missing,
)
from experiments.benchmark.page import shown
from experiments.benchmark.ranks import rank, rank_sentence
from experiments.benchmark.results import LEVEL, Row
from experiments.benchmark.suite import Suite

# Columns of counts, of methods.
_COUNTS = (
    'better / undecided / worse', 'undecided, with an interval above 0', 'by the moving average',
)  # fmt: skip
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
    answers = make_answers(suite, rows)
    moving = make_answers(suite, rows, 'moving')
    lines = [f'| {" | ".join(_cells(*both))} |' for both in zip(answers, moving, strict=True)]
    without = [answer.where for answer in answers if answer.nothing]
    lost = 'any line' if len(without) == len(lines) else f'these lines: {"; ".join(without)}'
    nothing = f'Nothing beats FedAvg beyond chance in {lost}.' if without else ''
    head = ['data', 'FedAvg', 'better, by how much', *_COUNTS]
    table_text = '\n'.join([f'| {" | ".join(head)} |', '|---' * len(head) + '|', *lines])
    measured = f'{suite.title}: test accuracy after the last round in percent'
    about = (
        f'{measured}, mean of {suite.seeds} seeds ± half of the 95 % interval. A method is better '
        "or worse than FedAvg if a paired t-test, adjusted by Holm's rule for the methods of the "
        f'suite, has p below {LEVEL}. Intervals are not adjusted.'
    )
    if suite.seeds == 1:
        about = f'{measured}, one seed, so there are no intervals and nothing is compared.'
    ranking = rank_sentence(rank(rows))
    more = ' '.join(further(suite, rows))
    texts = [about, table_text, nothing, more, ranking, diverged(rows), missing(suite, rows)]
    return '\n\n'.join(filter(None, texts)) + '\n'


def summary(suite: Suite, rows: Sequence[Row]) -> str:
    """The answer in a few lines; arguments as of `advice`."""
    answers = make_answers(suite, rows)
    won = [f'{_first(_code(a.above))} on {in_words([a])}' for a in answers if a.above]
    lost = [answer for answer in answers if answer.nothing]
    below = [f'{_first(_code(a.below))} on {in_words([a])}' for a in answers if a.below]
    failed = [answer for answer in answers if answer.diverged]
    sentences = [
        f'{suite.title}, {len(suite.trials)} methods, {suite.seeds} seeds.',
        f'Better than FedAvg beyond chance after the last round: {"; ".join(won)}.' if won else '',
        f'No method beats FedAvg beyond chance on {in_words(lost)}.' if lost else '',
        f'Worse: {"; ".join(below)}.' if below else '',
        *further(suite, rows),
        f'Not compared, because a run of FedAvg diverged: {in_words(failed)}.' if failed else '',
        missing(suite, rows),
    ]
    text = ' '.join(filter(None, sentences))
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False) + '\n'


def _cells(answer: Answer, moving: Answer) -> list[str]:
    """A line of the table: the answer, and that by the moving average."""
    gains = [f'`{name}` {shown(difference, "+")}' for name, difference in answer.above.items()]
    counts = [f'{len(a.above)} / {a.undecided} / {len(a.below)}' for a in (answer, moving)]
    counts.insert(1, str(answer.leaning))
    return [answer.where, _baseline(answer.baseline), _first(gains) or 'none', *counts]


def _baseline(row: Row | None) -> str:
    """The accuracy of FedAvg, and how many seeds it is of if some are missing."""
    if row is None:
        return '–'
    part = '' if row.complete else f' ({len(row.values("final"))} of {row.asked} seeds)'
    return shown(row.interval('final')) + part


def _first(names: Sequence[str]) -> str:
    more = [f'{len(names) - MOST} more'] * (len(names) > MOST)
    return ', '.join([*names[:MOST], *more])


def _code(names: Iterable[str]) -> list[str]:
    return [f'`{name}`' for name in names]


def put(texts: Mapping[str, str], name: str, path: Path) -> str:
    """The text of a file with the sections of a suite replaced, those of `KINDS` that it has.

    Raises:
      ValueError: if the file cannot be read, or lacks the marks of a section.
    """
    try:
        held = path.read_text()
    except OSError as error:
        raise ValueError(f'--update: {path} cannot be read: {error.strerror}.') from error
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
