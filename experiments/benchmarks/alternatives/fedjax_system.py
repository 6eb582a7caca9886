"""The work of `alternatives` with FedJAX: a jitted step for each batch, client after client.

Its other way to train clients, `pmap`, calls functions that JAX has removed.
"""

import time

import fedjax
import jax
import jax.numpy as jnp

from experiments.benchmarks.alternatives.torch_work import (
    TEST_BATCH_SIZE,
    Rounds,
    Work,
    read_arrays,
)
from experiments.benchmarks.programs.plain_loop import PLAIN
from jaxfed.models import make_model
from jaxfed.types import Array, PyTree

Examples = dict[str, Array]  # 'x' and 'y' of a batch


def network(work: Work) -> fedjax.Model:
    """The network of jaxfed with XLA's convolutions."""
    task = work.task
    height, width, channels = task.shape
    model = make_model(
        task.model,
        input_shape=(height, width, channels),
        num_classes=task.classes,
        convolution=PLAIN,
    )

    def train(params: PyTree, batch: Examples, key: Array) -> Array:
        mask = jnp.ones(task.batch_size, bool)  # FedJAX fills a short batch
        return model.train(params, batch['x'], model.stats, mask, key).logits

    def evaluate(params: PyTree, batch: Examples) -> Array:
        return model.evaluate(params, batch['x'], model.stats).logits

    def loss(batch: Examples, logits: Array) -> Array:
        return fedjax.metrics.unreduced_cross_entropy_loss(batch['y'], logits)

    metrics = {'accuracy': fedjax.metrics.Accuracy()}
    return fedjax.Model(model.init, train, evaluate, loss, metrics)


def run(work: Work) -> Rounds:
    """Runs the work with federated averaging."""
    task, model, n = work.task, network(work), work.task.examples_per_client
    clients = {}
    for client in range(task.clients):
        x, y = read_arrays(work, 'train', slice(client * n, (client + 1) * n))
        clients[client] = {'x': x, 'y': y}
    x, y = read_arrays(work, 'test', slice(None))
    tested = fedjax.ClientDataset({'x': x, 'y': y})
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(task.learning_rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=task.batch_size, num_epochs=task.local_epochs
        ),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), task.clients_per_round, seed=0
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    seconds, accuracy = [], 0.0
    for number in range(1, task.rounds + 1):
        start = time.perf_counter()
        state, _ = algorithm.apply(state, sampler.sample())
        if task.evaluates(number):
            batches = tested.padded_batch(batch_size=TEST_BATCH_SIZE)
            accuracy = float(fedjax.evaluate_model(model, state.params, batches)['accuracy'])
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - start)
    return Rounds(seconds, accuracy)
