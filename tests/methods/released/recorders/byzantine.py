"""The aggregation rules of Krum's authors' laboratory."""

from typing import Any

import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import batches, make_optimizer, run_clients


def run(job: Job) -> list[dict[str, Any]]:
    """Runs a rule of the code on the clients' updates; their training is plain."""
    import aggregators

    loaders = batches(job)

    def train(model, client, rate, number):
        optimizer = make_optimizer(model, job, rate)
        for x, y in loaders[client] * problem.EPOCHS:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x)[1], y).backward()
            optimizer.step()
        return model

    def merge(model, models, weights):
        vector = torch.nn.utils.parameters_to_vector
        before = vector(model.parameters()).detach()
        updates = [vector(trained.parameters()).detach() - before for trained in models]
        update = aggregators.gars[job.algorithm](gradients=updates, **job.parameters)
        torch.nn.utils.vector_to_parameters(before + update, model.parameters())

    return run_clients(job, train, merge)
