"""The records of a round and of a run, as plain dictionaries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxfed.config import Config, partition_values
from jaxfed.metrics import Evaluation, mean_of_last, moving_average, rounds_to_target
from jaxfed.metrics.measures import MEASURES
from jaxfed.metrics.selection import fields
from jaxfed.partition import partition_settings

Entry = dict[str, Any]  # a line of metrics.jsonl

_LOCAL = ('local_accuracy', 'personal_accuracy', 'personal_global_accuracy')
_SPREAD = ('personal_worst_tenth', 'personal_deviation')  # with --personal_test only
_EVALUATED = ('test_accuracy', 'test_loss', 'class_accuracy', *_LOCAL)
# The fields of metrics.jsonl and summary.json that are not of measures.
RESERVED = frozenset({
    *_EVALUATED, *_SPREAD,
    'round', 'train_loss', 'learning_rate', 'failed', 'clients', 'seconds', 'evaluation_seconds',
    'local_evaluation_seconds', 'epsilon', 'delta', 'neighbours',
    'method', 'dataset', 'rounds', 'final_accuracy', 'best_accuracy', 'best_round',
    'last10_accuracy', 'moving_accuracy', 'best_moving_accuracy', 'target_accuracy',
    'rounds_to_target', 'seconds_per_round', 'compile_seconds', 'seconds_total', 'client_steps',
    'client_steps_per_second', 'evaluation_share', 'local_evaluation_share', 'cost', 'evaluated_on',
    'devices', 'lanes', 'experiments', 'memory_bytes', 'auxiliary_examples', 'resumed_after',
    'trackers_failed', 'stopped_early',
})  # fmt: skip


def title_of(config: Config) -> str:
    """Dataset, partition with its important settings, and clients, for titles of pictures."""
    parameters, values = partition_settings(config.partition), partition_values(config)
    shown = ', '.join(
        f'{name}={value}'
        for name, value in values.items()
        if 'alpha' in name or value != parameters[name].default
    )
    partition = f'{config.partition} ({shown})' if shown else config.partition
    return f'{config.dataset}, {partition}, {config.num_clients} clients'


def local_fields(config: Config) -> tuple[str, ...]:
    """The fields of local accuracies."""
    return (*_LOCAL, *_SPREAD) if config.personal_test else _LOCAL


def describe_round(
    round_: int,
    train_loss: float | None,
    evaluation: Evaluation | None,
    learning_rate: float,
    local: Mapping[str, float | None],
    measured: dict[str, Any],
) -> Entry:
    """Return the entry of a round without its times; values that were not evaluated are None.

    Args:
      round_: its number.
      train_loss: mean of the local objective, or None if no update of a client with examples
        arrived.
      evaluation: of the global model on the test data.
      learning_rate: of the clients.
      local: of `local_fields`, those that were evaluated.
      measured: fields of measures; the entry has None for values that are not finite.
    """
    entry: Entry = {
        'round': round_,
        **dict.fromkeys(_EVALUATED),
        'train_loss': None if train_loss is None else shortened(train_loss),
        'learning_rate': shortened(learning_rate, 9),
    }
    entry |= {name: None if v is None else shortened(v) for name, v in local.items()}
    if evaluation is not None:
        entry['test_accuracy'] = shortened(float(evaluation.accuracy))
        entry['test_loss'] = shortened(float(evaluation.loss))
        entry['class_accuracy'] = [shortened(float(a)) for a in evaluation.class_accuracy]
    return entry | {name: _plain(value) for name, value in measured.items()}


def shortened(number: float, decimals: int = 6) -> float:
    """Round to some decimals, and smaller numbers to four digits, so that none becomes 0."""
    small = abs(number) < 10.0 ** (3 - decimals)
    return float(f'{number:.4g}' if small else round(number, decimals))


def _plain(value: Any) -> Any:
    """Convert numbers, arrays and dictionaries of them to values that JSON can store."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if value is None:
        return None
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.integer):
        return array.tolist()
    numbers = [shortened(float(number)) for number in array.ravel()]
    rounded = np.array(numbers, object).reshape(array.shape)
    finite: Any = np.where(np.isfinite(array), rounded, np.array(None, object))
    return finite.tolist()


def failed_values(config: Config, measures: Sequence[str]) -> Entry:
    """Return the fields that replace the values of a round that diverged."""
    names = 'train_loss', *_EVALUATED, *local_fields(config), *fields(measures)
    return {**dict.fromkeys(names), 'failed': True}


def not_finite(entry: Entry) -> str | None:
    """Return the name of the first loss that is not finite, or None."""
    losses = ((name, entry[name]) for name in ('train_loss', 'test_loss'))
    return next((name for name, loss in losses if not (loss is None or np.isfinite(loss))), None)


def summarise(
    config: Config, measures: Sequence[str], metrics: list[Entry], seconds: float, steps: int
) -> dict[str, Any]:
    """Compute the fields of summary.json that follow from the rounds.

    Args:
      config: the settings.
      measures: names of the chosen measures.
      metrics: one entry a round.
      seconds: this run's share of the compilation time.
      steps: batches of all clients in all rounds.
    """
    tested = [entry for entry in metrics if entry['test_accuracy'] is not None]
    accuracy = [entry['test_accuracy'] for entry in tested]
    times = [entry['seconds'] for entry in metrics]
    best = int(np.argmax(accuracy)) if tested else None
    moving = [shortened(value) for value in moving_average(accuracy)]
    target = config.target_accuracy
    curve = [e['round'] for e in metrics], [e['test_accuracy'] for e in metrics]
    last10 = mean_of_last(curve)
    scalars = [s for name in measures for s in MEASURES[name].scalars]

    def share(name: str) -> float:
        return round(sum(entry[name] for entry in metrics) / sum(times), 4)

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
        'last10_accuracy': None if last10 is None else shortened(last10),
        'moving_accuracy': moving[-1] if tested else None,
        'best_moving_accuracy': max(moving, default=None),
        **{name: last(name) for name in local_fields(config)},
        'target_accuracy': target,
        'rounds_to_target': None if target is None else rounds_to_target(curve, target),
        'seconds_per_round': round(float(np.median(times)), 4),
        'compile_seconds': round(seconds, 2),
        'client_steps': steps,
        'client_steps_per_second': round(steps / sum(times), 2),
        'evaluation_share': share('evaluation_seconds'),
        'local_evaluation_share': share('local_evaluation_seconds'),
        **{name: last(name) for name in scalars},
    }
