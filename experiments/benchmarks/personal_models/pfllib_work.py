"""The work of `personal_models` in PFLlib, run by the Python that has PFLlib's packages.

PFLlib's own classes train and evaluate. This module gives them the clients, the network and the
initial parameters, and also tests each client right after its local training.

python -m experiments.benchmarks.personal_models.pfllib_work WORK.json
"""

import argparse
import importlib
import json
import os
import random
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.benchmarks.programs.pfllib import DEFAULTS

SERVERS = {
    'FedAvg': 'serveravg',
    'FedPer': 'serverper',
    'FedRep': 'serverrep',
    'FedBN': 'serverbn',
    'Ditto': 'serverditto',
    'APFL': 'serverapfl',
}
SPLIT = ('FedAvg', 'FedPer', 'FedRep')  # PFLlib's main.py gives them a network of base and head


def make_network(start: Path, algorithm: str, *, normalised: bool) -> torch.nn.Module:
    """PFLlib's CNN with the initial parameters of a file, optionally with batch normalisation."""
    models = importlib.import_module('flcore.trainmodel.models')
    model = models.FedAvgCNN(in_features=3, num_classes=10, dim=1600)
    layers = {
        'conv1': model.conv1[0],
        'conv2': model.conv2[0],
        'hidden': model.fc1[0],
        'classifier': model.fc,
    }
    with np.load(start) as arrays, torch.no_grad():
        for name, layer in layers.items():
            layer.weight.copy_(torch.from_numpy(arrays[f'{name}.weight']))
            layer.bias.copy_(torch.from_numpy(arrays[f'{name}.bias']))
    if normalised:  # FedBN finds such layers by the letters bn in their names
        for block in (model.conv1, model.conv2):
            norm = torch.nn.BatchNorm2d(block[0].out_channels)
            block[0] = torch.nn.Sequential(OrderedDict(conv=block[0], bn=norm))
    if algorithm not in SPLIT:
        return model
    head, model.fc = model.fc, torch.nn.Identity()
    return models.BaseHeadSplit(model, head)


def observe(server: Any, *, personal: str, every: int) -> dict[str, dict[int, list[int]]]:
    """Records correct predictions of each client, when PFLlib tests and after local training.

    Args:
      server: a server of PFLlib.
      personal: name of the function that tests personal models.
      every: rounds between evaluations.

    Returns:
      'received' and 'trained', round -> one number for each client, filled while it trains.
    """
    found: dict[str, dict[int, list[int]]] = {'received': {}, 'trained': {}}
    test_all = getattr(server, personal)

    def tested() -> Any:
        result = test_all()
        found['received'][every * len(found['received'])] = [int(n) for n in result[2]]
        return result

    setattr(server, personal, tested)
    for client in server.clients:

        def trained(client: Any = client, train: Any = client.train) -> None:
            train()
            number = client.train_time_cost['num_rounds']
            if number % every == 0:
                with torch.random.fork_rng():  # the batches are those of PFLlib alone
                    correct = getattr(client, personal)()[0]
                counts = found['trained'].setdefault(number, [0] * len(server.clients))
                counts[client.id] = int(correct)

        client.train = trained
    return found


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Runs one algorithm of PFLlib with one seed."""
    algorithm, settings = job['algorithm'], {**DEFAULTS, **job['settings']}
    fixed = settings.pop('fixed_alpha', False)
    model = make_network(Path(job['start']), algorithm, normalised=job['normalised'])
    args = argparse.Namespace(algorithm=algorithm, model=model, **settings)
    module = importlib.import_module(f'flcore.servers.{SERVERS[algorithm]}')
    server = getattr(module, algorithm)(args, job['seed'])
    if fixed:
        for client in server.clients:
            client.alpha_update = lambda: None
    # PFLlib seeds with 0 when it makes a client.
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(job['seed'])
    personal = 'test_metrics_personalized' if algorithm == 'Ditto' else 'test_metrics'
    found = observe(server, personal=personal, every=settings['eval_gap'])
    server.train()
    last = settings['global_rounds']
    return {
        'tested': [client.test_samples for client in server.clients],
        **{name: {n: c for n, c in counts.items() if n <= last} for name, counts in found.items()},
        'alpha': [float(c.alpha) for c in server.clients] if algorithm == 'APFL' else None,
        'torch': torch.__version__,
    }


def main(path: str) -> None:
    """Does the jobs of a file that are not done; writes each result into its own file."""
    work = json.loads(Path(path).read_text())
    sys.path.insert(0, str(Path(work['pfllib'], 'system')))
    torch.set_num_threads(1)  # a batch is too small to share
    for job in work['jobs']:
        output = Path(job['output'])
        if output.exists():
            continue
        os.chdir(job['folder'])  # PFLlib reads ../dataset and writes ../results
        result = run(job)
        temporary = output.with_suffix('.tmp')
        temporary.write_text(json.dumps(result))
        temporary.replace(output)


if __name__ == '__main__':
    main(*sys.argv[1:])
