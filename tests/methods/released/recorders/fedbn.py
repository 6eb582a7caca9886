"""The code of FedBN's authors."""

import types
from typing import Any
from unittest import mock

import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import NAMES, Network, datasets, flat

NORMALISED = {**NAMES, 'scale': 'bn.weight', 'shift': 'bn.bias'}


class Normalised(Network):
    """The same network with batch normalisation of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = torch.nn.BatchNorm1d(problem.FEATURES)

    def forward(self, x):
        return self.classifier(self.bn(self.hidden(x)))


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the training and the averaging of FedBN's code; all clients take part equally."""
    absent = {name: mock.MagicMock() for name in ('utils', 'torchvision', 'torchvision.transforms')}
    with mock.patch.dict('sys.modules', absent):
        import fed_digits
    fed_digits.client_num = len(job.sizes)
    server, weights = Normalised(), [1 / len(job.sizes)] * len(job.sizes)
    loaders = [torch.utils.data.DataLoader(client, job.batch) for client in datasets(job)]
    models, rounds = [Normalised() for _ in job.sizes], []
    for number in range(len(job.cohorts)):
        for client, (model, loader) in enumerate(zip(models, loaders)):
            optimizer = torch.optim.SGD(model.parameters(), lr=job.rate(number))
            loss = torch.nn.CrossEntropyLoss()
            for _ in range(problem.EPOCHS):
                fed_digits.train(model, loader, optimizer, loss, client, 'cpu')
        local = [flat(model.state_dict(), NORMALISED) for model in models]
        mode = types.SimpleNamespace(mode=job.algorithm)
        server, models = fed_digits.communication(mode, server, models, weights)
        rounds.append({'local': local, 'global': flat(server.state_dict(), NORMALISED)})
    return rounds
