"""The code of FedNTD, and of FedLMD, which continues it."""

import sys
import types
from typing import Any
from unittest import mock

import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import (
    Network,
    batches,
    flat,
    label_counts,
    make_optimizer,
)


def run(job: Job) -> list[dict[str, Any]]:
    """Runs a Server of the code of FedNTD or FedLMD."""
    sys.modules['wandb'] = mock.MagicMock()
    import algorithms

    model, loaders = Network(), batches(job)
    optimizer = make_optimizer(model, job, problem.RATE)
    local = {
        client: {'datasize': job.sizes[client], 'train': loader, 'test': loader}
        for client, loader in enumerate(loaders)
    }
    data = {
        'local': local,
        'global': {'test': loaders[0]},
        'data_map': [label_counts(loader).numpy() for loader in loaders],
        'num_classes': problem.CLASSES,
    }
    server = getattr(algorithms, job.algorithm).Server(
        types.SimpleNamespace(**job.parameters),
        model,
        data,
        optimizer,
        torch.optim.lr_scheduler.StepLR(optimizer, gamma=problem.DECAY, step_size=1),
        n_rounds=len(job.cohorts),
        sample_ratio=len(job.cohorts[0]) / len(job.sizes),
        local_epochs=problem.EPOCHS,
        device='cpu',
    )
    rounds, trained, client = [], [], server.client
    # Every client is measured after its training; that is where its parameters are read.
    client._get_local_stats = lambda: trained.append(flat(client.model.state_dict())) or {}
    server._client_sampling = lambda number: list(job.cohorts[number])

    def finish_round(weights, *_):
        server.model.load_state_dict(weights)
        server.scheduler.step()
        rounds.append({'local': list(trained), 'global': flat(weights)})
        trained.clear()

    server._update_and_evaluate = finish_round
    server.run()
    return rounds
