"""The code of PFLlib."""

import importlib
import types
from typing import Any
from unittest import mock

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import Network, batches, flat


class Split(Network):
    """The same network with the names that PFLlib's code gives its parts."""

    base = property(lambda self: self.hidden)
    head = property(lambda self: self.classifier)


def run(job: Job) -> list[dict[str, Any]]:
    """Runs a Server of PFLlib's code, and its clients."""
    from flcore.clients.clientbase import Client
    from flcore.servers import serverbase

    from experiments.benchmarks.personal_models.pfllib_work import DEFAULTS, SERVERS

    loaders = batches(job)
    settings = {
        **DEFAULTS,
        'num_clients': len(job.sizes),
        'join_ratio': len(job.cohorts[0]) / len(job.sizes),
        'global_rounds': len(job.cohorts) - 1,  # it trains one more
        'eval_gap': 1,
        'local_learning_rate': problem.RATE,
        'local_epochs': problem.EPOCHS,
        'plocal_epochs': problem.EPOCHS,
        'batch_size': job.batch,
        **job.parameters,
    }
    args = types.SimpleNamespace(algorithm=job.algorithm, model=Split(), **settings)
    module = importlib.import_module(f'flcore.servers.{SERVERS[job.algorithm]}')
    sizes = {'read_client_data': lambda data, client, **_: range(job.sizes[client])}
    with mock.patch.multiple(serverbase, **sizes):
        server = getattr(module, job.algorithm)(args, 0)
    for client in server.clients if settings.get('fixed_alpha') else []:
        client.alpha_update = lambda: None
    rounds, aggregate = [], server.aggregate_parameters
    server.select_clients = lambda: [server.clients[c] for c in job.cohorts[len(rounds)]]
    server.rs_test_acc = [0.0]

    def finish_round():
        aggregate()
        trained = [getattr(c, 'model_per', c.model).state_dict() for c in server.selected_clients]
        merged = server.global_model.state_dict()
        if 'weight' in merged:  # the features alone
            merged = Split().state_dict() | {'hidden.weight': merged['weight']}
        rounds.append({'local': [flat(state) for state in trained], 'global': flat(merged)})

    server.aggregate_parameters = finish_round
    for name in ('evaluate', 'evaluate_personalized', 'save_results', 'save_global_model'):
        setattr(server, name, lambda: None)
    with mock.patch.object(Client, 'load_train_data', lambda self: loaders[self.id]):
        server.train()
    return rounds
