"""The code of FedNova's authors."""

import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import Network, batches, flat


class AllReduce:
    """The sum of the tensors of all workers, which are threads."""

    def __init__(self, workers: int) -> None:
        self.barrier, self.tensors = threading.Barrier(workers, timeout=60), []

    def __call__(self, tensor, op=None):
        self.tensors.append(tensor.clone())
        self.barrier.wait()
        # In float64 the order of the workers does not matter.
        tensor.copy_(torch.stack(self.tensors).double().sum(0))
        if self.barrier.wait() == 0:
            self.tensors.clear()
        self.barrier.wait()


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the optimizer of FedNova's code and its averaging; all workers take part."""
    released = importlib.import_module('distoptim.FedNova')
    loaders, total = batches(job), sum(job.sizes)
    models = [Network() for _ in job.sizes]
    settings = {'momentum': job.momentum, 'weight_decay': job.weight_decay, 'gmf': 0}
    optimizers = [
        released.FedNova(model.parameters(), size / total, lr=problem.RATE, **settings)
        for model, size in zip(models, job.sizes)
    ]
    rounds = []
    for number in range(len(job.cohorts)):
        for model, optimizer, loader in zip(models, optimizers, loaders):
            optimizer.param_groups[0]['lr'] = job.rate(number)
            for x, y in loader * problem.EPOCHS:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        local = [flat(model.state_dict()) for model in models]
        with (
            mock.patch.object(released.dist, 'all_reduce', AllReduce(len(models))),
            mock.patch.object(torch.Tensor, 'cuda', lambda self: self),
            ThreadPoolExecutor(len(models)) as pool,
        ):
            list(pool.map(released.FedNova.average, optimizers))
        rounds.append({'local': local, 'global': flat(models[0].state_dict())})
    return rounds
