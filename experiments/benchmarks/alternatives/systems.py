"""The systems of `alternatives`, each run in its own process: jaxfed, PyTorch, BlazeFL, Flower,
pfl-research, FedJAX, FL-bench and PFLlib.

jaxfed and torch are imported by the functions that need them: every module that a system's process
imports counts as its memory.

python -m experiments.benchmarks.alternatives.systems SYSTEM FOLDER
"""

import copy
import importlib
import itertools
import json
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.alternatives.torch_work import (
    Rounds,
    Task,
    Work,
    measure_accuracy,
    network,
    read_examples,
    train_examples,
    train_locally,
)

MIB = 2**20


class System(NamedTuple):
    """A way to do the work."""

    name: str
    run: Callable[[Work], Rounds]
    needs: tuple[str, ...] = ()  # modules
    install: str = ''  # the command that installs them
    processes: bool = False  # whether it starts processes
    free_threaded: bool = False  # whether it needs a Python without the global interpreter lock
    flag: str = ''  # names its checkout on the command line; empty for a package
    package: str = ''  # the folder of a Python package in the checkout


def run_jaxfed(work: Work) -> Rounds:
    """Runs the work with jaxfed's Python interface."""
    import jaxfed

    jaxfed.use_every_core()
    task = work.task
    result = jaxfed.simulate(
        jaxfed.Config(
            method='fedavg',
            dataset='npz',
            npz=f'{work.folder}/data.npz',
            partition='natural',
            num_clients=task.clients,
            clients_per_round=task.clients_per_round,
            model=task.model,
            rounds=task.rounds,
            eval_every=task.eval_every,
            local_epochs=task.local_epochs,
            batch_size=task.batch_size,
            learning_rate=task.learning_rate,
            momentum=0.0,
            weight_decay=0.0,
            aggregation='size',
            workdir=f'{work.folder}/jaxfed',
        )
    )
    return Rounds(
        [entry['seconds'] for entry in result.metrics],
        result.summary['final_accuracy'],
        result.summary['compile_seconds'],
    )


def run_torch(work: Work) -> Rounds:
    """Runs the work as published research code does: a loop over clients, on all cores."""
    import torch

    torch.set_num_threads(work.cores)
    task = work.task
    clients = [train_examples(work, client) for client in range(task.clients)]
    tested = read_examples(work, 'test', slice(None))
    model = network(work)
    seconds, accuracy = [], 0.0
    for number in range(1, task.rounds + 1):
        start = time.perf_counter()
        states = []
        for examples in random.sample(clients, task.clients_per_round):
            local = copy.deepcopy(model)
            train_locally(task, local, examples)
            states.append(local.state_dict())
        # All clients have as many examples.
        average = {
            name: sum(state[name] for state in states) / len(states) for name in model.state_dict()
        }
        model.load_state_dict(average)
        if task.evaluates(number):
            accuracy = measure_accuracy(model, tested)
        seconds.append(time.perf_counter() - start)
    return Rounds(seconds, accuracy)


def flower_client(work: Work) -> Any:
    """Flower's client app, on one core."""
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        examples = train_examples(work, int(context.node_config['partition-id']))
        model = network(work)
        arrays: Any = message.content['arrays']
        model.load_state_dict(arrays.to_torch_state_dict())
        train_locally(work.task, model, examples)
        content = RecordDict()
        content['arrays'] = ArrayRecord(model.state_dict())
        content['metrics'] = MetricRecord({'num-examples': len(examples)})
        return Message(content, reply_to=message)

    return app


def run_flower(work: Work) -> Rounds:
    """Runs the work in Flower's simulation engine: one client per core at a time.

    Raises:
      RuntimeError: if a client failed.
    """
    os.environ.update(
        FLWR_HOME=f'{work.folder}/flower',
        FLWR_TELEMETRY_ENABLED='0',
        RAY_USAGE_STATS_ENABLED='0',
        PYTHONPATH=os.pathsep.join(sys.path),  # for the clients' processes
    )
    import torch
    from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    torch.set_num_threads(work.cores)
    task = work.task
    tested = read_examples(work, 'test', slice(None))
    ended: list[tuple[float, float]] = []  # when, and the accuracy; also before round 1
    replies: list[int] = []  # clients that answered, a round
    server_app = ServerApp()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy = 0.0
        if task.evaluates(server_round):
            model = network(work)
            model.load_state_dict(arrays.to_torch_state_dict())
            accuracy = measure_accuracy(model, tested)
        ended.append((time.perf_counter(), accuracy))
        return MetricRecord({'accuracy': accuracy})

    def count(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        del weighted_by
        replies.append(len(contents))
        return MetricRecord({'clients': len(contents)})

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        del context
        strategy = FedAvg(
            fraction_train=task.clients_per_round / task.clients,
            fraction_evaluate=0.0,
            min_train_nodes=task.clients_per_round,
            min_available_nodes=task.clients,
            train_metrics_aggr_fn=count,
        )
        initial = ArrayRecord(network(work).state_dict())
        strategy.start(grid, initial, num_rounds=task.rounds, evaluate_fn=evaluate)

    workers = min(work.cores, task.clients_per_round)
    gpus = 1 / workers if work.gpu else 0.0
    run_simulation(
        server_app=server_app,
        client_app=flower_client(work),
        num_supernodes=task.clients,
        backend_config={
            'init_args': {'num_cpus': workers},
            'client_resources': {'num_cpus': 1, 'num_gpus': gpus},
        },
    )
    if replies != [task.clients_per_round] * task.rounds:
        raise RuntimeError(
            f'not all of {task.clients_per_round} clients answered in every round: {replies}'
        )
    seconds = [after - before for (before, _), (after, _) in itertools.pairwise(ended)]
    return Rounds(seconds, ended[-1][1])


def run_module(name: str, **options: Any) -> Callable[[Work], Rounds]:
    """The `run` of a module of this package, which is imported when it is called."""

    def run(work: Work) -> Rounds:
        rounds: Rounds = importlib.import_module(f'{__package__}.{name}').run(work, **options)
        return rounds

    return run


FL_BENCH: dict[str, Any] = {
    'needs': ('hydra', 'pandas', 'pynvml', 'ray', 'sklearn', 'torch', 'torchvision'),
    'install': "pip install -e '.[bench]' hydra-core nvidia-ml-py pandas ray scikit-learn "
    'torchvision && git clone https://github.com/KarhouTam/FL-bench, then --flbench=FL-bench',
    'flag': 'flbench',
    'package': 'src',
}
SYSTEMS = {
    'jaxfed': System('jaxfed', run_jaxfed),
    'torch': System('PyTorch loop', run_torch, ('torch',), "pip install -e '.[bench]'"),
    'blazefl': System(
        'BlazeFL',
        run_module('blazefl_system'),
        ('blazefl', 'torch'),
        "pip install -e '.[bench]' 'blazefl[contrib,reproducibility]'",
        processes=True,
    ),
    'blazefl_threads': System(
        'BlazeFL, threads',
        run_module('blazefl_system', threads=True),
        ('blazefl', 'torch'),
        # array-record has no files for such a Python.
        'in a free-threaded Python install the dependencies of jaxfed but array-record and '
        'tensorflow-datasets, then pip install --no-deps jaxfed && pip install psutil torch '
        "'blazefl[contrib,reproducibility]'",
        free_threaded=True,
    ),
    'flower': System(
        'Flower',
        run_flower,
        ('flwr', 'ray', 'torch'),
        "pip install -e '.[bench]' 'flwr[simulation]'",
        processes=True,
    ),
    'pfl': System(
        'pfl-research',
        run_module('pfl_system'),
        ('pfl', 'torch'),
        # It asks for NumPy 1, which jaxfed does not support, but works with NumPy 2.
        "pip install -e '.[bench]' multiprocess dp-accounting prv-accountant && "
        'pip install --no-deps pfl',
    ),
    'fedjax': System(
        'FedJAX',
        run_module('fedjax_system'),
        ('fedjax',),
        # Its last release needs a JAX that jaxfed does not support.
        'pip install git+https://github.com/google/fedjax',
    ),
    'flbench': System('FL-bench', run_module('flbench_system'), **FL_BENCH),
    'flbench_parallel': System(
        'FL-bench, parallel',
        run_module('flbench_system', parallel=True),
        processes=True,
        **FL_BENCH,
    ),
    'pfllib': System(
        'PFLlib',
        run_module('pfllib_system'),
        ('h5py', 'sklearn', 'torch'),
        "pip install -e '.[bench]' h5py scikit-learn && git clone "
        'https://github.com/TsingZ0/PFLlib, then --pfllib=PFLlib',
        flag='pfllib',
        package='system/flcore',
    ),
}


def peak_memory() -> float:
    """Peak resident memory of this process so far, in MiB."""
    status = Path('/proc/self/status')
    # On Linux, getrusage's maximum includes the process that started this one.
    lines = status.read_text().splitlines() if status.exists() else []
    for line in lines:
        if line.startswith('VmHWM:'):
            return int(line.split()[1]) * 1024 / MIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == 'darwin' else peak * 1024 / MIB


def main(key: str, folder: str) -> None:
    """Runs a system on the work in a folder and prints its rounds as one line of JSON."""
    read = json.loads(Path(folder, 'work.json').read_text())
    work = Work(**{**read, 'task': Task(**read['task'])})
    try:
        rounds = SYSTEMS[key].run(work)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({'error': traceback.format_exception_only(error)[0].strip()}))
        sys.exit(1)
    print(json.dumps({'rounds': rounds._asdict(), 'peak_mib': peak_memory()}))


if __name__ == '__main__':
    main(*sys.argv[1:])
