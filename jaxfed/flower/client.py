"""The clients of a Flower run: local training with jaxfed's compiled round."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from jaxfed.config import Config
from jaxfed.data.arrays import make_dataset
from jaxfed.data.npz import read_arrays
from jaxfed.engine.lanes import schedule
from jaxfed.engine.local import steps_per_epoch
from jaxfed.engine.types import RoundInputs, ServerState, TrainingData, Tuned
from jaxfed.flower.messages import (
    CLIENTS,
    MODEL,
    ROUND,
    SUMS,
    Facts,
    RoundOfClient,
    pack,
    read,
    read_settings,
    unpack,
)
from jaxfed.flower.programs import Programs, make_programs
from jaxfed.internal.program_cache import kept_programs
from jaxfed.runs.deal import Dealt, deal
from jaxfed.runs.experiment import build_method
from jaxfed.runs.own_optimizer import name_optimizers
from jaxfed.runs.seeds import seed_of
from jaxfed.types import Cohort, PyTree

# (context of the node, client) -> inputs [n, ...] and labels [n], as those of `Dataset`
LoadData = Callable[[Context, int], tuple[Any, Any]]

# Made once in each process, which serves many messages: programs and dealt data, by settings.
_programs: dict[str, Programs] = {}
_dealt: dict[str, Dealt] = {}


class Examples(NamedTuple):
    """The examples of a client."""

    x: np.ndarray  # [n, H, W, channels]
    y: np.ndarray  # [n] int32


def client_app(config: Config | None = None, *, data: LoadData | None = None) -> ClientApp:
    """Make the ClientApp of a method, a network and their settings.

    A node serves the clients that its node config names: `partition-id=3`, which Flower's
    simulation sets, or `clients="0,3"`.

    Args:
      config: the settings; None for the run config of the Flower project, whose keys are flags.
      data: loads a client's examples; None for the file of the node config, `data="FILE.npz"` with
        x_train and y_train, or else the examples that the settings deal to the client.

    Returns:
      The app.
    """
    app = ClientApp()
    if config is not None:
        (config,) = name_optimizers([config])

    @app.query()
    def describe(message: Message, context: Context) -> Message:
        """Answers with the clients of this node and their examples of each class."""
        facts, settings = read(Facts, message), config or read_settings(context)
        clients = clients_of(context, settings)
        counts: list[int] = []
        for client in clients:
            labels = load(settings, facts, context, client, data).y
            counts += np.bincount(labels, minlength=facts.num_classes).tolist()
        answer = ConfigRecord({'ids': clients, 'label_counts': counts})
        return Message(RecordDict({CLIENTS: answer}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Trains a client and answers with its update, its statistics, its upload and its loss."""
        facts, settings = read(Facts, message), config or read_settings(context)
        round_ = read(RoundOfClient, message)
        if round_.client not in (clients := clients_of(context, settings)):
            raise ValueError(f'client {round_.client} is not at this node, which has {clients}.')
        examples = load(settings, facts, context, round_.client, data)
        with kept_programs(True):
            programs = programs_of(settings, facts)
            model = unpack(message.content.array_records[MODEL], programs.sent)
            sums = train_client(settings, facts, programs, round_, examples, model, context)
        answer = RecordDict({SUMS: pack(sums)})
        answer[ROUND] = ConfigRecord({'client': round_.client})
        return Message(answer, reply_to=message)

    return app


def train_client(
    config: Config,
    facts: Facts,
    programs: Programs,
    round_: RoundOfClient,
    examples: Examples,
    model: tuple[PyTree, PyTree, PyTree],
    context: Context,
) -> PyTree:
    """The sums of a client after its local training; its state stays in the context of the node."""
    key, state = f'client {round_.client}', programs.client_state
    if key in context.state:
        state = unpack(context.state.array_records[key], state)
    steps = round_.epochs * steps_per_epoch(len(examples.y), config.batch_size)
    inputs = client_inputs(config, facts, round_, examples, model)
    trained = programs.round.train(inputs, state, schedule([steps], lanes=1))
    context.state[key] = pack(trained.states)
    return jax.tree.map(lambda leaf: leaf[0, 0], trained.sums)


def client_inputs(
    config: Config,
    facts: Facts,
    round_: RoundOfClient,
    examples: Examples,
    model: tuple[PyTree, PyTree, PyTree],
) -> RoundInputs:
    """The inputs of a round, of whose clients only one has examples."""
    (params, stats, shared), client = model, round_.client
    n, clients, classes = len(examples.y), config.num_clients, facts.num_classes
    # Rows for the largest client, so that one program trains all.
    x: Any = np.zeros((facts.longest, int(np.prod(facts.input_shape))), examples.x.dtype)
    y: Any = np.zeros((1, facts.longest), np.int32)
    x[:n], y[0, :n] = examples.x.reshape(n, x.shape[1]), examples.y
    size: Any = np.zeros((1, clients), np.int32)
    counts: Any = np.zeros((1, clients, classes), np.int32)
    size[0, client], counts[0, client] = n, np.bincount(examples.y, minlength=classes)
    order: Any = np.arange(facts.longest, dtype=np.int32)[None]
    number: Any = np.array([round_.number], np.int32)
    # Places of others have a client without examples, and show only how many train.
    cohort = np.full((1, config.clients_per_round), (client + 1) % clients, np.int32)
    epochs = (np.arange(config.clients_per_round) < round_.cohort_size).astype(np.int32)[None]
    cohort[0, 0], epochs[0, 0] = client, round_.epochs
    rate = np.array([round_.learning_rate], np.float32)
    return RoundInputs(
        server=ServerState(params, (), number, stats),
        cohort=Cohort(cohort, epochs),
        tuned=Tuned(rate),
        keys=jax.random.key(seed_of(config, 'batches'))[None],
        data=TrainingData(x, y, order, np.zeros_like(size), size, counts),
        shared=shared,
    )


def programs_of(config: Config, facts: Facts) -> Programs:
    """The programs of these settings, made once in a process."""
    key = repr((config, facts))
    if key not in _programs:
        _programs[key] = make_programs(config, facts)
    return _programs[key]


def clients_of(context: Context, config: Config) -> list[int]:
    """The clients of a node.

    Raises:
      ValueError: if its node config does not name them.
    """
    node = context.node_config
    if 'clients' not in node and int(node.get('partition-id', 0)) >= config.num_clients:
        return []  # a simulation may have more nodes than clients
    text = str(node.get('clients', node.get('partition-id', '')))
    parts = [part.strip() for part in text.split(',')]
    known = {str(client) for client in range(config.num_clients)}
    if not set(parts) <= known or len(set(parts)) < len(parts):
        raise ValueError(
            f'the node config must name different clients from 0 to {config.num_clients - 1}, as '
            f'in --node-config \'clients="0,1"\' or partition-id=0, got {text!r}.'
        )
    return [int(part) for part in parts]


def load(
    config: Config, facts: Facts, context: Context, client: int, data: LoadData | None
) -> Examples:
    """The examples of a client, checked.

    Raises:
      ValueError: if they do not fit what the server expects.
    """
    if data is None and 'data' not in context.node_config:
        examples = dealt_examples(config, client)
        source = f'--dataset={config.dataset} at client {client}'
    else:
        examples, source = own_examples(config, facts, context, client, data)
    found = [*examples.x.shape[1:]], str(examples.x.dtype), int(examples.y.max(initial=0))
    expected = facts.input_shape, facts.dtype
    if found[:2] != expected or found[2] >= facts.num_classes:
        raise ValueError(
            f'{source} has inputs {tuple(found[0])} {found[1]} and labels up to {found[2]}, the '
            f'server {tuple(facts.input_shape)} {facts.dtype} and {facts.num_classes} classes: '
            'they must have the same shape, units and classes.'
        )
    return examples


def own_examples(
    config: Config, facts: Facts, context: Context, client: int, data: LoadData | None
) -> tuple[Examples, str]:
    """The examples of a function or of the node's file, and a name for messages."""
    flips = config.malicious and config.attack == 'label_flip'
    if config.imbalance > 1 or config.label_noise or flips:
        raise ValueError(
            '--imbalance, --label_noise and --attack=label_flip change data that the settings '
            "deal; remove them for clients' own data."
        )
    if data is None:
        path = str(context.node_config['data'])
        source = f'the node config data={path}'
        if len(clients := clients_of(context, config)) > 1:
            raise ValueError(
                f'{source} has the examples of one client, but the node has the clients {clients}; '
                'start a node for each, or load their examples with client_app(data=...).'
            )
        found = read_arrays(path, source, ('x_train', 'y_train'))  # and users, if it has them
        x, y = found['x_train'], found['y_train']
    else:
        source = f'data of client {client}'
        x, y = (np.asarray(array) for array in data(context, client))
    arrays = {'x_train': x, 'y_train': y, 'x_test': x, 'y_test': y}
    made = make_dataset('client', source, arrays, facts.num_classes, facts.vocabulary)
    return Examples(made.x_train, made.y_train), source


def dealt_examples(config: Config, client: int) -> Examples:
    """The examples that the settings deal to a client; read once in a process."""
    key = repr(config)
    if key not in _dealt:
        _, method = build_method(config)
        _dealt[key] = deal(config, auxiliary_per_class=method.auxiliary)
    dataset, rows = _dealt[key].dataset, _dealt[key].partition[client]
    return Examples(dataset.x_train[rows], dataset.y_train[rows])
