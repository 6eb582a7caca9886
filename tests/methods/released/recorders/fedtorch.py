"""FedTorch, the code of APFL's authors."""

import functools
import types
from typing import Any
from unittest import mock

import torch

from tests.methods.released import problem
from tests.methods.released.problem import Job
from tests.methods.released.recorders.torch_problem import Network, batches, flat

REPLACED = (
    'define_local_training_tracker',
    'do_validate_centered',
    'log',
    'log_validation_centered',
    'logging_globally',
    'logging_load_time',
    'logging_sync_time',
)


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the training and the averaging of FedTorch's code for APFL; it weighs clients equally.

    The local parameters are the mixture of the client's two models.
    """
    from fedtorch.comms.trainings.federated.centered import apfl
    from fedtorch.components.optimizers.sgd import SGD

    cohorts, rounds, average = iter(job.cohorts), [], apfl.fedavg_aggregation_centered
    alpha = job.parameters['fed_personal_alpha']

    def make_client(loader):
        model, personal = Network(), Network()
        args = types.SimpleNamespace(
            local_index=0,
            local_data_seen=0,
            local_steps=[0],
            growing_batch_size=False,
            num_batches_train_per_device_per_epoch=len(loader),
            num_epochs_per_comm=problem.EPOCHS,
            federated_sync_type='epoch',
            in_momentum=False,
            old_learning_rate=problem.RATE,
            **job.parameters,
        )
        return types.SimpleNamespace(
            args=args,
            train_loader=loader,
            val_loader=None,
            model=model,
            model_personal=personal,
            optimizer=SGD(model.parameters(), lr=problem.RATE),
            optimizer_personal=SGD(personal.parameters(), lr=problem.RATE),
            scheduler=lambda epoch: problem.RATE,
            criterion=torch.nn.CrossEntropyLoss(),
            metrics=(1,),
        )

    def mixture(client):
        own, common = client.model_personal.state_dict(), client.model.state_dict()
        return {name: alpha * own[name] + (1 - alpha) * common[name] for name in own}

    def average_and_record(clients, server, cohort):
        local = [flat(mixture(clients[client])) for client in cohort]
        average(clients, server, cohort)
        rounds.append({'local': local, 'global': flat(server.model.state_dict())})

    clients, model = [make_client(loader) for loader in batches(job)], Network()
    optimizer = SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    # The code relies on gradients that stay, as they did in earlier versions of PyTorch.
    optimizer.zero_grad = functools.partial(optimizer.zero_grad, set_to_none=False)
    args = types.SimpleNamespace(
        num_comms=len(job.cohorts),
        rounds_comm=0,
        local_index=0,
        global_index=0,
        graph=types.SimpleNamespace(n_nodes=len(clients)),
        federated_type='apfl',
        fed_personal=True,
        quantized=False,
        lr_scale_at_sync=1.0,
        out_momentum=False,
    )
    replaced = {name: mock.MagicMock() for name in REPLACED}
    with mock.patch.multiple(
        apfl,
        load_data_batch=lambda args, x, y, tracker: (x, y),
        set_online_clients_centered=lambda args: next(cohorts),
        fedavg_aggregation_centered=average_and_record,
        **replaced,
    ):
        apfl.train_and_validate_apfl_centered(
            clients, mock.MagicMock(args=args, model=model, optimizer=optimizer)
        )
    return rounds
