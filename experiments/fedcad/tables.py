"""The tables of FedCAD.

He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning, 2022. Its
hyper-parameters are in section 'Experimental Setup'.
"""

from experiments.grid.published import Column, PaperTable
from experiments.grid.runner import GridRow

PAPER = 'FedCAD'
ROWS = (
    GridRow('FedAvg', ('--method=fedavg',)),
    GridRow('FedProx', ('--method=fedprox', '--mu=0.01')),
    GridRow('FedLSD', ('--method=fedlsd', '--fedlsd.alpha=0.3', '--tau=2')),
    GridRow('FedCAD', ('--method=fedcad', '--beta=0.25', '--gamma=0.5', '--tau=2')),
)
CIFAR100 = {'FedProx': ('--mu=0.001',)}
NOTES = (
    'The paper searches mu in {0.001, 0.01, 0.1}, the weight of FedLSD in {0.1, 0.3, 0.5} and beta '
    'and gamma in {0, 0.3, 0.5, 0.7}, and does not report the result. Here mu is 0.01 (CIFAR-100 '
    "0.001, the best values of FedSSD's paper), the weight of FedLSD 0.3, and beta 0.25 and gamma "
    '0.5 as in the student abstract. experiments.search searches them without test data. T is 2, '
    'which the paper has for FedLSD and does not report for FedCAD.',
    'Every method sets the same 32 examples a class aside, so that all have the same partition.',
    'The paper reports no augmentation, no weight decay and no limit to the size of a client. Crop '
    'and flip on CIFAR, decay 1e-5 and no more of a class for a client that holds its share of all '
    'examples follow the code of MOON; FedSSD, by the same authors, follows its experiments.',
    'The paper does not report the number of runs.',
)

TABLE_1 = PaperTable(
    'fedcad/1',
    PAPER,
    'Accuracy and rounds to 65 % (CIFAR) and 90 % (FEMNIST)',
    (
        Column('cifar10', 'CIFAR-10', 'fedcad/cifar10_dirichlet0.5'),
        Column('cifar100', 'CIFAR-100', 'fedcad/cifar100_dirichlet0.5', flags=CIFAR100),
        Column('femnist', 'FEMNIST', 'fedcad/femnist'),
    ),
    ROWS,
    """
    FedAvg  71.29/41 71.87/19 94.25/6
    FedProx 71.52/43 71.58/20 94.62/6
    FedLSD  72.56/38 72.64/29 94.68/5
    FedCAD  73.14/22 73.27/20 94.65/4
    """,
    score='final',
    speed='rounds',
    target='flag',
    notes=NOTES,
)

TABLE_2 = PaperTable(
    'fedcad/2',
    PAPER,
    'Accuracy by skew, CIFAR-10',
    (
        Column('delta0.1', 'δ = 0.1', 'fedcad/cifar10_dirichlet0.1'),
        Column('delta0.5', 'δ = 0.5', 'fedcad/cifar10_dirichlet0.5'),
        Column('delta5', 'δ = 5', 'fedcad/cifar10_dirichlet5'),
        Column('delta10', 'δ = 10', 'fedcad/cifar10_dirichlet10'),
    ),
    ROWS,
    """
    FedAvg  61.73 71.29 71.56 72.98
    FedProx 62.85 71.52 71.82 72.26
    FedLSD  61.54 72.56 73.43 73.34
    FedCAD  63.80 73.14 74.00 73.47
    """,
    score='final',
    notes=NOTES,
)

TABLE_3 = PaperTable(
    'fedcad/3',
    PAPER,
    'Accuracy by share of the 100 clients in a round, CIFAR-10',
    (
        Column('ratio0.1', 'C = 0.1', 'fedcad/cifar10_ratio0.1'),
        Column('ratio0.3', 'C = 0.3', 'fedcad/cifar10_ratio0.3'),
        Column('ratio0.5', 'C = 0.5', 'fedcad/cifar10_ratio0.5'),
    ),
    ROWS,
    """
    FedAvg  57.64 60.06 60.76
    FedProx 58.64 59.96 60.66
    FedLSD  58.80 62.28 61.24
    FedCAD  59.96 62.59 62.44
    """,
    score='final',
    notes=NOTES,
)

TABLE_4 = PaperTable(
    'fedcad/4',
    PAPER,
    'Accuracy by local epochs, CIFAR-10',
    (
        Column('epochs1', 'E = 1', 'fedcad/cifar10_epochs1'),
        Column('epochs10', 'E = 10', 'fedcad/cifar10_dirichlet0.5'),
        Column('epochs20', 'E = 20', 'fedcad/cifar10_epochs20'),
        Column('epochs50', 'E = 50', 'fedcad/cifar10_epochs50'),
    ),
    ROWS,
    """
    FedAvg  64.19 70.81 70.01 68.40
    FedProx 64.63 71.52 72.14 72.28
    FedLSD  63.96 72.05 72.08 72.35
    FedCAD  65.10 73.14 72.63 72.51
    """,
    score='final',
    notes=(
        *NOTES,
        'E = 10 is the setting of tables 1 and 2, in which the paper has 71.29 for FedAvg and '
        '72.56 for FedLSD instead of 70.81 and 72.05.',
    ),
)

TABLES = (TABLE_1, TABLE_2, TABLE_3, TABLE_4)
