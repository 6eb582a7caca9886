"""Record what released code computes on a small problem; needs PyTorch and a checkout of the code.

PFLlib also needs h5py, matplotlib and scikit-learn.

python -m tests.methods.released.record --reference=fedntd --checkout=DIR

Writes tests/methods/released/REFERENCE.json: for each algorithm the parameters of every client
after its local training, and the global ones after every round. The code of the training is run
as it is. What surrounds it (Weights & Biases, measuring accuracy, reading data, processes) is
replaced.
"""

import contextlib
import copy
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from absl import app, flags

from tests.methods.released import problem
from tests.methods.released.problem import JOBS, Job

# name in the problem -> in a state dict
NAMES = {'hidden': 'hidden.weight', 'kernel': 'classifier.weight', 'bias': 'classifier.bias'}
PROJECTED = {
    'hidden': 'features.0.weight',
    'project1': 'l1.weight',
    'bias1': 'l1.bias',
    'project2': 'l2.weight',
    'bias2': 'l2.bias',
    'kernel': 'l3.weight',
    'bias': 'l3.bias',
}


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


class Split(Network):
    """The same network with the names that PFLlib's code gives its parts."""

    base = property(lambda self: self.hidden)
    head = property(lambda self: self.classifier)


class Backbone(Network):
    """The same network with the name that MOON's code gives the last layer, which it replaces."""

    fc = property(lambda self: self.classifier)


class Batches(list):
    """A data loader that FedRS's code can read: it calls next() of its iterator."""

    def __iter__(self):
        iterator = super().__iter__()
        return mock.MagicMock(next=lambda: next(iterator))


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


def label_counts(loader: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Examples of each class of a client."""
    labels = torch.cat([y for _, y in loader])
    return torch.bincount(labels, minlength=problem.CLASSES)


def make_optimizer(model: Network, rate: float) -> torch.optim.Optimizer:
    """SGD with the problem's momentum and weight decay."""
    settings = {'momentum': problem.MOMENTUM, 'weight_decay': problem.WEIGHT_DECAY}
    return torch.optim.SGD(model.parameters(), lr=rate, **settings)


def run_server(job: Job) -> list[dict[str, Any]]:
    """Runs a Server of the code of FedNTD or FedLMD."""
    sys.modules['wandb'] = mock.MagicMock()
    import algorithms

    model, loaders = Network(), batches(job)
    optimizer = make_optimizer(model, problem.RATE)
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


def run_fedrs(job: Job) -> list[dict[str, Any]]:
    """Runs the local training and the merging of FedRS's code."""
    with mock.patch.dict(
        sys.modules, {'pandas': mock.MagicMock(), 'sklearn.metrics': mock.MagicMock()}
    ):
        from algorithms.fedrs import FedRS
    loaders = batches(job)
    settings = {
        'momentum': problem.MOMENTUM,
        'weight_decay': problem.WEIGHT_DECAY,
        'optimizer': 'SGD',
        'local_steps': None,
        'local_epochs': problem.EPOCHS,
        'max_grad_norm': 1e9,
        'cuda': False,
    }

    def train(model, client, rate, number):
        args = types.SimpleNamespace(lr=rate, **settings, **job.parameters)
        owner = mock.MagicMock(args=args, test=lambda model, loader: (0, 0))
        counts = label_counts(loaders[client]).float()
        loader = Batches(loaders[client])
        return FedRS.update_local(owner, number, model, loader, loader, counts / counts.sum())[0]

    def merge(model, models, weights):
        FedRS.update_global(None, 0, model, dict(enumerate(models)), weights)

    return run_clients(job, train, merge)


def run_fedgkd(job: Job) -> list[dict[str, Any]]:
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
        optimizer = make_optimizer(model, rate)
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


def run_pfllib(job: Job) -> list[dict[str, Any]]:
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


def run_moon(job: Job) -> list[dict[str, Any]]:
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


def run_feddyn(job: Job) -> list[dict[str, Any]]:
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


# reference -> (address, folder of its program, runner)
REFERENCES = {
    'fedntd': ('https://github.com/Lee-Gihun/FedNTD', '.', run_server),
    'fedlmd': ('https://github.com/wnma3mz/FedLMD', 'src', run_server),
    'fedrs': ('https://github.com/lxcnju/FedRepo', '.', run_fedrs),
    'fedgkd': ('https://github.com/CGCL-codes/FedGKD', '.', run_fedgkd),
    'feddyn': ('https://github.com/alpemreacar/FedDyn', '.', run_feddyn),
    'moon': ('https://github.com/QinbinLi/MOON', '.', run_moon),
    'pfllib': ('https://github.com/TsingZ0/PFLlib', 'system', run_pfllib),
}


def main(_: list[str]) -> None:
    """Records all algorithms of the reference."""
    reference = flags.FLAGS.reference
    url, folder, run = REFERENCES[reference]
    os.chdir(Path(flags.FLAGS.checkout) / folder)
    sys.path.insert(0, os.getcwd())
    commit = subprocess.check_output(['git', 'rev-parse', 'HEAD'], text=True).strip()
    jobs = {name: job for name, job in JOBS.items() if job.reference == reference}
    with mock.patch('torch.cuda.is_available', lambda: False):  # everything runs on the CPU
        rounds = {name: run(job) for name, job in jobs.items()}
    recorded = {'reference': url, 'commit': commit, 'torch': torch.__version__, 'rounds': rounds}
    text = json.dumps(recorded, indent=0)
    text = re.sub(r'(?<=\d),\n(?=[-\d])', ', ', text)  # a line for each vector of parameters
    (Path(__file__).parent / f'{reference}.json').write_text(text + '\n')


if __name__ == '__main__':
    flags.DEFINE_string('checkout', None, "The reference's working tree.", required=True)
    flags.DEFINE_enum('reference', None, list(REFERENCES), 'The code.', required=True)
    app.run(main)
