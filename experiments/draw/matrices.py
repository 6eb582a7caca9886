"""From recorded runs to the matrix of a panel."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.draw.figure import Found, begun
from experiments.draw.quantities import ACCURACY, Score, kept_scores
from experiments.draw.shapes import Matrix, over_seeds, single
from experiments.grid.runner import Cell, RecordedCell
from jaxfed.internal.files import read_json
from jaxfed.recording import run_files
from jaxfed.runs.partition_map import deal_examples

TakeMatrix = Callable[[str, Sequence[Found]], Matrix]


def sensitivity(score: Score, xlabel: str, ylabel: str, label: str = ACCURACY) -> TakeMatrix:
    """A cell for each pair of values of two hyper-parameters.

    Args:
      score: of a run.
      xlabel: the hyper-parameter of columns.
      ylabel: that of rows.
      label: the quantity of the score, with its unit.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Matrix:
        rows, columns = (tuple(dict.fromkeys(one.series.at[i] for one in found)) for i in (0, 1))
        values, sd = np.full((2, len(rows), len(columns)), np.nan)
        n = np.zeros(values.shape, int)
        for one in found:
            if kept := kept_scores(one.runs, score):
                place = rows.index(one.series.at[0]), columns.index(one.series.at[1])
                values[place], sd[place], n[place] = over_seeds(np.array(kept))
        return Matrix(
            title, xlabel, ylabel, values, sd, n, rows, columns, label, low=None, form='.1f'
        )

    return shape_of


def partition(title: str, found: Sequence[Found]) -> Matrix:
    """Examples of each class at each client, from the record or else from the settings.

    Args:
      title: of the panel.
      found: one series.

    Returns:
      [C, N].

    Reference:
      FedCAD, figure 3; FedSSD, figure 6.
    """
    counts = _label_counts(found[0].cells[0]).T
    high, label = float(counts.max()), 'training examples'  # each partition has a scale
    return _matrix(title, 'client', 'class', counts, label, high=high, gamma=0.5, form='.0f')


def classes_by_round(
    values: Callable[..., Sequence[float] | None],
    label: str,
    *,
    of_client: bool = False,
    last: int | None = None,
    high: float | None = None,
    gamma: float = 1.0,
) -> TakeMatrix:
    """A row for each class and a column for each round, of the first seed.

    Args:
      values: C numbers of an entry, None if it has none.
      label: their quantity, with its unit.
      of_client: whether `values` also takes a client, the first of --confusion_clients.
      last: number of the last round to show, None for all.
      high: value of the darkest colour, None for the largest.
      gamma: exponent of the colours.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Matrix:
        run = begun(found)[0].runs[0]
        more = (_client(run),) if of_client else ()
        by_round = {entry['round']: values(entry, *more) for entry in run.metrics}
        known = {round_: row for round_, row in by_round.items() if row is not None}
        rounds = [round_ for round_ in known if last is None or round_ <= last]
        table = [known[round_] for round_ in rounds]
        counts = np.array(table, float).T if table else np.empty((0, 0))
        return _matrix(
            title, 'round', 'class', counts, label, columns=_numbers(rounds), high=high, gamma=gamma
        )

    return shape_of


def client_data(title: str, found: Sequence[Found]) -> Matrix:
    """The share of each class in the data of one client, on the diagonal of [C, C].

    Reference:
      FedSSD, figure 4a.
    """
    return _confusion(title, np.diag(_shares(begun(found)[0])), xlabel='class')


def global_confusion(title: str, found: Sequence[Found]) -> Matrix:
    """The confusion matrix [C, C] of the global model at the start of the last round.

    Reference:
      FedSSD, figure 4b.
    """
    return _confusion(title, _start(begun(found)[0]))


def local_confusion(title: str, found: Sequence[Found]) -> Matrix:
    """The confusion matrix [C, C] of a client's model after the last round's training.

    Reference:
      FedSSD, figure 4c and 4d.
    """
    return _confusion(title, _local(begun(found)[0]))


def one_client(title: str, found: Sequence[Found]) -> Matrix:
    """Data of a client, and class accuracies of the global model and of its model by method.

    Args:
      title: of the panel.
      found: series whose last rounds start from the same global model.

    Returns:
      [2 + methods, C].

    Reference:
      FedCAD, figure 1.
    """
    methods = begun(found)
    table = [_shares(methods[0]), _start(methods[0]).diagonal()]
    table += [_local(one).diagonal() for one in methods]
    rows = ('data', 'global', *(one.series.name for one in methods))
    label = 'share of data, test accuracy'
    return _matrix(title, 'class', '', np.array(table), label, rows=rows, high=1, form='.2f')


def _confusion(title: str, values: np.ndarray, *, xlabel: str = 'predicted class') -> Matrix:
    return _matrix(title, xlabel, 'true class', values, 'share', high=1, form='.2f')


def _matrix(
    title: str,
    xlabel: str,
    ylabel: str,
    values: np.ndarray,
    label: str,
    *,
    rows: tuple[str, ...] | None = None,
    columns: tuple[str, ...] | None = None,
    **style: Any,
) -> Matrix:
    """A matrix of one seed; rows and columns have numbers unless they have names."""
    height, width = values.shape
    rows = rows or _numbers(range(height))
    columns = columns or _numbers(range(width))
    return Matrix(title, xlabel, ylabel, *single(values), rows, columns, label, **style)


def _start(found: Found) -> np.ndarray:
    """[C, C] shares of the global model at the start of the last round; NaN if it diverged."""
    run = found.runs[0]
    before = [entry for entry in run.metrics if entry['round'] == run.config['rounds'] - 1]
    return _rows_to_shares(before[0]['confusion'] if before else None, found)


def _local(found: Found) -> np.ndarray:
    """[C, C] shares of the client's model after the last round; NaN if training diverged."""
    matrices = found.runs[0].metrics[-1]['local_confusion'] or {}
    return _rows_to_shares(matrices.get(str(_client(found.runs[0]))), found)


def _shares(found: Found) -> np.ndarray:
    """[C] share of each class in the client's data."""
    counts = _label_counts(found.cells[0])[_client(found.runs[0])]
    return counts / counts.sum()


def _label_counts(cell: Cell) -> np.ndarray:
    """[N, C] training examples, recorded by the run or else of the data, which is dealt again."""
    path = cell.folder / run_files.PARTITION
    if path.exists():
        return np.array(read_json(path)['label_counts'])
    return deal_examples(cell.config).label_counts


def _client(run: RecordedCell) -> int:
    return int(str(run.config['confusion_clients']).split(',')[0])


def _rows_to_shares(counts: Any, found: Found) -> np.ndarray:
    if counts is None:
        return np.full(2 * (len(_shares(found)),), np.nan)
    counts = np.array(counts, float)
    sums = counts.sum(axis=1, keepdims=True)
    return counts / np.where(sums, sums, np.nan)


def _numbers(values: Sequence[int] | range) -> tuple[str, ...]:
    return tuple(map(str, values))
