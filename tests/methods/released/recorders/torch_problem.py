"""The small problem in PyTorch."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job

# name in the problem -> in a state dict
NAMES = {'hidden': 'hidden.weight', 'kernel': 'classifier.weight', 'bias': 'classifier.bias'}


class Network(torch.nn.Module):
    """Softmax regression on linear features."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(problem.INPUTS, problem.FEATURES, bias=False)
        self.classifier = torch.nn.Linear(problem.FEATURES, problem.CLASSES)
        start(self, problem.initial(), NAMES)

    def forward(self, x, get_features=False):
        features = self.hidden(x)
        logits = self.classifier(features)
        return (logits, features) if get_features else logits


class FeaturesFirst(Network):
    """The same network in the form of FedRS's and FedGKD's code."""

    def forward(self, x):
        return tuple(reversed(super().forward(x, get_features=True)))


def start(model: torch.nn.Module, parameters: dict[str, np.ndarray], names: dict[str, str]) -> None:
    """Gives a network the parameters of the problem."""
    state = {names[name]: torch.from_numpy(value.T) for name, value in parameters.items()}
    model.load_state_dict(state)


def flat(state, names: dict[str, str] = NAMES) -> list[float]:
    """A state dict as one list."""
    return problem.flat({name: state[key].numpy().T for name, key in names.items()})


def batches(job: Job) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The batches of an epoch of each client."""
    return [
        [
            (torch.from_numpy(x[i : i + job.batch]), torch.from_numpy(y[i : i + job.batch]).long())
            for i in range(0, len(y), job.batch)
        ]
        for x, y in problem.examples(job.sizes)
    ]


def datasets(job: Job) -> list[torch.utils.data.Dataset]:
    """The examples of each client."""
    return [
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y).long())
        for x, y in problem.examples(job.sizes)
    ]


def label_counts(loader: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Examples of each class of a client."""
    labels = torch.cat([y for _, y in loader])
    return torch.bincount(labels, minlength=problem.CLASSES)


def make_optimizer(model: Network, job: Job, rate: float) -> torch.optim.Optimizer:
    """SGD with the job's momentum and weight decay."""
    settings = {'momentum': job.momentum, 'weight_decay': job.weight_decay}
    return torch.optim.SGD(model.parameters(), lr=rate, **settings)


def run_clients(job: Job, train: Callable, merge: Callable) -> list[dict[str, Any]]:
    """Rounds of `train(model, client, rate, number)` and `merge(model, models, weights)`."""
    model, rounds = FeaturesFirst(), []
    for number, cohort in enumerate(job.cohorts):
        rate = job.rate(number)
        models = [train(copy.deepcopy(model), client, rate, number + 1) for client in cohort]
        total = sum(job.sizes[client] for client in cohort)
        merge(model, models, [job.sizes[client] / total for client in cohort])
        local = [flat(trained.state_dict()) for trained in models]
        rounds.append({'local': local, 'global': flat(model.state_dict())})
    return rounds
