"""The measures that a run can record in addition to its accuracy, by name; `--measure` selects.

A measure is a value: what it records, what it costs, and pure functions of a round's results.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxfed.metrics.accuracy import Evaluation
from jaxfed.metrics.confusion import confusion_matrix, prediction_share
from jaxfed.metrics.consistency import class_consistency, same_predictions
from jaxfed.metrics.divergence import distribution_divergence, weight_distances
from jaxfed.metrics.drift import diversity, drift
from jaxfed.metrics.forgetting import class_forgetting, forgetting
from jaxfed.metrics.history import History
from jaxfed.metrics.in_out import in_out_accuracy, label_shares
from jaxfed.types import PyTree

# The parts of `LocalModels` and of its evaluations ('logits') that are computed only for the
# measures that need them.
Need = Literal['agreement', 'models', 'gradients', 'logits']


class Gradients(NamedTuple):
    """Full gradients of S clients at the global model before the round, grad f_i."""

    squares: Any  # array [S], ||grad f_i||^2
    mean_square: Any  # array [], ||mean_i grad f_i||^2


class Personal(NamedTuple):
    """Accuracies on the examples that S clients keep for their own test; NaN without any."""

    local: np.ndarray  # [S] of the local models
    common: np.ndarray  # [S] of the global model after the round


class LocalModels(NamedTuple):
    """The local models of a round's S clients, in the order of the cohort."""

    before: Evaluation  # of the global model from which they started
    after: Evaluation  # of the global model after the round
    each: Evaluation  # [S, ...] of the local models; all evaluations are on the test data
    personal: Personal | None = None  # None without --personal_test
    # None unless a measure needs them:
    agreement: Any = None  # Agreement [S], with the global model before the round
    models: PyTree = None  # [S, ...] NumPy, their parameters
    start: PyTree = None  # parameters of the global model before the round
    gradients: Any = None  # Gradients


class RoundData(NamedTuple):
    """The data of a round, and its S clients whose updates arrive."""

    cohort: np.ndarray  # [S] int32 client ids
    label_counts: np.ndarray  # [S, C] integers, of the cohort
    y: np.ndarray  # [m] int32, labels of the test data
    history: History  # of the rounds before
    confusion_clients: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        """C."""
        return self.label_counts.shape[-1]


Fields = dict[str, Any]  # fields of metrics.jsonl: numbers and arrays


def _no_fields(data: RoundData, *results: Any) -> Fields:
    return {}


class Measure(NamedTuple):
    """A measure; each of its functions returns some of the fields."""

    text: str  # description, a sentence
    cost: str = 'nothing'  # description
    scalars: tuple[str, ...] = ()  # fields of metrics.jsonl; their last values go to summary.json
    arrays: tuple[str, ...] = ()  # fields of metrics.jsonl
    # scalar -> its title in the report, and whether it is a share; others keep their names
    titles: Mapping[str, tuple[str, bool]] = {}
    by_class: tuple[str, ...] = ()  # those of `arrays` that have a number for each class
    of_round: Callable[[RoundData], Fields] = _no_fields  # in every round
    # in rounds in which the global model is evaluated, from its evaluation after the round
    of_global: Callable[[RoundData, Evaluation], Fields] = _no_fields
    # in rounds in which local models are evaluated
    of_locals: Callable[[RoundData, LocalModels], Fields] = _no_fields
    needs: tuple[Need, ...] = ()
    named_clients: bool = False  # whether `of_locals` is of --confusion_clients only
    # whether it is relative to the global model as the one from which clients start; clients that
    # keep parameters start from another
    from_start: bool = False

    @property
    def local(self) -> bool:
        """Whether all fields are of local models."""
        return self.of_round is self.of_global is _no_fields

    @property
    def tests_locals(self) -> bool:
        """Whether a field is of local models."""
        return self.of_locals is not _no_fields

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields of metrics.jsonl."""
        return self.scalars + self.arrays


def _tested(data: RoundData) -> np.ndarray:
    """[C] bool, the classes with a test example; the accuracy of the others says nothing."""
    return np.bincount(data.y, minlength=data.num_classes) > 0


def _forgetting(data: RoundData, now: Evaluation) -> Fields:
    best = [data.history.best] if data.history.rounds else []
    history = np.stack([*best, now.class_accuracy])
    return {
        'forgetting': forgetting(history, _tested(data)),
        'class_forgetting': class_forgetting(history),
    }


def _consistency(data: RoundData, now: Evaluation) -> Fields:
    if not data.history.rounds:
        return {}
    return {
        'class_consistency': class_consistency(data.history.class_accuracy, now.class_accuracy),
        'same_predictions': same_predictions(data.history.predicted, now.predicted),
    }


def _local_confusion(data: RoundData, local: LocalModels) -> Fields:
    if not data.confusion_clients:
        return {}
    return {
        'local_confusion': {
            str(client): confusion_matrix(data.y, predicted, data.num_classes)
            for client, predicted in zip(data.cohort, local.each.predicted, strict=True)
            if client in data.confusion_clients
        }
    }


def _clients(data: RoundData, local: LocalModels) -> Fields:
    fields = {'cohort': data.cohort, 'local_accuracies': local.each.accuracy}
    if local.personal is None:
        return fields
    return fields | {
        'personal_accuracies': local.personal.local,
        'personal_global_accuracies': local.personal.common,
    }


def _in_out(data: RoundData, local: LocalModels) -> Fields:
    fields, tested = {}, _tested(data)
    evaluations = {'': local.each, '_before': local.before, '_after': local.after}
    for suffix, evaluation in evaluations.items():
        accuracy = np.asarray(evaluation.class_accuracy)[..., tested]
        inside, outside = in_out_accuracy(accuracy, data.label_counts[:, tested])
        fields[f'in_local_accuracy{suffix}'] = inside.mean()
        fields[f'out_local_accuracy{suffix}'] = outside.mean()
    return fields


def _drift(data: RoundData, local: LocalModels) -> Fields:
    updates = drift(local.models, local.start)
    return {
        'update_norm': updates.norms.mean(),
        'update_cosine': updates.cosines.mean(),
        'update_diversity': updates.diversity,
        'cohort': data.cohort,
        'update_norms': updates.norms,
        'update_cosines': updates.cosines,
    }


def _divergence(data: RoundData, local: LocalModels) -> Fields:
    tested = _tested(data)
    shares = label_shares(data.label_counts[:, tested])
    accuracy = np.asarray(local.before.class_accuracy)[tested]
    return {
        'weight_divergence': weight_distances(local.models, local.start).mean(),
        'distribution_divergence': distribution_divergence(shares, accuracy).mean(),
    }


MEASURES: dict[str, Measure] = {
    'forgetting': Measure(
        text='Gap between the best class accuracies so far and the current ones, and its mean.',
        scalars=('forgetting',),
        titles={'forgetting': ('Forgetting', True)},
        arrays=('class_forgetting',),
        by_class=('class_forgetting',),
        of_global=_forgetting,
    ),
    'consistency': Measure(
        text='Cosine of the class accuracies of this and the last evaluated round, and the share '
        'of test examples with the same prediction in both.',
        scalars=('class_consistency', 'same_predictions'),
        titles={
            'class_consistency': ('Cosine of class accuracies with the round before', False),
            'same_predictions': ('Predictions unchanged since the round before', True),
        },
        of_global=_consistency,
    ),
    'predictions': Measure(
        text="Share of each class among the global model's predictions.",
        arrays=('prediction_share',),
        by_class=('prediction_share',),
        of_global=lambda data, now: {
            'prediction_share': prediction_share(now.predicted, data.num_classes)
        },
    ),
    'confusion': Measure(
        text='Counts of test examples by true and predicted class, of the global model, and of '
        'the local models of --confusion_clients by client.',
        cost='C^2 numbers a model in metrics.jsonl',
        arrays=('confusion', 'local_confusion'),
        of_global=lambda data, now: {
            'confusion': confusion_matrix(data.y, now.predicted, data.num_classes)
        },
        of_locals=_local_confusion,
        named_clients=True,
    ),
    'cohort_labels': Measure(
        text="Training examples of each class, summed over the round's clients.",
        arrays=('cohort', 'cohort_labels'),
        by_class=('cohort_labels',),
        of_round=lambda data: {
            'cohort': data.cohort,
            'cohort_labels': data.label_counts.sum(axis=0),
        },
    ),
    'clients': Measure(
        text='Accuracy of the local model of each client of the round on the test data and, with '
        '--personal_test, on the examples that it keeps, with that of the global model there.',
        cost='the tests of the global model',
        arrays=(
            'cohort',
            'local_accuracies',
            'personal_accuracies',
            'personal_global_accuracies',
        ),
        of_locals=_clients,
    ),
    'in_out': Measure(
        text="Test accuracy weighted towards each client's frequent and towards its rare classes: "
        'mean over local models, and for the global model before and after the round.',
        cost='the tests of the global model',
        scalars=tuple(
            f'{side}_local_accuracy{suffix}'
            for suffix in ('', '_before', '_after')
            for side in ('in', 'out')
        ),
        titles={
            f'{side}_local_accuracy{suffix}': (f'{models}, {side}-local accuracy', True)
            for suffix, models in (
                ('', 'Local models'),
                ('_before', 'Global model before the round'),
                ('_after', 'Global model after the round'),
            )
            for side in ('in', 'out')
        },
        of_locals=_in_out,
    ),
    'drift': Measure(
        text="Norms of the clients' updates, their cosines with the mean update, the means of "
        'both, and the ratio of the mean squared norm to the squared norm of the mean.',
        cost='a pass over the local models on the host, one more copy of them',
        scalars=('update_norm', 'update_cosine', 'update_diversity'),
        titles={
            'update_norm': ("Norm of the clients' updates", False),
            'update_cosine': ('Cosine of updates with their mean', False),
            'update_diversity': ('Diversity of updates', False),
        },
        arrays=('cohort', 'update_norms', 'update_cosines'),
        of_locals=_drift,
        needs=('models',),
        from_start=True,
    ),
    'divergence': Measure(
        text='Mean distance of local models to the global model from which they started, and of '
        "clients' label shares to its normalised class accuracies.",
        cost='a pass over the local models on the host, one more copy of them',
        scalars=('weight_divergence', 'distribution_divergence'),
        titles={
            'weight_divergence': (
                'Distance of local models to the global one before the round',
                False,
            ),
            'distribution_divergence': ("Distance of clients' labels to class accuracies", False),
        },
        of_locals=_divergence,
        needs=('models',),
        from_start=True,
    ),
    'alignment': Measure(
        text='Mean share of the neurons before the last layer that prefer the same class in a '
        'local model and in the global model from which it started.',
        cost='a test of the global model, memory for the features of the test data',
        scalars=('weight_alignment',),
        titles={'weight_alignment': ('Neurons that prefer the same class as before', True)},
        of_locals=lambda data, local: {'weight_alignment': local.agreement.alignment.mean()},
        needs=('agreement',),
        from_start=True,
    ),
    'gradient_diversity': Measure(
        text="Ratio of the mean squared norm to the squared norm of the mean of the clients' full "
        'gradients, at the global model before the round.',
        cost="about an epoch over the training data of the round's clients",
        scalars=('gradient_diversity',),
        titles={'gradient_diversity': ('Diversity of gradients', False)},
        of_locals=lambda data, local: {'gradient_diversity': diversity(*local.gradients)},
        needs=('gradients',),
        from_start=True,
    ),
    'teacher_kl': Measure(
        text="Mean divergence of a local model's predictions on the test data from those of the "
        'global model from which it started.',
        cost='the same test as alignment',
        scalars=('teacher_kl',),
        titles={'teacher_kl': ('Divergence from the global model before the round', False)},
        of_locals=lambda data, local: {'teacher_kl': local.agreement.kl.mean()},
        needs=('agreement',),
        from_start=True,
    ),
}
