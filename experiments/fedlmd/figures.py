"""FedLMD's figures."""

import functools
from collections.abc import Callable, Iterable

from experiments.draw import curves, matrices, quantities
from experiments.draw.figure import Panel, PaperFigure, Series, of_table
from experiments.fedlmd.tables import FEDAVG, FEDLMD, TABLE_1, TABLE_2, TABLE_3
from experiments.grid.runner import GridRow

_DEFAULT = 'fedlmd/cifar10_lda0.05'
_WHERE = 'CIFAR-10, Dirichlet 0.05'
_BEST = 'best test accuracy (%)'
_ROUNDS = 200
_SHOWN = 100  # rounds of figure 2

FEDLMD_TF = TABLE_2.rows[-1]
_SWITCHED = GridRow(
    'FedLMD-Tf then FedLMD',
    (
        '--method=fedlmd_tf,fedlmd', '--fedlmd_tf.beta=1', '--fedlmd_tf.tau=1', '--fedlmd.beta=1',
        '--fedlmd.tau=1',
    ),
)  # fmt: skip
_ROWS = {row.name: row for row in (*TABLE_3.rows, FEDLMD_TF)}


def _figure_2(rounds: int | None) -> PaperFigure:
    """Labels of a round's clients, and predictions of the global model after it."""
    fedavg, fedlmd = (Series(_DEFAULT, row) for row in (FEDAVG, FEDLMD))

    rows_of = functools.partial(matrices.classes_by_round, last=_SHOWN, gamma=0.5)
    labels = rows_of(quantities.cohort_labels, 'training examples')
    predicted = rows_of(quantities.predicted_shares, 'predictions (%)')
    return PaperFigure(
        f'training examples of the clients of each round by class, and predictions of the global '
        f'model after it by class ({_WHERE})',
        (
            Panel("the round's clients", (fedavg,), labels),
            Panel('predictions, FedAvg', (fedavg,), predicted),
            Panel('predictions, FedLMD', (fedlmd,), predicted),
        ),
        one_seed=True,
        measured=True,
        notes=(f'As in the paper, the first {_SHOWN} of {_ROUNDS} rounds.',),
    )


def _figure_4(rounds: int | None) -> PaperFigure:
    """Accuracy by round of ways to distil."""
    return PaperFigure(
        f'test accuracy by round with and without distillation ({_WHERE})',
        (Panel('', of_table(TABLE_1, _DEFAULT), curves.by_round()),),
    )


def _figure_5(rounds: int | None) -> PaperFigure:
    """Best accuracy of methods without additional computation, by skew."""
    rows = [_ROWS[n] for n in ('FedAvg', 'FedProx', 'FedNova', 'FedRS', 'FedLMD-Tf')]

    def panel(title: str, name: str, values: Iterable[float], xlabel: str) -> Panel:
        series = tuple(
            Series(f'fedlmd/cifar10_{name}{value}', row, at=(str(value),))
            for row in rows
            for value in values
        )
        return Panel(title, series, curves.sweep(quantities.best, xlabel, _BEST))

    return PaperFigure(
        'best test accuracy of methods without more computation than FedAvg, by label skew '
        '(CIFAR-10)',
        (
            panel('sharding', 'sharding', (2, 3, 5, 10), 'shards a client s'),
            panel('LDA', 'lda', (0.05, 0.1, 0.3, 0.5), 'Dirichlet α'),
        ),
        across=2,
        notes=(
            'The paper does not list the methods; these have no forward pass, no pass over the '
            'data and no message in addition to those of FedAvg.',
        ),
    )


def _figure_6(rounds: int | None) -> PaperFigure:
    """Accuracy by round under three skews."""
    return PaperFigure(
        'test accuracy by round (CIFAR-10, Dirichlet 0.05, 0.3 and 0.5)',
        tuple(
            Panel(f'α = {a}', of_table(TABLE_3, f'fedlmd/cifar10_lda{a}'), curves.by_round())
            for a in (0.05, 0.3, 0.5)
        ),
        across=3,
    )


def _figure_7(rounds: int | None) -> PaperFigure:
    """Best accuracy by local epochs and by clients of a round."""
    names = ('FedAvg', 'FedCurv', 'FedProx', 'FedNTD', 'FedLMD-Tf', 'FedLMD')
    rows = [_ROWS[name] for name in names]

    def panel(title: str, flag: str, values: Iterable[int], default: int) -> Panel:
        series = tuple(
            Series(_DEFAULT, row, _unless(flag, value, default), at=(str(value),))
            for row in rows
            for value in values
        )
        return Panel('', series, curves.sweep(quantities.best, title, _BEST))

    return PaperFigure(
        f'best test accuracy by local epochs and by clients of a round ({_WHERE})',
        (
            panel('local epochs', 'local_epochs', (1, 5, 10, 20), 5),
            panel('clients a round', 'clients_per_round', (5, 10, 20, 50), 10),
        ),
        across=2,
        notes=(
            'The paper reports 10 local epochs and 20 and 50 clients; the other values are around '
            "its defaults, and the methods are those of the paper's text.",
        ),
    )


def _unless(flag: str, value: float, default: float) -> tuple[str, ...]:
    """A flag, unless it is the column's: figures then share runs with the tables."""
    return () if value == default else (f'--{flag}={value}',)


def _figure_8(rounds: int | None) -> PaperFigure:
    """Best accuracy by the round in which FedLMD follows FedLMD-Tf."""
    rounds = rounds or _ROUNDS
    switches = sorted({round(rounds * fifth / 5) for fifth in range(6)})

    def at(switch: int) -> Series:
        if 0 < switch < rounds:
            row, flags = _SWITCHED, [f'--switch_round={switch}']
        else:
            row, flags = (FEDLMD_TF if switch else FEDLMD), []
        return Series(_DEFAULT, row, tuple(flags), _SWITCHED.name, (str(switch),))

    shape_of = curves.sweep(quantities.best, 'rounds of FedLMD-Tf', _BEST)
    return PaperFigure(
        f'best test accuracy if FedLMD follows FedLMD-Tf after some rounds ({_WHERE})',
        (Panel('', tuple(map(at, switches)), shape_of),),
        notes=(
            '0 is FedLMD, the last is FedLMD-Tf. The paper does not report the rounds between; '
            'these are fifths of the run.',
        ),
    )


def _figure_9(rounds: int | None) -> PaperFigure:
    """Best accuracy by temperature and weight of the distillation."""

    def grid(row: GridRow) -> Panel:
        series = tuple(
            Series(_DEFAULT, row, (*_unless('tau', tau, 1), *_unless('beta', beta, 1)),
                   at=(str(tau), str(beta)))
            for tau in (0.5, 1, 2, 4)
            for beta in (0.25, 0.5, 1, 2)
        )  # fmt: skip
        shape_of = matrices.sensitivity(quantities.best, 'weight β', 'temperature τ', _BEST)
        return Panel(row.name, series, shape_of)

    return PaperFigure(
        f'best test accuracy by temperature τ and weight β ({_WHERE})',
        (grid(FEDLMD), grid(FEDLMD_TF)),
        across=2,
        notes=("The paper's text does not report the values; these are around τ = β = 1.",),
    )


FIGURES: dict[str, Callable[[int | None], PaperFigure]] = {
    '2': _figure_2,
    '4': _figure_4,
    '5': _figure_5,
    '6': _figure_6,
    '7': _figure_7,
    '8': _figure_8,
    '9': _figure_9,
}
