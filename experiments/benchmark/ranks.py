"""Ranks of the methods over the tables of a benchmark: Friedman's test, and Nemenyi's."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from experiments.benchmark.results import BASELINE, LEVEL, Row, matrix

LEAST_BLOCKS, LEAST_METHODS = 4, 3


class Ranks(NamedTuple):
    """Mean ranks of the methods that are complete in all tables, 1 is best."""

    tables: int
    mean: Mapping[str, float]
    friedman: float  # p-value
    nemenyi: Any  # p-values of all pairs, as a frame of pandas


def rank(rows: Sequence[Row]) -> Ranks | None:
    """Rank the methods; None with too few of them or too few tables.

    Raises:
      ValueError: if scikit-posthocs is not installed.
    """
    methods, means = matrix(rows)
    if len(methods) < LEAST_METHODS or len(means) < LEAST_BLOCKS:
        return None
    try:
        import pandas
        import scikit_posthocs
    except ImportError as error:
        raise ValueError(
            "the page needs the package scikit-posthocs: pip install 'jaxfed[benchmark]'."
        ) from error

    frame = pandas.DataFrame(means, columns=methods)
    return Ranks(
        len(means),
        frame.rank(axis=1, ascending=False).mean(),
        float(stats.friedmanchisquare(*means.T).pvalue),
        scikit_posthocs.posthoc_nemenyi_friedman(frame),
    )


def rank_sentence(ranks: Ranks | None) -> str:
    """Which methods the ranks separate from FedAvg; empty without ranks or FedAvg."""
    if ranks is None or BASELINE not in ranks.mean:
        return ''
    base = ranks.mean[BASELINE]
    apart = sorted(
        (mean, method)
        for method, mean in ranks.mean.items()
        if method != BASELINE and ranks.nemenyi.loc[method, BASELINE] < LEVEL
    )
    over = f'Over {ranks.tables} tables the Nemenyi test'
    sides = {
        'better': [f'{method} ({mean:.1f})' for mean, method in apart if mean < base],
        'worse': [f'{method} ({mean:.1f})' for mean, method in apart if mean > base],
    }
    named = [f'{", ".join(names)} {side}' for side, names in sides.items() if names]
    if not named:
        return f'{over} separates no method from FedAvg.'
    return f'{over} ranks {" and ".join(named)} than FedAvg ({base:.1f}).'
