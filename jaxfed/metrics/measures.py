"""The measures that a run can record beside its accuracy, by name; `--measure` chooses.

A measure is a value: what it records, what it costs, and pure functions of what a round has shown.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxfed.metrics.accuracy import Evaluation
from jaxfed.metrics.confusion import confusion_matrix, prediction_share
from jaxfed.metrics.consistency import class_consistency, same_predictions
from jaxfed.metrics.divergence import distribution_divergence, weight_distances
from jaxfed.metrics.drift import diversity, drift
from jaxfed.metrics.forgetting import class_forgetting
from jaxfed.metrics.history import Past
from jaxfed.metrics.in_out import in_out_accuracy, label_shares
from jaxfed.types import PyTree

# What of `Locals` is made only for the measures that ask for it.
Need = Literal['agreement', 'models', 'gradients']


class Gradients(NamedTuple):
    """Full gradients of S clients at the global model before the round, grad f_i."""

    squares: Any  # array [S], ||grad f_i||^2
    mean_square: Any  # array [], ||mean_i grad f_i||^2


class Locals(NamedTuple):
    """The local models of a round's S clients, in the order of the cohort."""

    before: Evaluation  # of the global model that they started from
    after: Evaluation  # of the global model after the round
    each: Evaluation  # [S, ...] of the local models, on the test data like the others
    # These are there for the measures that need them.
    agreement: Any = None  # Agreement [S], with the global model before the round
    models: PyTree = None  # [S, ...] NumPy, their parameters
    start: PyTree = None  # parameters of the global model before the round
    gradients: Any = None  # Gradients


class Seen(NamedTuple):
    """What a round has shown."""

    cohort: np.ndarray  # [S] int32 client ids
    label_counts: np.ndarray  # [S, C] integers, of the cohort
    y: np.ndarray  # [m] int32, labels of the test data
    past: Past
    confusion_clients: tuple[int, ...]


Values = dict[str, Any]  # numbers and arrays


def _nothing(seen: Seen, *evaluated: Any) -> Values:
    return {}


class Measure(NamedTuple):
    """A measure; each function is called in its rounds and gives some of the fields' values."""

    text: str  # what it is, a sentence
    cost: str  # in words
    scalars: tuple[str, ...] = ()  # fields of metrics.jsonl; their last values go to summary.json
    arrays: tuple[str, ...] = ()  # fields of metrics.jsonl
    of_round: Callable[[Seen], Values] = _nothing  # in every round
    # where the global model is evaluated, which gives its evaluation after the round
    of_global: Callable[[Seen, Evaluation], Values] = _nothing
    of_locals: Callable[[Seen, Locals], Values] = _nothing  # where local models are
    local: bool = False  # whether it has nothing to say without local models
    needs: tuple[Need, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields of metrics.jsonl."""
        return self.scalars + self.arrays


def _forgetting(seen: Seen, now: Evaluation) -> Values:
    best = [seen.past.best] if seen.past.rounds else []
    classes = class_forgetting(np.stack([*best, now.class_accuracy]))
    return {'forgetting': classes.mean(), 'class_forgetting': classes}


def _consistency(seen: Seen, now: Evaluation) -> Values:
    if not seen.past.rounds:
        return {}
    before = seen.past
    return {
        'class_consistency': class_consistency(before.class_accuracy, now.class_accuracy),
        'same_predictions': same_predictions(before.predicted, now.predicted),
    }


def _predictions(seen: Seen, now: Evaluation) -> Values:
    return {'prediction_share': prediction_share(now.predicted, _classes(seen))}


def _confusion(seen: Seen, now: Evaluation) -> Values:
    return {'confusion': confusion_matrix(seen.y, now.predicted, _classes(seen))}


def _local_confusion(seen: Seen, local: Locals) -> Values:
    if not seen.confusion_clients:
        return {}
    return {
        'local_confusion': {
            str(client): confusion_matrix(seen.y, predicted, _classes(seen))
            for client, predicted in zip(seen.cohort, local.each.predicted, strict=True)
            if client in seen.confusion_clients
        }
    }


def _cohort_labels(seen: Seen) -> Values:
    return {'cohort': seen.cohort, 'cohort_labels': seen.label_counts.sum(axis=0)}


def _in_out(seen: Seen, local: Locals) -> Values:
    values = {}
    for suffix, evaluation in (
        ('', local.each),
        ('_before', local.before),
        ('_after', local.after),
    ):
        inside, outside = in_out_accuracy(evaluation.class_accuracy, seen.label_counts)
        values[f'in_local_accuracy{suffix}'] = inside.mean()
        values[f'out_local_accuracy{suffix}'] = outside.mean()
    return values


def _drift(seen: Seen, local: Locals) -> Values:
    found = drift(local.models, local.start)
    return {
        'update_norm': found.norms.mean(),
        'update_cosine': found.cosines.mean(),
        'update_diversity': found.diversity,
        'cohort': seen.cohort,
        'update_norms': found.norms,
        'update_cosines': found.cosines,
    }


def _divergence(seen: Seen, local: Locals) -> Values:
    shares = label_shares(seen.label_counts)
    distances = weight_distances(local.models, local.start)
    distributions = distribution_divergence(shares, local.before.class_accuracy)
    return {
        'weight_divergence': distances.mean(),
        'distribution_divergence': distributions.mean(),
    }


def _alignment(seen: Seen, local: Locals) -> Values:
    return {'weight_alignment': local.agreement.alignment.mean()}


def _gradient_diversity(seen: Seen, local: Locals) -> Values:
    return {'gradient_diversity': diversity(*local.gradients)}


def _teacher_kl(seen: Seen, local: Locals) -> Values:
    return {'teacher_kl': local.agreement.kl.mean()}


def _classes(seen: Seen) -> int:
    return seen.label_counts.shape[-1]


MEASURES: dict[str, Measure] = {
    'forgetting': Measure(
        text='Gap between the best class accuracies so far and those of now, and its mean.',
        cost='nothing',
        scalars=('forgetting',),
        arrays=('class_forgetting',),
        of_global=_forgetting,
    ),
    'consistency': Measure(
        text='Cosine of the class accuracies of this and the last evaluated round, and the share '
        'of test examples that are predicted as then.',
        cost='nothing',
        scalars=('class_consistency', 'same_predictions'),
        of_global=_consistency,
    ),
    'predictions': Measure(
        text="Share of each class among the global model's predictions.",
        cost='nothing',
        arrays=('prediction_share',),
        of_global=_predictions,
    ),
    'confusion': Measure(
        text='Counts of test examples by true and predicted class, of the global model, and of '
        'the local models of --confusion_clients by client.',
        cost='C^2 numbers a model in metrics.jsonl',
        arrays=('confusion', 'local_confusion'),
        of_global=_confusion,
        of_locals=_local_confusion,
    ),
    'cohort_labels': Measure(
        text="Training examples of each class that the round's clients hold together.",
        cost='nothing',
        arrays=('cohort', 'cohort_labels'),
        of_round=_cohort_labels,
    ),
    'in_out': Measure(
        text="Test accuracy weighted by what each client's data has much of, and by what it has "
        'little of: mean over local models, and for the global one before and after the round.',
        cost='at most two more tests of the global model',
        scalars=(
            'in_local_accuracy',
            'out_local_accuracy',
            'in_local_accuracy_before',
            'out_local_accuracy_before',
            'in_local_accuracy_after',
            'out_local_accuracy_after',
        ),
        of_locals=_in_out,
        local=True,
    ),
    'drift': Measure(
        text="Norms of the clients' updates, their cosines with the mean update, the means of "
        'both, and mean squared norm to squared norm of the mean.',
        cost='a pass over the local models on the host, one more copy of them',
        scalars=('update_norm', 'update_cosine', 'update_diversity'),
        arrays=('cohort', 'update_norms', 'update_cosines'),
        of_locals=_drift,
        local=True,
        needs=('models',),
    ),
    'divergence': Measure(
        text='Mean distance of local models to the global one that they started from, and of '
        "clients' label shares to its normalised class accuracies.",
        cost='a pass over the local models on the host, one more copy of them',
        scalars=('weight_divergence', 'distribution_divergence'),
        of_locals=_divergence,
        local=True,
        needs=('models',),
    ),
    'alignment': Measure(
        text='Share of the neurons before the last layer that prefer the same class in a local '
        'model and in the global one that it started from, mean.',
        cost='a test of the global model, memory for the features of the test data',
        scalars=('weight_alignment',),
        of_locals=_alignment,
        local=True,
        needs=('agreement',),
    ),
    'gradient_diversity': Measure(
        text="Mean squared norm to squared norm of the mean, of the clients' full gradients at "
        'the global model before the round.',
        cost="about an epoch over the training data of the round's clients",
        scalars=('gradient_diversity',),
        of_locals=_gradient_diversity,
        local=True,
        needs=('gradients',),
    ),
    'teacher_kl': Measure(
        text="Divergence of a local model's predictions on the test data from those of the global "
        'one that it started from, mean.',
        cost='as alignment, whose test it shares',
        scalars=('teacher_kl',),
        of_locals=_teacher_kl,
        local=True,
        needs=('agreement',),
    ),
}


def parse_measures(text: str) -> tuple[str, ...]:
    """Parses a comma list of measures.

    Args:
      text: names out of MEASURES joined by commas, 'all' or 'none'.

    Returns:
      The names.

    Raises:
      ValueError: if a name is unknown or given twice.
    """
    if text in ('none', 'all'):
        return tuple(MEASURES) if text == 'all' else ()
    names = tuple(name.strip() for name in text.split(','))
    for name in names:
        if name not in MEASURES:
            raise ValueError(
                f'--measure={text} names {name!r}: choose from {", ".join(MEASURES)} with commas '
                "between, 'all' or 'none'."
            )
        if names.count(name) > 1:
            raise ValueError(f'--measure={text} names {name!r} twice; name it once.')
    return names


def parse_clients(text: str | None) -> tuple[int, ...]:
    """Parses a comma list of client ids.

    Args:
      text: as '0,3'; None for no client.

    Returns:
      The ids.

    Raises:
      ValueError: if something else is between the commas, or an id is given twice.
    """
    if text is None:
        return ()
    ids = tuple(part.strip() for part in text.split(','))
    if not all(part.isascii() and part.isdecimal() for part in ids):
        raise ValueError(
            f'--confusion_clients={text} must be client ids with commas between, as in 0,3.'
        )
    numbers = tuple(map(int, ids))
    if len(set(numbers)) < len(numbers):
        raise ValueError(f'--confusion_clients={text} names a client twice; name it once.')
    return numbers


def fields(names: Sequence[str]) -> tuple[str, ...]:
    """The fields that measures add to metrics.jsonl.

    Args:
      names: out of MEASURES.

    Returns:
      Each field once.
    """
    return tuple(dict.fromkeys(field for name in names for field in MEASURES[name].fields))


def of_local_models(names: Sequence[str]) -> bool:
    """Whether there are measures among these that have nothing to say without local models.

    Args:
      names: out of MEASURES.

    Returns:
      Whether there are.
    """
    return any(MEASURES[name].local for name in names)


def needs(names: Sequence[str]) -> set[Need]:
    """What of `Locals` measures need beyond what is always there.

    Args:
      names: out of MEASURES.

    Returns:
      Names of its fields.
    """
    return {need for name in names for need in MEASURES[name].needs}


def take(names: Sequence[str], seen: Seen, now: Evaluation | None, local: Locals | None) -> Values:
    """Takes measures of a round.

    Args:
      names: out of MEASURES.
      seen: what the round has shown.
      now: evaluation of the global model after the round, where there is one.
      local: the local models, where they are evaluated.

    Returns:
      All fields of the measures; None for what this round has no value of.
    """
    values: Values = dict.fromkeys(fields(names))
    for measure in (MEASURES[name] for name in names):
        values |= measure.of_round(seen)
        values |= {} if now is None else measure.of_global(seen, now)
        values |= {} if local is None else measure.of_locals(seen, local)
    return values
