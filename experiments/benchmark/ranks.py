"""Ranks of the methods over the tables of a benchmark: Friedman's test, and Nemenyi's."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from experiments.benchmark.results import LEVEL, Row, matrix
from experiments.benchmark.suite import BASELINE

LEAST_BLOCKS, LEAST_METHODS = 4, 3


class Ranks(NamedTuple):
    """Mean ranks of the methods that are complete in all tables, 1 is best."""

    tables: int
    mean: Mapping[str, float]
    friedman: float  # p-value
    nemenyi: Any  # p-values of all pairs, as a frame of pandas


def check_package() -> None:
    """Raise a ValueError if scikit-posthocs is not installed."""
    if importlib.util.find_spec('scikit_posthocs') is None:
        raise ValueError(
            "the page needs the package scikit-posthocs: pip install -e '.[benchmark]'."
        )


def rank(rows: Sequence[Row]) -> Ranks | None:
    """Rank the methods; None with too few of them or too few tables.

    Raises:
      ValueError: if scikit-posthocs is not installed.
    """
    methods, means = matrix(rows)
    if len(methods) < LEAST_METHODS or len(means) < LEAST_BLOCKS:
        return None
    check_package()
    import pandas
    import scikit_posthocs

    frame = pandas.DataFrame(means, columns=methods)
    return Ranks(
        len(means),
        frame.rank(axis=1, ascending=False).mean().to_dict(),
        float(stats.friedmanchisquare(*means.T).pvalue),
        scikit_posthocs.posthoc_nemenyi_friedman(frame),
    )


def different(ranks: Ranks | None) -> list[str]:
    """The methods whose mean rank differs from FedAvg's by Nemenyi's test.

    It follows Friedman's test, if that finds a difference at all.
    """
    if ranks is None or BASELINE not in ranks.mean or ranks.friedman >= LEVEL:
        return []
    p = ranks.nemenyi[BASELINE]
    return [name for name in ranks.mean if name != BASELINE and p[name] < LEVEL]


def rank_sentence(ranks: Ranks | None) -> str:
    """The tests of the mean ranks in words; empty without ranks or FedAvg."""
    if ranks is None or BASELINE not in ranks.mean:
        return ''
    mean, p = ranks.mean[BASELINE], ranks.nemenyi[BASELINE]
    about = (
        f'Mean ranks of {len(ranks.mean)} methods over {ranks.tables} tables, which are taken as '
        f'independent: Friedman test p = {ranks.friedman:.2g}'
    )
    if not different(ranks):
        return f'{about}; no method differs from FedAvg ({mean:.1f}).'
    named = [f'{name} ({ranks.mean[name]:.1f}, p = {p[name]:.2g})' for name in different(ranks)]
    return f'{about}; by the Nemenyi test FedAvg ({mean:.1f}) differs from {", ".join(named)}.'
