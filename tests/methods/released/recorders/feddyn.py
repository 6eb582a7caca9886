"""The code of FedDyn's authors."""

import contextlib
import os
import sys
import tempfile
import types
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import Network, flat


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the training of FedDyn's code, without its clipping of gradients."""
    absent = (
        'matplotlib',
        'matplotlib.pyplot',
        'scipy',
        'tensorflow',
        'torchvision',
        'torchvision.models',
        'torchvision.transforms',
    )
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in absent}):
        import utils_general
        import utils_methods
    x, y = zip(*problem.examples(job.sizes))
    data = {'name': 'problem', 'dataset': 'synt', 'n_client': len(y), 'clnt_x': x, 'clnt_y': y}
    cohorts, trained, train = iter(job.cohorts), [], utils_methods.train_feddyn_mdl

    def train_client(*arguments):
        model = train(*arguments)
        trained.append(flat(model.state_dict()))
        return model

    def load(dataset, batch_size, shuffle):
        return torch.utils.data.DataLoader(dataset, batch_size)

    def draw(size):  # the clients with a number of at most `act_prob` take part
        return 1.0 - np.isin(np.arange(size), next(cohorts))

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.multiple(
            utils_general, max_norm=1e9, data=types.SimpleNamespace(DataLoader=load)
        ),
        mock.patch.object(utils_methods, 'train_feddyn_mdl', train_client),
        mock.patch('numpy.random.uniform', draw),
    ):
        os.makedirs('Output/problem')
        *_, models = utils_methods.train_FedDyn(
            types.SimpleNamespace(tst_x=x[0], tst_y=y[0], **data),
            act_prob=0.5,
            learning_rate=problem.RATE,
            batch_size=job.batch,
            epoch=problem.EPOCHS,
            com_amount=len(job.cohorts),
            print_per=problem.EPOCHS + 1,
            weight_decay=job.weight_decay,
            model_func=Network,
            init_model=Network(),
            save_period=1,
            lr_decay_per_round=job.decay,
            **job.parameters,
        )
    local = iter(trained)
    return [
        {'local': [next(local) for _ in cohort], 'global': flat(model.state_dict())}
        for cohort, model in zip(job.cohorts, models)
    ]
