"""FedSSD's figures."""

import functools
from collections.abc import Callable, Sequence

from experiments.draw import curves, matrices, quantities
from experiments.draw.figure import Panel, PaperFigure, Series, of_table
from experiments.draw.phase import after_fedavg
from experiments.fedssd.tables import TABLE_1, TABLE_2

_CIFAR10 = 'fedssd/cifar10_dirichlet0.5'
_DATASETS = {
    _CIFAR10: 'CIFAR-10',
    'fedssd/cifar100_dirichlet0.5': 'CIFAR-100',
    'fedssd/tiny_imagenet_dirichlet0.5': 'Tiny-ImageNet',
}
_SKEWS = {
    'fedssd/cifar10_labels2': '#K=2',
    'fedssd/cifar10_labels5': '#K=5',
    'fedssd/cifar10_dirichlet0.1': 'δ=0.1',
    _CIFAR10: 'δ=0.5',
    'fedssd/cifar10_dirichlet10': 'δ=10',
}
_BY_CLASS = 'class accuracy (%)'
_LOCAL = ('--local_eval_every=1',)
_PAIRS = (
    'The local models of a round start from the global model before it; the global accuracy is '
    "that after it. The paper's round t has the global model from which local training starts, so "
    'its figure may compare with that.'
)
_SERVER = "The clients' data excludes the 64 examples a class that the server keeps."


def _figure_2(rounds: int | None) -> PaperFigure:
    """The difference between the global and the local test accuracy."""
    series = tuple(
        one._replace(label=label, at=(label,))
        for column, label in _SKEWS.items()
        for one in of_table(TABLE_2, column, rows=('FedAvg',), variant=_LOCAL)
    )
    by_skew = tuple(s._replace(label='mean of all rounds') for s in series)
    return PaperFigure(
        'forgetting in local training of FedAvg: global against mean local test accuracy, a dot a '
        'round; their difference by round; and its mean over rounds by heterogeneity (CIFAR-10)',
        (
            Panel('a dot a round', series, curves.dots(
                quantities.global_accuracy, quantities.local_accuracy,
                'global test accuracy (%)', 'mean local test accuracy (%)',
            )),
            Panel('by round', series, curves.by_round(
                quantities.gap, quantities.GAP, zero=True,
            )),
            Panel('by heterogeneity', by_skew, curves.sweep(
                quantities.mean_gap, 'partition', quantities.GAP, zero=True,
            )),
        ),
        across=3,
        notes=(
            _PAIRS,
            'Of the levels of heterogeneity the paper names delta = 0.5 only; these are those of '
            'table II.',
        ),
    )  # fmt: skip


def _figure_3(rounds: int | None) -> PaperFigure:
    """Class accuracies of the global model and of one client's model by round."""
    fedavg = TABLE_1.rows[0]
    measured = (*_LOCAL, '--measure=confusion', '--confusion_clients=0')
    accuracy_by_round = functools.partial(matrices.classes_by_round, label=_BY_CLASS, high=100)
    models = {
        'global model': accuracy_by_round(quantities.class_accuracy),
        'local model': accuracy_by_round(quantities.local_class_accuracy, of_client=True),
    }
    panels = [
        Panel(
            f'{partition}: {model}',
            (Series(column, fedavg, measured),),
            shape_of,
        )
        for column, partition in ((_CIFAR10, 'Dirichlet 0.5'), ('fedssd/cifar10_iid', 'IID'))
        for model, shape_of in models.items()
    ]
    return PaperFigure(
        'class-wise test accuracy of the global model of FedAvg and of the local model of a client '
        'by round (CIFAR-10)',
        tuple(panels),
        across=2,
        one_seed=True,
        measured=True,
        notes=(
            'The client is 0, the first column of figure 6, unless --confusion_clients names '
            'another.',
            _PAIRS,
        ),
    )


def _figure_4(rounds: int | None) -> PaperFigure:
    """Confusion matrices of one client's data and models."""
    fedavg, fedssd = (
        after_fedavg(one, rounds or 11, client=8)
        for one in of_table(TABLE_1, _CIFAR10, rows=('FedAvg', 'FedSSD'))
    )
    return PaperFigure(
        'the data of a client, and confusion matrices of the global model and of the models that '
        'the client trains from it by FedAvg and by FedSSD (CIFAR-10, Dirichlet 0.5)',
        (
            Panel("client's data", (fedavg,), matrices.client_data),
            Panel('global model', (fedavg,), matrices.global_confusion),
            Panel('local model, FedAvg', (fedavg,), matrices.local_confusion),
            Panel('local model, FedSSD', (fedssd,), matrices.local_confusion),
        ),
        across=2,
        one_seed=True,
        measured=True,
        notes=(
            'The client is 8 unless --confusion_clients names another.',
            'Rows are true classes and sum to 1; for the data, the diagonal is the share of each '
            'class. White cells are zero.',
            'The paper does not report the number of rounds; this is after 10 of FedAvg, as in '
            'FedCAD, figure 1. With fewer --rounds, the last round is still that of the method.',
        ),
    )


def _figure_6(rounds: int | None) -> PaperFigure:
    """Examples of each class at each client."""
    return PaperFigure(
        'training examples of each class at each client, Dirichlet 0.5',
        tuple(
            Panel(name, of_table(TABLE_1, column, rows=('FedAvg',)), matrices.partition, False)
            for column, name in _DATASETS.items()
        ),
        across=3,
        one_seed=True,
        notes=(_SERVER,),
    )


def _figure_7(rounds: int | None) -> PaperFigure:
    """Accuracy of the global model and of local models by round, three datasets."""
    return PaperFigure(
        'test accuracy of the global model, and mean of the local models, by round (Dirichlet 0.5)',
        tuple(
            Panel(
                f'{name}: {whose}',
                of_table(TABLE_1, column, variant=_LOCAL),
                curves.by_round(value),
            )
            for whose, value in (
                ('global model', quantities.global_accuracy),
                ('local models', quantities.local_accuracy),
            )
            for column, name in _DATASETS.items()
        ),
        across=3,
    )


def _figure_8(rounds: int | None) -> PaperFigure:
    """Accuracy by round with 100 clients."""
    return PaperFigure(
        'test accuracy by round, 100 clients of which a share C takes part in a round (Dirichlet '
        '0.5)',
        tuple(
            Panel(
                f'{_DATASETS[column]}, C = {share}',
                of_table(TABLE_1, column, variant=_hundred(share)),
                curves.by_round(),
            )
            for column in tuple(_DATASETS)[:2]
            for share in (0.1, 0.2)
        ),
        across=2,
        notes=(
            'The paper has two pictures of each and does not name them; here there is that of the '
            'global model.',
        ),
    )


def _hundred(share: float) -> tuple[str, ...]:
    return '--num_clients=100', f'--clients_per_round={round(100 * share)}'


def _figure_9(rounds: int | None) -> PaperFigure:
    """Accuracy by local epochs."""
    return PaperFigure(
        'final test accuracy by local epochs (CIFAR-10, Dirichlet 0.5)',
        (Panel('', _epochs((1, 10, 20, 50)), curves.sweep(quantities.final, 'local epochs')),),
        notes=("The paper reports only E = 1; the others are those of FedCAD's table 4.",),
    )


def _epochs(values: Sequence[int], default: int = 10) -> tuple[Series, ...]:
    return tuple(
        one._replace(at=(str(e),))
        for e in values
        for one in of_table(
            TABLE_1, _CIFAR10, variant=(f'--local_epochs={e}',) if e != default else ()
        )
    )


FIGURES: dict[str, Callable[[int | None], PaperFigure]] = {
    '2': _figure_2,
    '3': _figure_3,
    '4': _figure_4,
    '6': _figure_6,
    '7': _figure_7,
    '8': _figure_8,
    '9': _figure_9,
}
