"""The code of MOON's authors."""

import contextlib
import runpy
import sys
import tempfile
import types
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import Network, batches, flat, start

PROJECTED = {
    'hidden': 'features.0.weight',
    'project1': 'l1.weight',
    'bias1': 'l1.bias',
    'project2': 'l2.weight',
    'bias2': 'l2.bias',
    'kernel': 'l3.weight',
    'bias': 'l3.bias',
}


class Backbone(Network):
    """The same network with the name that MOON's code gives the last layer, which it replaces."""

    fc = property(lambda self: self.classifier)


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the program of MOON's code; each client has its own initial network."""
    absent = {name: mock.MagicMock() for name in ('torchvision', 'torchvision.models')}
    with mock.patch.dict(sys.modules, absent):
        import model
    model.ResNet18_cifar10 = Backbone
    # The program makes the clients' networks first, then the global one, which is number 0.
    numbers = iter([*range(1, len(job.sizes) + 1), 0])

    def make_network(name, width, classes, config):
        network = model.ModelFedCon(name, width, problem.CLASSES, config)
        start(network, problem.initial(width, next(numbers)), PROJECTED)
        return network

    ends = np.cumsum(job.sizes)
    examples = [range(end - size, end) for size, end in zip(job.sizes, ends)]
    loaders, cohorts = dict(zip(examples, batches(job))), iter(job.cohorts)
    rounds, measured = [], []

    def get_dataloader(data, folder, batch, test_batch, client_examples=examples[0]):
        return loaders[client_examples], [], [], []

    def compute_accuracy(network, loader, get_confusion_matrix=False, device=None):
        if not get_confusion_matrix:
            return 0.0, 0.0
        # Clients' networks are measured before and after their training, then the global one.
        measured.append(flat(getattr(network, 'module', network).state_dict(), PROJECTED))
        if not isinstance(network, torch.nn.DataParallel):
            rounds.append({'local': measured[1:-1:2], 'global': measured[-1]})
            measured.clear()
        return 0.0, None, 0.0

    modules = {'model': types.ModuleType('model'), 'utils': types.ModuleType('utils')}
    vars(modules['model']).update(vars(model), ModelFedCon=make_network)
    vars(modules['utils']).update(
        mkdirs=lambda folder: None,
        partition_data=lambda *_, **__: (None, [], None, [], dict(enumerate(examples)), None),
        get_dataloader=get_dataloader,
        compute_accuracy=compute_accuracy,
    )
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = {
            'alg': job.algorithm,
            'model': 'resnet18',
            'dataset': 'cifar10',
            'device': 'cpu',
            'n_parties': len(job.sizes),
            'sample_fraction': len(job.cohorts[0]) / len(job.sizes),
            'comm_round': len(job.cohorts),
            'epochs': problem.EPOCHS,
            'lr': problem.RATE,
            'reg': job.weight_decay,
            'out_dim': job.width,
            'logdir': folder,
            **job.parameters,
        }
        arguments = ['main.py', *(f'--{name}={value}' for name, value in settings.items())]
        stack.enter_context(mock.patch.dict(sys.modules, modules))
        stack.enter_context(mock.patch.object(sys, 'argv', arguments))
        stack.enter_context(mock.patch('random.sample', lambda *_: next(cohorts)))
        for kind in (torch.nn.Module, torch.Tensor):
            stack.enter_context(mock.patch.object(kind, 'cuda', lambda self: self))
        runpy.run_path('main.py', run_name='__main__')
    return rounds
