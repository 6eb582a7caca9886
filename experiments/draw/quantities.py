"""Numbers of a recorded round or run, as figures show them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.grid.runner import RecordedCell

Entry = dict[str, Any]  # a line of metrics.jsonl
Score = Callable[[RecordedCell], float | None]
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


def kept_scores(runs: Sequence[RecordedCell], score: Score) -> list[float]:
    """Scores of the runs that did not diverge, as in the tables."""
    kept = [run for run in runs if not run.summary['failed']]
    return [value for run in kept if (value := score(run)) is not None]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


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


def local_class_accuracy(entry: Entry, client: int) -> list[float] | None:
    """Test accuracy by class of a client's model, from its confusion matrix, in percent."""
    matrix = (entry['local_confusion'] or {}).get(str(client))
    if matrix is None:
        return None
    counts = np.array(matrix, float)
    return list(100 * counts.diagonal() / np.maximum(counts.sum(axis=1), 1))
