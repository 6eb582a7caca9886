"""The code of FedRep's authors, which also has FedPer."""

import functools
import runpy
import sys
import types
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import Network, datasets, flat

LARGE = 10**6


class Layers(Network):
    """The same network with the names of its layers; the first three are the features'."""

    weight_keys = ('hidden.weight',), (), (), ('classifier.weight', 'classifier.bias')


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the program of FedRep's code, without its weight decay, which omits the biases.

    It trains all clients once more after the last round; the recording has no such round. Its
    parameters depend on whether `zero_grad` sets gradients to None, as since PyTorch 2.0, or to 0.
    """
    examples, ends = torch.utils.data.ConcatDataset(datasets(job)), np.cumsum(job.sizes)
    clients = {
        client: list(range(end - size, end))
        for client, (size, end) in enumerate(zip(job.sizes, ends))
    }
    options = {
        'num_users': len(job.sizes),
        'epochs': len(job.cohorts),
        'frac': 1.0,
        'lr': problem.RATE,
        'local_ep': problem.EPOCHS,
        'local_bs': job.batch,
        'local_updates': LARGE,
        'm_tr': LARGE,
        'm_ft': LARGE,
        'save_every': LARGE,
        'test_freq': 1,
        'dataset': 'mnist',
        'shard_per_user': 0,
        'load_fed': 'n',
        'gpu': -1,
        'alg': job.algorithm,
        **job.parameters,
    }
    zero_grad = functools.partialmethod(
        torch.nn.Module.zero_grad, set_to_none=options.pop('set_to_none')
    )
    modules = {
        'utils.options': mock.MagicMock(args_parser=lambda: types.SimpleNamespace(**options)),
        'utils.train_utils': mock.MagicMock(
            get_data=lambda args: (examples, [], clients, {}), get_model=lambda args: Layers()
        ),
        'models.test': mock.MagicMock(test_img_local_all=lambda model, *_, **__: measure(model)),
        'models.language_utils': mock.MagicMock(),
    }
    cohorts = iter([*job.cohorts, range(len(job.sizes))])
    trained, rounds, sgd = [], [], torch.optim.SGD

    def measure(model):
        # The mean of the classifiers belongs to no client.
        state = Network().state_dict() | {'hidden.weight': model.state_dict()['hidden.weight']}
        rounds.append({'local': list(trained), 'global': flat(state)})
        trained.clear()
        return 0.0, 0.0

    def without_decay(groups, **settings):
        return sgd([{'params': group['params']} for group in groups], **settings)

    sys.modules.update(modules)
    from models import Update

    train = Update.LocalUpdate.train

    def train_client(*arguments, **keywords):
        result = train(*arguments, **keywords)
        trained.append(flat(result[0]))
        return result

    with (
        mock.patch.object(Update, 'DataLoader', in_order),
        mock.patch.object(Update.LocalUpdate, 'train', train_client),
        mock.patch('torch.optim.SGD', without_decay),
        mock.patch.object(torch.nn.Module, 'zero_grad', zero_grad),
        mock.patch('pandas.DataFrame.to_csv'),
        mock.patch('numpy.random.shuffle', lambda examples: None),
        mock.patch('numpy.random.choice', lambda *_, **__: next(cohorts)),
    ):
        runpy.run_path('main_fedrep.py', run_name='__main__')
    return rounds[: len(job.cohorts)]


def in_order(dataset, batch_size, shuffle):
    """A data loader that does not shuffle."""
    return torch.utils.data.DataLoader(dataset, batch_size)
