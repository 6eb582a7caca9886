"""The code of FedGKD."""

import copy
import importlib.util
import sys
import types
from typing import Any

import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import (
    FeaturesFirst,
    batches,
    make_optimizer,
    run_clients,
)


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the loss and the ensemble of FedGKD's code; steps and means are plain."""
    worker, master = (
        types.ModuleType('pcode.workers.worker'),
        types.ModuleType('pcode.masters.master'),
    )
    for module, base in ((worker, 'Worker'), (master, 'Master')):
        setattr(module, base, type(base, (), {}))
        vars(module).update(copy=copy, torch=torch, F=torch.nn.functional)
        sys.modules[module.__name__] = module
        sys.modules[module.__name__.rpartition('.')[0]] = types.ModuleType('package')

    def load(name):
        spec = importlib.util.spec_from_file_location(name, name.replace('.', '/') + '.py')
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    teacher_of = load('pcode.masters.master_fedgkd').MasterFedGKD.ensemble_historical_models
    client_type = load('pcode.workers.worker_fedgkd').WorkerFedGKD
    loaders = batches(job)
    first = FeaturesFirst()
    conf = {**job.parameters, 'loss_type': 'kl', 'avg_param': True}
    keeper = types.SimpleNamespace(
        conf=types.SimpleNamespace(**conf),
        models_buffer=[],
        ensembled_teacher=copy.deepcopy(first),
        master_model=first,
    )

    def train(model, client, rate, number):
        owner = client_type.__new__(client_type)
        graph = types.SimpleNamespace(comm_round=number)
        owner.conf = types.SimpleNamespace(graph=graph, **conf)
        owner.avg_teacher, owner.tracker = keeper.ensembled_teacher, None
        optimizer = make_optimizer(model, job, rate)
        for x, y in loaders[client] * problem.EPOCHS:
            features, logits = model(x)
            loss = torch.nn.functional.cross_entropy(logits, y)
            loss = owner.local_training_with_extra_calculate(loss, logits, {'input': x}, features)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    def merge(model, models, weights):
        states = [other.state_dict() for other in models]
        mean = {k: sum(w * s[k] for w, s in zip(weights, states)) for k in states[0]}
        model.load_state_dict(mean)
        teacher_of(keeper, model)

    return run_clients(job, train, merge)
