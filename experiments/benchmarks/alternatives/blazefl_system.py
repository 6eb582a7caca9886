"""The work of `alternatives` with BlazeFL's pools of processes and of threads.

As in BlazeFL's own benchmark, processes are spawned, load these classes by name, and share memory.
Threads need a Python without the global interpreter lock.
"""

import multiprocessing
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from experiments.benchmarks.alternatives.torch_work import (
    TEST_BATCH_SIZE,
    Rounds,
    Work,
    measure_accuracy,
    network,
    read_examples,
    train_examples,
)

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

SEED = 0


class Models:
    """Selects the network, which has one name."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def select_model(self, model_name: str) -> torch.nn.Module:
        """The network; a process or thread for clients computes on one core."""
        main_thread = threading.current_thread() is threading.main_thread()
        if multiprocessing.parent_process() or not main_thread:
            torch.set_num_threads(1)
        return network(self.work)


class Examples:
    """The examples of the clients, and of the evaluation."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def get_dataset(self, type_: str, cid: int | None) -> 'TensorDataset':
        """The examples of a client, or the test images."""
        if cid is None:
            return read_examples(self.work, 'test', slice(None))
        return train_examples(self.work, cid)

    def set_dataset(self, type_: str, cid: int | None, dataset: Any) -> None:
        """Nothing is stored: examples do not change."""

    def get_dataloader(
        self,
        type_: str,
        cid: int | None,
        batch_size: int | None,
        generator: torch.Generator | None,
    ) -> DataLoader:
        """Shuffled batches."""
        examples = self.get_dataset(type_, cid)
        size = batch_size or TEST_BATCH_SIZE
        return DataLoader(examples, batch_size=size, shuffle=True, generator=generator)


def run(work: Work, *, threads: bool = False) -> Rounds:
    """Runs the work: one client per core at a time, evaluation on all cores.

    Raises:
      RuntimeError: if threads would wait for each other.
    """
    import torch.multiprocessing
    from blazefl.contrib import (
        FedAvgBaseServerHandler,
        FedAvgProcessPoolClientTrainer,
        FedAvgThreadPoolClientTrainer,
    )
    from blazefl.core import IPCMode

    if threads and getattr(sys, '_is_gil_enabled', lambda: True)():
        raise RuntimeError('a module has turned the global interpreter lock on; set PYTHON_GIL=0')
    torch.multiprocessing.set_start_method('spawn')
    task = work.task
    tested = read_examples(work, 'test', slice(None))
    common: dict[str, Any] = {
        'model_selector': Models(work),
        'model_name': task.model,
        'dataset': Examples(work),
        'num_clients': task.clients,
        'device': 'cuda' if work.gpu else 'cpu',
        'batch_size': task.batch_size,
        'seed': SEED,
    }
    server = FedAvgBaseServerHandler(
        global_round=task.rounds,
        sample_ratio=task.clients_per_round / task.clients,
        **common,
    )
    common |= {
        'epochs': task.local_epochs,
        'lr': task.learning_rate,
        'num_parallels': min(work.cores, task.clients_per_round),
    }
    if threads:
        clients: Any = FedAvgThreadPoolClientTrainer(**common)
    else:
        clients = FedAvgProcessPoolClientTrainer(
            share_dir=Path(work.folder, 'blazefl', 'share'),
            state_dir=Path(work.folder, 'blazefl', 'state'),
            ipc_mode=IPCMode.SHARED_MEMORY,
            **common,
        )
    seconds, accuracy = [], 0.0
    for number in range(1, task.rounds + 1):
        start = time.perf_counter()
        clients.local_process(server.downlink_package(), server.sample_clients())
        torch.set_num_threads(work.cores)  # a client's thread sets 1 for the others, too
        for upload in clients.uplink_package():
            server.load(upload)
        if task.evaluates(number):
            accuracy = measure_accuracy(server.model, tested)
        seconds.append(time.perf_counter() - start)
    return Rounds(seconds, accuracy)
