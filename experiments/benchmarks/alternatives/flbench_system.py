"""The work of `alternatives` with FL-bench: client after client, or in processes, one per core."""

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from data.utils.datasets import BaseDataset
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from src.server import fedavg
from src.utils import constants
from src.utils.models import DecoupledModel

from experiments.benchmarks.alternatives.torch_work import (
    Rounds,
    Work,
    measure_accuracy,
    network,
    read_examples,
)

NAME = 'jaxfed'  # of the data set


class Network(DecoupledModel):
    """The network in FL-bench's class."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.base, self.classifier = network(work), torch.nn.Identity()


class Server(fedavg.FedAvgServer):
    """FL-bench's server, which evaluates the global model after the due rounds."""

    def __init__(self, args: DictConfig, work: Work) -> None:
        self.work = work
        super().__init__(args)
        self.tested = read_examples(work, 'test', slice(None))
        self.accuracy = 0.0
        self.ended: list[float] = []

    def init_model(self, *args: Any, **kwargs: Any) -> None:
        """Takes the network of the work."""
        super().init_model(Network(self.work))

    def get_dataset(self) -> BaseDataset:
        """The images of all clients, of which FL-bench normalises each when it reads it."""
        x, y = (np.load(f'{self.work.folder}/{part}_train.npy') for part in 'xy')
        images = torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float32))
        labels = torch.from_numpy(y.astype(np.int64))
        classes = list(range(self.work.task.classes))
        return BaseDataset(images, labels, classes, **self.get_dataset_transforms())

    def train_one_round(self) -> None:
        """Trains, averages, evaluates and notes the end of the round."""
        super().train_one_round()
        if self.work.task.evaluates(self.current_epoch + 1):
            self.accuracy = measure_accuracy(self.model, self.tested)
        self.ended.append(time.perf_counter())


def write_clients(work: Work, root: Path) -> None:
    """Writes FL-bench's files of a data set, whose clients have no test images."""
    n, clients = work.task.examples_per_client, range(work.task.clients)
    folder = root / 'data' / NAME
    folder.mkdir(parents=True)
    (folder / 'args.json').write_text(json.dumps({'split': 'sample'}))
    rows = [np.arange(client * n, (client + 1) * n) for client in clients]
    empty = np.array([], int)
    partition = {
        'data_indices': [{'train': mine, 'val': empty, 'test': empty} for mine in rows],
        'separation': {'train': list(clients), 'val': [], 'test': [], 'total': len(clients)},
    }
    (folder / 'partition.pkl').write_bytes(pickle.dumps(partition))


def settings(work: Work, *, parallel: bool) -> DictConfig:
    """FL-bench's settings; without evaluations and files of its own."""
    task, workers = work.task, min(work.cores, work.task.clients_per_round)
    changes = {
        'dataset': {'name': NAME},
        'optimizer': {'lr': task.learning_rate},
        'mode': 'parallel' if parallel else 'serial',
        'parallel': {'num_cpus': workers, 'num_gpus': int(work.gpu), 'num_workers': workers},
        'common': {
            'join_ratio': task.clients_per_round / task.clients,
            'global_epoch': task.rounds,
            'local_epoch': task.local_epochs,
            'batch_size': task.batch_size,
            'client_side_evaluation': False,
            'test': {'client': {'interval': -1, 'test': False}},
            'verbose_gap': task.rounds + 1,
            'use_cuda': work.gpu,
            'save_log': False,
            'save_learning_curve_plot': False,
            'save_metrics': False,
        },
    }
    return OmegaConf.merge(constants.DEFAULTS, changes)


def run(work: Work, *, parallel: bool = False) -> Rounds:
    """Runs the work with federated averaging.

    Raises:
      ValueError: if FL-bench would skip a batch.
    """
    if work.task.examples_per_client % work.task.batch_size == 1:
        raise ValueError('FL-bench skips a batch of one image')
    torch.set_num_threads(work.cores)
    root = Path(work.folder, 'flbench_parallel' if parallel else 'flbench')
    write_clients(work, root)
    fedavg.FLBENCH_ROOT = root  # of the data
    # Hydra's command line would set this.
    HydraConfig.instance().cfg = OmegaConf.create({'hydra': {'runtime': {'output_dir': str(root)}}})
    constants.DATA_MEAN[NAME] = [value / 255 for value in work.mean]
    constants.DATA_STD[NAME] = [value / 255 for value in work.std]
    args = settings(work, parallel=parallel)
    if parallel:
        os.environ['PYTHONPATH'] = os.pathsep.join(sys.path)  # for the actors
        os.environ['RAY_USAGE_STATS_ENABLED'] = '0'
        # FL-bench's own start of Ray fails without a GPU.
        workers, gpus = args.parallel.num_workers, args.parallel.num_gpus
        ray.init(num_cpus=workers, num_gpus=gpus, include_dashboard=False, log_to_driver=False)
    server = Server(args, work)
    server.model.to(server.device)  # evaluates there; FL-bench leaves it on the CPU for its actors
    start = time.perf_counter()
    server.train()
    return Rounds(np.diff([start, *server.ended]).tolist(), server.accuracy)
