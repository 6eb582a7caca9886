"""The work of `alternatives` with pfl-research, in one process on all cores."""

import itertools
import time
import types
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from experiments.benchmarks.alternatives.torch_work import (
    Rounds,
    Work,
    measure_accuracy,
    network,
    read_examples,
    train_examples,
)


class Clock(TrainingProcessCallback[Any]):
    """Evaluates after the due rounds, and notes when each round ended."""

    def __init__(self, work: Work) -> None:
        self.task = work.task
        self.tested = read_examples(work, 'test', slice(None))
        self.accuracy = 0.0
        self.ended: list[float] = []

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Notes the start."""
        self.ended.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Evaluates and notes the end of a round, numbered from 0."""
        if self.task.evaluates(central_iteration + 1):
            self.accuracy = measure_accuracy(model.pytorch_model, self.tested)
        self.ended.append(time.perf_counter())
        return False, Metrics()


def run(work: Work) -> Rounds:
    """Runs the work with federated averaging, all clients of equal weight."""
    torch.set_num_threads(work.cores)
    task = work.task
    model: Any = network(work)

    def loss(self: Any, x: Any, y: Any, eval: bool = False) -> torch.Tensor:
        self.train(not eval)
        return torch.nn.functional.cross_entropy(self(x), y)

    # pfl-research calls these methods of the network.
    model.loss = types.MethodType(loss, model)
    model.metrics = types.MethodType(lambda self, x, y, eval=True: {}, model)
    device = next(model.parameters()).device
    examples = (train_examples(work, client) for client in range(task.clients))
    users = [[part.to(device) for part in client.tensors] for client in examples]
    clock = Clock(work)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds + 1,  # never: the clock evaluates
            train_cohort_size=task.clients_per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset.from_slices(
                users, get_user_sampler('random', list(range(task.clients)))
            ),
            val_data=None,
            postprocessors=[WeightByUser()],
        ),
        model=PyTorchModel(
            model=model,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(model.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=task.learning_rate,
            local_num_epochs=task.local_epochs,
            local_batch_size=task.batch_size,
        ),
        callbacks=[clock],
    )
    seconds = [after - before for before, after in itertools.pairwise(clock.ended)]
    return Rounds(seconds, clock.accuracy)
