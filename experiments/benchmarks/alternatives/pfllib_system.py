"""The work of `alternatives` with PFLlib, in one process on all cores.

PFLlib reads a client's images from its file in every round.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flcore.servers.serveravg import FedAvg

from experiments.benchmarks.alternatives.torch_work import (
    Rounds,
    Work,
    measure_accuracy,
    network,
    read_arrays,
    read_examples,
)
from experiments.benchmarks.programs.pfllib import DEFAULTS, write_examples

NAME = 'jaxfed'  # of the data set


class Server(FedAvg):
    """PFLlib's server, which evaluates the global model after the due rounds."""

    def __init__(self, args: argparse.Namespace, work: Work) -> None:
        super().__init__(args, times=0)
        self.task = work.task
        self.tested = read_examples(work, 'test', slice(None))
        self.accuracy = 0.0
        self.ended: list[float] = []

    def evaluate(self, acc: Any = None, loss: Any = None) -> None:
        """Nothing: PFLlib would test the models of all clients before a round."""
        self.rs_test_acc.append(self.accuracy)  # PFLlib prints the best

    def aggregate_parameters(self) -> None:
        """Averages, then evaluates and notes the end of the round."""
        super().aggregate_parameters()
        if self.task.evaluates(len(self.ended) + 1):
            self.accuracy = measure_accuracy(self.global_model, self.tested)
        self.ended.append(time.perf_counter())


def write_clients(work: Work, root: Path) -> None:
    """Writes the clients' files as PFLlib's scripts do; no client has test images."""
    n = work.task.examples_per_client
    for split in ('train', 'test'):
        folder = root / 'dataset' / NAME / split
        folder.mkdir(parents=True)
        for client in range(work.task.clients):
            rows = slice(client * n, (client + 1) * n if split == 'train' else client * n)
            write_examples(folder / f'{client}.npz', *read_arrays(work, 'train', rows))


def run(work: Work) -> Rounds:
    """Runs the work with federated averaging.

    Raises:
      ValueError: if PFLlib would skip a batch.
    """
    task, root = work.task, Path(work.folder, 'pfllib')
    if short := task.examples_per_client % task.batch_size:
        raise ValueError(f'PFLlib skips the last batch of an epoch, which has only {short} images')
    torch.set_num_threads(work.cores)
    write_clients(work, root)
    system = root / 'system'
    system.mkdir()
    os.chdir(system)  # PFLlib reads ../dataset and writes ../results
    settings = DEFAULTS | {
        'algorithm': 'FedAvg',
        'model': network(work),
        'device': 'cuda' if work.gpu else 'cpu',
        'dataset': NAME,
        'num_classes': task.classes,
        'num_clients': task.clients,
        'join_ratio': task.clients_per_round / task.clients,
        'global_rounds': task.rounds - 1,  # PFLlib trains one more
        'local_epochs': task.local_epochs,
        'batch_size': task.batch_size,
        'local_learning_rate': task.learning_rate,
        'eval_gap': 1,
    }
    server = Server(argparse.Namespace(**settings), work)
    start = time.perf_counter()
    server.train()
    seconds = np.diff([start, *server.ended]).tolist()
    return Rounds(seconds, server.accuracy)
