"""The code of FedRS."""

import sys
import types
from typing import Any
from unittest import mock

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import batches, label_counts, run_clients


class Batches(list):
    """A data loader that FedRS's code can read: it calls next() of its iterator."""

    def __iter__(self):
        iterator = super().__iter__()
        return mock.MagicMock(next=lambda: next(iterator))


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the local training and the merging of FedRS's code."""
    with mock.patch.dict(
        sys.modules, {'pandas': mock.MagicMock(), 'sklearn.metrics': mock.MagicMock()}
    ):
        from algorithms.fedrs import FedRS
    loaders = batches(job)
    settings = {
        'momentum': job.momentum,
        'weight_decay': job.weight_decay,
        'optimizer': 'SGD',
        'local_steps': None,
        'local_epochs': problem.EPOCHS,
        'max_grad_norm': 1e9,
        'cuda': False,
    }

    def train(model, client, rate, number):
        args = types.SimpleNamespace(lr=rate, **settings, **job.parameters)
        owner = mock.MagicMock(args=args, test=lambda model, loader: (0, 0))
        counts = label_counts(loaders[client]).float()
        loader = Batches(loaders[client])
        return FedRS.update_local(owner, number, model, loader, loader, counts / counts.sum())[0]

    def merge(model, models, weights):
        FedRS.update_global(None, 0, model, dict(enumerate(models)), weights)

    return run_clients(job, train, merge)
