"""What a benchmark says: the answer of every data set and skew, and what is missing."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from experiments.benchmark.results import Row, tables, verdicts
from experiments.benchmark.suite import BASELINE, Suite
from jaxfed.metrics.intervals import Interval

# Column -> what a better method does, and the sign of its difference.
_EFFECTS = {
    'forgetting': ('forgets less than FedAvg', -1),
    'worst class': ('is better than FedAvg in the worst class', 1),
}


class Answer(NamedTuple):
    """What the tests say about a data set and skew."""

    dataset: str
    skew: str
    baseline: Row | None  # of FedAvg
    compared: int  # methods
    above: dict[str, Interval]  # method -> its difference from FedAvg, beyond chance
    below: dict[str, Interval]
    leaning: int  # methods that are not above beyond chance, but with an interval above 0

    @property
    def where(self) -> str:
        """The data set and the skew."""
        return f'{self.dataset}, {self.skew.replace("_", " ")}'

    @property
    def diverged(self) -> bool:
        """Whether a run of FedAvg diverged, so that nothing is compared."""
        return self.baseline is not None and self.baseline.failed > 0

    @property
    def undecided(self) -> int:
        """How many of the compared methods are neither above nor below."""
        return self.compared - len(self.above) - len(self.below)

    @property
    def nothing(self) -> bool:
        """Whether methods were compared, and none is above FedAvg."""
        return self.compared > 0 and not self.above


def make_answers(suite: Suite, rows: Sequence[Row], column: str = 'final') -> list[Answer]:
    """The answer of every data set and skew, by one of `records.COLUMNS`; best methods first."""
    judged, found = verdicts(suite, rows, column), []
    for (dataset, skew), table in tables(rows).items():
        baseline = next((row for row in table if row.place.method == BASELINE), None)
        differences: dict[int, dict[str, Interval]] = {1: {}, 0: {}, -1: {}}
        for row in table:
            verdict = judged[row.place]
            if verdict.paired is not None:
                differences[verdict.sign][row.place.method] = verdict.paired.difference
        compared = sum(judged[row.place].compared for row in table)
        leaning = sum(d.half is not None and d.mean > d.half for d in differences[0].values())
        found.append(
            Answer(
                dataset, skew, baseline, compared, differences[1], differences[-1], leaning=leaning
            )
        )
    return found


def further(suite: Suite, rows: Sequence[Row]) -> list[str]:
    """Sentences on undecided methods, the moving average, forgetting and the worst class.

    The tests are those of `verdicts`; what was not measured has no sentence.
    """
    final, moving = make_answers(suite, rows), make_answers(suite, rows, 'moving')
    sentences = []
    if leaning := sum(answer.leaning for answer in final):
        undecided = sum(answer.undecided for answer in final)
        sentences.append(
            f'{leaning} of {undecided} undecided differences have an interval above 0 that is not '
            'adjusted. Undecided does not mean equal.'
        )
    same = [
        pair for pair in zip(final, moving, strict=True) if pair[0].nothing and pair[1].compared
    ]
    if same:
        too = in_words(answer for answer, by_moving in same if by_moving.above)
        sentences.append(
            f'By the moving average, methods beat FedAvg beyond chance on {too}, too.'
            if too
            else 'By the moving average the same tables have no better method.'
        )
    return [*sentences, *_other_effects(suite, rows)]


def _other_effects(suite: Suite, rows: Sequence[Row]) -> list[str]:
    """Sentences on forgetting and the worst class."""
    sentences, without = [], []
    for column, (text, sign) in _EFFECTS.items():
        answers = make_answers(suite, rows, column)
        better = [(answer, answer.above if sign > 0 else answer.below) for answer in answers]
        won = [f'{", ".join(names)} on {in_words([answer])}' for answer, names in better if names]
        if won:
            sentences.append(f'What {text} beyond chance: {"; ".join(won)}.')
        elif any(answer.compared for answer in answers):
            without.append(text)
    if without:
        sentences.append(f'Beyond chance no method {" or ".join(without)}.')
    return sentences


def diverged(rows: Sequence[Row]) -> str:
    """A sentence about the methods of which a run diverged; empty if none did."""
    failed = [f'{row.place.method} ({in_words([row.place[:2]])})' for row in rows if row.failed]
    return f'Not compared, because a run diverged: {", ".join(failed)}.' if failed else ''


def missing(suite: Suite, rows: Sequence[Row]) -> str:
    """Sentences about what was left out or is not finished; empty if all of the suite is there."""
    return ' '.join(filter(None, [unfinished(suite, rows), left_out(suite)]))


def left_out(suite: Suite) -> str:
    """A sentence about the parts of the suite that were not selected; empty if all were."""
    texts = {'datasets': 'data sets', 'trials': 'methods'}
    names = dict(suite.left_out)
    names['skews'] = tuple(name.replace('_', ' ') for name in names.get('skews', ()))
    named = [f'{texts.get(key, key)} {", ".join(names[key])}' for key in names if names[key]]
    return f'Left out of the suite: {"; ".join(named)}.' if named else ''


def unfinished(suite: Suite, rows: Sequence[Row]) -> str:
    """A sentence about the runs and tables that are not finished; empty if all are."""
    found, keys = tables(rows), list(itertools.product(suite.datasets, suite.skews))
    counts = {key: sum(len(row.runs) for row in found.get(key, [])) for key in keys}
    asked = len(suite.trials) * suite.seeds
    left = [key for key, count in counts.items() if count < asked]
    if not left:
        return ''
    done = f'{sum(counts.values())} of {asked * len(keys)} runs are finished.'
    return f'{done} Not finished: {in_words(left)}.'


def in_words(places: Iterable[tuple[Any, ...]]) -> str:
    """Data sets and skews as text, such as 'digits (iid); mnist (iid, sharding 2)'.

    Args:
      places: the first two elements of each are a data set and a skew.
    """
    skews: dict[str, list[str]] = {}
    for dataset, skew, *_ in places:
        skews.setdefault(dataset, []).append(skew.replace('_', ' '))
    return '; '.join(f'{dataset} ({", ".join(names)})' for dataset, names in skews.items())
