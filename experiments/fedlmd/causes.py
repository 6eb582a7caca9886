"""What makes the clients of the released code harder: one difference to Dirichlet 0.05 at a time.

python -m experiments.fedlmd.causes

prints the tables of causes and of weights in `experiments/results/fedlmd_cifar10_lda0.05/README.md`
from the runs beside it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.draw.table.markup import markdown_table
from jaxfed.report.reading import read_run

RECORDS = Path(__file__).parent.parent / 'results' / 'fedlmd_cifar10_lda0.05'
CAUSES = {
    'Dirichlet 0.05': '.',
    'Dirichlet 0.05, `--balanced`': 'causes/cap',
    'Dirichlet 0.05, cutout of the released code': 'causes/cutout',
    'Dirichlet 0.05, schedule of the released code': 'causes/schedule',
    'the partition of the released code': 'causes/partition',
    'its partition, schedule of clients and cutout': 'released',
}
WEIGHTS = {
    'by size': 'released',
    'equal': 'causes/uniform',
}
# Methods with records of both weights.
WEIGHED = 'FedAvg', 'FedLMD', 'FedAvg+LS', 'FedNTD-Tf', 'FedLMD-Tf'
SPANS = {'1 to 50': slice(0, 50), '51 to 100': slice(50, 100)}


def describe(run: Path) -> list[str]:
    """The mean accuracy of each span of rounds and the best, in percent."""
    values = read_run(run).values('test_accuracy')
    accuracy = 100 * np.array([values[number] for number in range(1, 101)])
    return [
        f'{x:.1f}' for x in (*(accuracy[span].mean() for span in SPANS.values()), accuracy.max())
    ]


def make_table(folders: Mapping[str, str], methods: Sequence[str]) -> str:
    """Means and best of the first 100 rounds of methods in Markdown, a row for each folder."""
    header = [f'{method}, {number}' for method in methods for number in (*SPANS, 'best')]
    rows = []
    for name, folder in folders.items():
        column = RECORDS / folder / 'fedlmd' / 'cifar10_lda0.05'
        cells = (cell for method in methods for cell in describe(column / method / 'seed0'))
        rows.append([name, *cells])
    return markdown_table(header, rows)


def make_weights(methods: Sequence[str]) -> str:
    """The same numbers with both weights of the clients, a row for each method."""
    header = [f'{name}, {number}' for name in WEIGHTS for number in (*SPANS, 'best')]
    rows = []
    for method in methods:
        runs = [RECORDS / f / 'fedlmd' / 'cifar10_lda0.05' / method for f in WEIGHTS.values()]
        rows.append([method, *(cell for run in runs for cell in describe(run / 'seed0'))])
    return markdown_table(header, rows)


def make_tables() -> tuple[str, str]:
    """The tables of causes and of weights."""
    return make_table(CAUSES, ('FedAvg', 'FedLMD')), make_weights(WEIGHED)


if __name__ == '__main__':
    print(*make_tables(), sep='\n\n')
