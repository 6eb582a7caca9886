"""The code of FedDecorr, which also has FedLC."""

import copy
import importlib
import sys
import types
from typing import Any
from unittest import mock

import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import Network, batches, flat

ALGORITHMS = {'feddecorr': ('fedavg', 'FedAvg'), 'fedlc': ('fedlogitcal', 'FedLogitCal')}


class WithFeatures(Network):
    """The same network in the form of FedDecorr's code."""

    def forward(self, x, return_features=False):
        return super().forward(x, get_features=return_features)


class Batches(list):
    """A data loader whose data set has its labels."""

    @property
    def dataset(self):
        labels = torch.cat([y for _, y in self])
        return mock.MagicMock(__len__=lambda _: len(labels), target=labels.numpy())


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the local training and the merging of FedDecorr's code."""
    sys.modules['utils'] = mock.MagicMock(
        compute_accuracy=lambda net, loader: (0, 0)
    )  # it measures accuracy
    with mock.patch.object(torch.Tensor, 'cuda', lambda tensor: tensor):
        file, name = ALGORITHMS[job.algorithm]
        module = importlib.import_module(f'approach.{file}')
        nets = {client: WithFeatures() for client in range(len(job.sizes))}
        for net in nets.values():
            net.cuda = lambda: None
        args = types.SimpleNamespace(
            lr=job.rate(0),
            rho=job.momentum,
            weight_decay=job.weight_decay,
            epochs=problem.EPOCHS,
        )
        loaders = dict(enumerate(map(Batches, batches(job))))
        owner = getattr(module, name)(
            args,
            types.SimpleNamespace(**job.parameters),
            mock.MagicMock(),
            job.cohorts,
            nets,
            copy.deepcopy(nets[0]),
            loaders,
            None,
            [],
        )
        rounds = []
        for number in range(len(job.cohorts)):
            trained = owner.local_training(number)
            local = [flat(net.state_dict()) for net in trained.values()]
            owner.global_aggregation(trained)
            rounds.append({'local': local, 'global': flat(owner.global_net.state_dict())})
    return rounds
