"""FedCAD's figures."""

from collections.abc import Callable

from experiments.draw import curves, matrices, quantities
from experiments.draw.figure import Panel, PaperFigure, of_table
from experiments.draw.phase import after_fedavg
from experiments.fedcad.tables import TABLE_1

_COLUMN = 'fedcad/cifar10_dirichlet0.5'


def _figure_1(rounds: int | None) -> PaperFigure:
    """Class accuracies of one client's model after a round of FedAvg, FedLSD and FedCAD."""
    of_methods = of_table(TABLE_1, _COLUMN, rows=('FedAvg', 'FedLSD', 'FedCAD'))
    series = tuple(after_fedavg(one, rounds or 11, client=0) for one in of_methods)
    return PaperFigure(
        'data of a client, class accuracies of the global model after FedAvg and of the model that '
        'the client trains from it by each method (CIFAR-10, Dirichlet 0.5)',
        (Panel('', series, matrices.one_client),),
        one_seed=True,
        measured=True,
        notes=(
            '10 rounds of FedAvg, then one round of 10 local epochs of each method from the same '
            'global model. With fewer --rounds, the last round is still that of the method.',
            'The paper does not report the client; this is client 0 unless --confusion_clients '
            'names another. White cells are zero.',
        ),
    )


def _figure_3(rounds: int | None) -> PaperFigure:
    """Examples of each class at each client."""
    series = of_table(TABLE_1, _COLUMN, rows=('FedAvg',))
    panel = Panel('CIFAR-10, Dirichlet 0.5', series, matrices.partition, trains=False)
    return PaperFigure(
        'training examples of each class at each client', (panel,), one_seed=True,
        notes=('The 32 examples a class that the server keeps are not among them.',),
    )  # fmt: skip


def _figure_4(rounds: int | None) -> PaperFigure:
    """Accuracy of the global model and of local models by round."""
    series = of_table(TABLE_1, _COLUMN, variant=('--local_eval_every=1',))
    return PaperFigure(
        'test accuracy of the global model, and mean of the local models, by round (CIFAR-10, '
        'Dirichlet 0.5)',
        (
            Panel('global model', series, curves.by_round()),
            Panel('local models', series, curves.by_round(quantities.local_accuracy)),
        ),
        across=2,
        notes=(
            'Of its methods the paper names FedAvg, FedLSD and FedCAD; these are those of table 1.',
        ),
    )


def _abstract_figure_1(rounds: int | None) -> PaperFigure:
    """Accuracy of the global model and of local models by round, in the student abstract."""
    variant = ('--local_eval_every=1', '--local_epochs=5', '--model=cnn', '--auxiliary_per_class=0')
    *others, fedcad = of_table(TABLE_1, _COLUMN, variant=variant)
    series = (*others, fedcad._replace(variant=(*fedcad.variant, '--source=client')))
    return PaperFigure(
        'test accuracy of the global model, and mean of the local models, by round, with 5 local '
        'epochs and the weights of FedCAD from local data (CIFAR-10, Dirichlet 0.5)',
        (
            Panel('global model', series, curves.by_round()),
            Panel('local models', series, curves.by_round(quantities.local_accuracy)),
        ),
        across=2,
        notes=(
            "The abstract's network is 'the same CNN architecture as FedAvg', here cnn. It does "
            'not report mu of FedProx, the weight and temperature of FedLSD, the temperature of '
            'FedCAD and the number of rounds; these are those of table 1.',
        ),
    )


FIGURES: dict[str, Callable[[int | None], PaperFigure]] = {
    '1': _figure_1,
    '3': _figure_3,
    '4': _figure_4,
    'abstract1': _abstract_figure_1,
}
