"""What is recorded of a round and of a whole run, as plain dictionaries."""

from typing import Any

import numpy as np

from jaxfed.config import Config
from jaxfed.metrics import Evaluation, rounds_to_target
from jaxfed.metrics.measures import MEASURES, fields, parse_measures

# What a round that diverged has no value for, nor for measures.
_FAILED = (
    'train_loss',
    'test_loss',
    'test_accuracy',
    'class_accuracy',
    'local_accuracy',
    'personal_accuracy',
    'personal_global_accuracy',
)


def describe_round(
    round_: int,
    train_loss: float | None,
    evaluation: Evaluation | None,
    local: dict[str, float],
    learning_rate: float,
    measured: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Makes one line of metrics.jsonl, without its times; None for what was not evaluated.

    Args:
      round_: its number.
      train_loss: mean of the local objective, None if no client's update arrived.
      evaluation: of the global model on the test data.
      local: means over the round's clients, of those that were evaluated: local_accuracy,
        personal_accuracy and personal_global_accuracy.
      learning_rate: of the clients.
      measured: fields of measures, numbers and arrays; what is not finite becomes None.

    Returns:
      The line.
    """
    entry: dict[str, Any] = {
        'round': round_,
        'test_accuracy': None,
        'test_loss': None,
        'class_accuracy': None,
        'local_accuracy': None,
        'personal_accuracy': None,
        'personal_global_accuracy': None,
        'train_loss': None if train_loss is None else round(train_loss, 6),
        'learning_rate': round(learning_rate, 9),
    }
    entry |= {name: round(value, 6) for name, value in local.items()}
    if evaluation is not None:
        entry['test_accuracy'] = round(float(evaluation.accuracy), 6)
        entry['test_loss'] = round(float(evaluation.loss), 6)
        entry['class_accuracy'] = [round(float(a), 6) for a in evaluation.class_accuracy]
    return entry | {name: _plain(value) for name, value in (measured or {}).items()}


def _plain(value: Any) -> Any:
    """Numbers, arrays and dicts of them as JSON has them."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if value is None:
        return None
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.integer):
        return array.tolist()
    rounded = np.round(array.astype(np.float64), 6).astype(object)
    finite: Any = np.where(np.isfinite(array), rounded, np.array(None, object))
    return finite.tolist()


def failed_values(config: Config) -> dict[str, None]:
    """What a round that diverged has in place of its values.

    Args:
      config: the settings.

    Returns:
      None for every field that has no value.
    """
    return dict.fromkeys((*_FAILED, *fields(parse_measures(config.measure))))


def not_finite(entry: dict[str, Any]) -> str | None:
    """Names a loss of a round that is not finite.

    Args:
      entry: from `describe_round`.

    Returns:
      The name, None if there is no such loss.
    """
    for name in ('train_loss', 'test_loss'):
        if entry[name] is not None and not np.isfinite(entry[name]):
            return name
    return None


def summarise(
    config: Config, metrics: list[dict[str, Any]], compile_seconds: float, steps: int
) -> dict[str, Any]:
    """Makes the numbers of summary.json that follow from the rounds.

    Args:
      config: the settings.
      metrics: one entry a round.
      compile_seconds: this run's share of the time that the compiler took.
      steps: client-steps of all rounds together.

    Returns:
      The summary.
    """
    tested = [entry for entry in metrics if entry['test_accuracy'] is not None]
    accuracy = [entry['test_accuracy'] for entry in tested]
    seconds = [entry['seconds'] for entry in metrics]
    best = int(np.argmax(accuracy)) if tested else None
    target = config.target_accuracy
    curve = [e['round'] for e in tested], accuracy
    scalars = [s for name in parse_measures(config.measure) for s in MEASURES[name].scalars]

    def share(name: str) -> float:
        return round(sum(entry[name] for entry in metrics) / sum(seconds), 4)

    def last(name: str) -> float | None:
        values = [entry[name] for entry in metrics if entry[name] is not None]
        return values[-1] if values else None

    return {
        'method': config.method,
        'dataset': config.dataset,
        'rounds': len(metrics),
        'failed': any(entry.get('failed') for entry in metrics),
        'final_accuracy': accuracy[-1] if tested else None,
        'best_accuracy': None if best is None else accuracy[best],
        'best_round': None if best is None else tested[best]['round'],
        'local_accuracy': last('local_accuracy'),
        'personal_accuracy': last('personal_accuracy'),
        'personal_global_accuracy': last('personal_global_accuracy'),
        'target_accuracy': target,
        'rounds_to_target': None if target is None else rounds_to_target(curve, target),
        'seconds_per_round': round(float(np.median(seconds)), 4),
        'compile_seconds': round(compile_seconds, 2),
        'client_steps': steps,
        'client_steps_per_second': round(steps / sum(seconds), 2),
        'evaluation_share': share('evaluation_seconds'),
        'local_evaluation_share': share('local_evaluation_seconds'),
        **{name: last(name) for name in scalars},
    }
