"""From recorded runs to the numbers of a panel."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.draw.figure import Found
from experiments.draw.shapes import Curve, Lines, Matrix, Reference, over_seeds, single
from experiments.grid.runner import Cell, RecordedCell
from jaxfed.internal.files import read_json
from jaxfed.recording import run_files
from jaxfed.runs.partition_map import deal_examples

Entry = dict[str, Any]  # a line of metrics.jsonl
Score = Callable[[RecordedCell], float | None]
TakeLines = Callable[[str, Sequence[Found]], Lines]  # from the title and the finished runs
TakeMatrix = Callable[[str, Sequence[Found]], Matrix]

ACCURACY = 'test accuracy (%)'
GAP = 'global − local accuracy\n(percentage points)'


def global_accuracy(entry: Entry) -> float | None:
    """Test accuracy of the global model after a round, in percent."""
    return _percent(entry['test_accuracy'])


def local_accuracy(entry: Entry) -> float | None:
    """Mean test accuracy of a round's local models, in percent."""
    return _percent(entry['local_accuracy'])


def gap(entry: Entry) -> float | None:
    """Global minus mean local test accuracy of a round, in percentage points.

    Reference:
      FedSSD, figure 2.
    """
    accuracy, local = global_accuracy(entry), local_accuracy(entry)
    return None if accuracy is None or local is None else accuracy - local


def best(run: RecordedCell) -> float | None:
    """Best test accuracy over rounds, in percent."""
    return _percent(run.summary['best_accuracy'])


def final(run: RecordedCell) -> float | None:
    """Test accuracy after the last round, in percent."""
    return _percent(run.summary['final_accuracy'])


def mean_gap(run: RecordedCell) -> float | None:
    """Mean over rounds of `gap`."""
    gaps = [value for value in map(gap, run.metrics) if value is not None]
    return float(np.mean(gaps)) if gaps else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def by_round(
    value: Callable[[Entry], float | None] = global_accuracy,
    ylabel: str = ACCURACY,
    *,
    zero: bool = False,
) -> TakeLines:
    """A curve over rounds for each series.

    Args:
      value: of an entry, None if it has none.
      ylabel: the quantity, with its unit.
      zero: draw a line at 0.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Lines:
        curves = []
        for series, _, runs in _begun(found):
            tables = [
                {e['round']: v for e in run.metrics if (v := value(e)) is not None} for run in runs
            ]
            rounds = sorted({round_ for table in tables for round_ in table})
            values = np.array([[table.get(r, np.nan) for r in rounds] for table in tables])
            curves.append(Curve(series.name, np.array(rounds), *over_seeds(values)))
        return Lines(title, 'round', ylabel, tuple(curves), reference='zero' if zero else 'none')

    return shape_of


def dots(
    x: Callable[[Entry], float | None], y: Callable[[Entry], float | None], xlabel: str, ylabel: str
) -> TakeLines:
    """A dot for each round of each run, and the line where both values are equal.

    Args:
      x: of an entry.
      y: of an entry.
      xlabel: the quantity x, with its unit.
      ylabel: the quantity y, with its unit.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Lines:
        curves = []
        for series, _, runs in _begun(found):
            pairs = [(x(entry), y(entry)) for run in runs for entry in run.metrics]
            known = np.array([pair for pair in pairs if None not in pair], float).reshape(-1, 2)
            curves.append(Curve(series.name, known[:, 0], *single(known[:, 1])))
        return Lines(title, xlabel, ylabel, tuple(curves), dots=True, reference='diagonal')

    return shape_of


def sweep(score: Score, xlabel: str, ylabel: str = ACCURACY, *, zero: bool = False) -> TakeLines:
    """A curve for each name of a series over the swept values, in even steps.

    Args:
      score: of a run.
      xlabel: the swept setting.
      ylabel: the quantity of the score, with its unit.
      zero: draw a line at 0.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Lines:
        ticks = tuple(dict.fromkeys(one.series.at[0] for one in found))
        scores = {(one.series.name, one.series.at[0]): _scores(one.runs, score) for one in found}
        curves = []
        for name in dict.fromkeys(one.series.name for one in _begun(found)):
            places = [i for i, tick in enumerate(ticks) if scores.get((name, tick))]
            points = [over_seeds(np.array(scores[name, ticks[i]])) for i in places]
            y, sd, n = np.array(points, float).reshape(-1, 3).T
            curves.append(Curve(name, np.array(places, int), y, sd, n.astype(int)))
        reference: Reference = 'zero' if zero else 'none'
        return Lines(title, xlabel, ylabel, tuple(curves), ticks, reference=reference)

    return shape_of


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
            if scores := _scores(one.runs, score):
                place = rows.index(one.series.at[0]), columns.index(one.series.at[1])
                values[place], sd[place], n[place] = over_seeds(np.array(scores))
        return Matrix(
            title, xlabel, ylabel, values, sd, n, rows, columns, label, low=None, form='.1f'
        )

    return shape_of


def _begun(found: Sequence[Found]) -> list[Found]:
    return [one for one in found if one.runs]


def _scores(runs: Sequence[RecordedCell], score: Score) -> list[float]:
    """Scores of the runs that did not diverge, as in the tables."""
    kept = [run for run in runs if not run.summary['failed']]
    return [value for run in kept if (value := score(run)) is not None]


def partition(title: str, found: Sequence[Found]) -> Matrix:
    """Examples of each class at each client, computed from the settings.

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
    values: Callable[[Entry], Sequence[float] | None],
    label: str,
    *,
    last: int | None = None,
    high: float | None = None,
    gamma: float = 1.0,
) -> TakeMatrix:
    """A row for each class and a column for each round, of the first seed.

    Args:
      values: C numbers of an entry, None if it has none.
      label: their quantity, with its unit.
      last: number of the last round to show, None for all.
      high: value of the darkest colour, None for the largest.
      gamma: exponent of the colours.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Matrix:
        metrics = _begun(found)[0].runs[0].metrics
        known = {entry['round']: v for entry in metrics if (v := values(entry)) is not None}
        rounds = [round_ for round_ in known if last is None or round_ <= last]
        table = [known[round_] for round_ in rounds]
        counts = np.array(table, float).T if table else np.empty((0, 0))
        return _matrix(
            title, 'round', 'class', counts, label, columns=_numbers(rounds), high=high, gamma=gamma
        )

    return shape_of


def class_accuracy(entry: Entry) -> list[float] | None:
    """Test accuracy of the global model by class, in percent."""
    return _percents(entry['class_accuracy'])


def predicted_shares(entry: Entry) -> list[float] | None:
    """Share of each class among the global model's predictions, in percent."""
    return _percents(entry['prediction_share'])


def _percents(shares: Sequence[float] | None) -> list[float] | None:
    return None if shares is None else [100 * share for share in shares]


def cohort_labels(entry: Entry) -> list[float] | None:
    """Training examples of each class at a round's clients."""
    return entry['cohort_labels']


def local_class_accuracy(entry: Entry) -> list[float] | None:
    """Test accuracy by class of the local model with a recorded confusion matrix, in percent."""
    matrices = list((entry['local_confusion'] or {}).values())
    if not matrices:
        return None
    counts = np.array(matrices[0], float)
    return list(100 * counts.diagonal() / np.maximum(counts.sum(axis=1), 1))


def client_data(title: str, found: Sequence[Found]) -> Matrix:
    """The share of each class in the data of one client, on the diagonal.

    Args:
      title: of the panel.
      found: one series, whose runs record the confusion matrix of one client's model.

    Returns:
      [C, C].

    Reference:
      FedSSD, figure 4a.
    """
    return _confusion(title, np.diag(_shares(_begun(found)[0])), xlabel='class')


def global_confusion(title: str, found: Sequence[Found]) -> Matrix:
    """The confusion matrix of the global model at the start of the last round.

    Args:
      title: of the panel.
      found: one series.

    Returns:
      [C, C], rows sum to 1.

    Reference:
      FedSSD, figure 4b.
    """
    return _confusion(title, _start(_begun(found)[0]))


def local_confusion(title: str, found: Sequence[Found]) -> Matrix:
    """The confusion matrix of a client's model after the last round's local training.

    Args:
      title: of the panel.
      found: one series.

    Returns:
      [C, C], rows sum to 1.

    Reference:
      FedSSD, figure 4c and 4d.
    """
    return _confusion(title, _local(_begun(found)[0]))


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
    begun = _begun(found)
    table = [_shares(begun[0]), _start(begun[0]).diagonal()]
    table += [_local(one).diagonal() for one in begun]
    rows = ('data', 'global', *(one.series.name for one in begun))
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
