"""The ranking of combinations by their accuracy on held-out training examples."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from experiments.grid import runner
from experiments.grid.runner import Cell
from experiments.grid.scores import Score, score_of
from experiments.search.cells import Combination, Search


class Ranked(NamedTuple):
    """A combination and its place."""

    flags: Combination
    score: Score
    place: int  # from 1, equal means share one; 0 for combinations that `rank` does not place
    given_up: int = 0  # round after which it stopped early; 0 if it did not

    @property
    def values(self) -> list[str]:
        """The values of the flags."""
        return [flag.partition('=')[2] for flag in self.flags]


def rank(search: Search) -> list[Ranked]:
    """Rank the combinations by their mean accuracy on the held-out examples.

    Combinations that stopped early follow all others, those with more rounds first. They have a
    place only if no other combination has one.

    Args:
      search: with some finished cells.

    Returns:
      The combinations, best first; equal ones in the order of the search.

    Raises:
      ValueError: if a run cannot be read, or was evaluated on test data.
    """
    scored = [(flags_, *score_of_cells(cells, search)) for flags_, cells in search.cells.items()]

    def key(score: Score, given_up: int) -> tuple[float, float] | None:
        if score.mean is None or score.failed or score.done < score.asked:
            return None
        return given_up or math.inf, round(score.mean, 2)

    keys = {flags_: key(score, given_up) for flags_, score, given_up in scored}
    ordered = sorted(scored, key=lambda one: keys[one[0]] or (0, 0), reverse=True)
    whole = [k for k in keys.values() if k and k[0] == math.inf]
    placed = sorted(whole or filter(None, keys.values()), reverse=True)
    return [
        Ranked(flags_, score, 1 + placed.index(k) if (k := keys[flags_]) in placed else 0, given_up)
        for flags_, score, given_up in ordered
    ]


def score_of_cells(cells: Sequence[Cell], search: Search) -> tuple[Score, int]:
    """The score of a combination, and the round after which it stopped early, 0 if it did not."""
    runs = {cell.seed: runner.read(cell) for cell in cells if runner.is_done(cell)}
    for cell in cells:
        if cell.seed in runs and runs[cell.seed].summary['evaluated_on'] != 'validation':
            raise ValueError(f'{cell.folder} was evaluated on test data; move it away.')
    early = [r.summary['rounds'] for r in runs.values() if r.summary.get('stopped_early')]
    score = score_of(runs, {}, asked=search.seeds, score=search.score)
    rounds = {r.summary['rounds'] for r in runs.values() if not r.summary['failed']}
    if len(rounds) > 1:  # they have no mean
        score = score._replace(accuracies=(None,) * len(score.accuracies))
    return score, min(early, default=0)


def check_given_up(search: Search) -> None:
    """Raise a ValueError if another search stopped a run early that this search must complete."""
    for cell in search.every:
        summary = runner.read(cell).summary if runner.is_done(cell) else {}
        if summary.get('stopped_early') and summary['rounds'] not in search.rungs:
            raise ValueError(
                f'{cell.folder} was stopped after round {summary["rounds"]} by a search with '
                '--halving or --sampler=optuna; give the same flags, another --output, or move '
                'that folder away.'
            )
