"""The server of a Flower run: it shares, weighs, merges, evaluates and records."""

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from jaxfed.config import DEFAULTS, Config
from jaxfed.data.augment import normalise
from jaxfed.engine.devices import make_mesh, memory, replicate
from jaxfed.engine.remote import add_up
from jaxfed.engine.round import Round
from jaxfed.engine.types import RoundInputs, ServerState, Sums, TrainingData
from jaxfed.flower.messages import (
    CLIENTS,
    FACTS,
    MODEL,
    ROUND,
    SUMS,
    Facts,
    RoundOfClient,
    pack,
    read_settings,
    unpack,
)
from jaxfed.flower.programs import Programs, make_programs
from jaxfed.internal import console
from jaxfed.internal.backend import compile_all
from jaxfed.internal.digest import digest
from jaxfed.internal.program_cache import kept_programs
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.runs.evaluate import (
    evaluation_memory,
    lower_evaluation,
    make_evaluators,
    place_test_sets,
)
from jaxfed.runs.experiment import Experiment, build_model, set_up
from jaxfed.runs.feed import PlannedRound, plan_rounds
from jaxfed.runs.placement import auxiliary_batch
from jaxfed.runs.prepare import Prepared, initial_state
from jaxfed.runs.shared_program import round_arguments
from jaxfed.runs.simulate import Diverged, train
from jaxfed.types import Dataset, PyTree

_POLL_SECONDS, _SAY_SECONDS = 0.5, 10.0  # while the server waits for clients


class Connected(NamedTuple):
    """The clients that have answered."""

    asked: set[int]  # nodes, also those without clients
    nodes: dict[int, int]  # client -> node
    counts: dict[int, list[int]]  # client -> [C] examples of each class


def server_app(
    config: Config | None = None,
    *,
    dataset: Dataset | Mapping[str, Any] | None = None,
    timeout: float | None = 3600.0,
) -> ServerApp:
    """Make the ServerApp of a method, a network and their settings.

    The server waits until all `num_clients` clients are connected. Its dataset gives the test data,
    the server's auxiliary examples, and the statistics with which all normalise. Records and
    checkpoints are those of `jaxfed.simulate`.

    Args:
      config: the settings; None for the run config of the Flower project, whose keys are flags.
      dataset: arrays in memory, used instead of the data that the settings name.
      timeout: seconds after which clients of a round that have not answered are lost; None waits
        until Flower reports them as lost, which it does not while their nodes are alive.

    Returns:
      The app.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Runs all rounds."""
        try:
            settings = config or read_settings(context)
            check_supported(settings)
            with kept_programs(True):
                run(grid, set_up(settings, dataset=dataset), timeout)
        except (ValueError, OSError, Diverged) as error:
            console.show_error(' '.join(str(error).split()))
            raise SystemExit(2) from error

    return app


def check_supported(config: Config) -> None:
    """Raises a ValueError in one line for settings of a simulation."""
    reads = 'it reads the models or the examples of the clients'
    trains = 'a client of Flower trains alone on one device'
    reasons = dict.fromkeys(('local_eval_every', 'personal_test', 'measure'), reads)
    reasons |= {'save_clients': 'the clients keep their states'}
    reasons |= dict.fromkeys(('lanes', 'devices', 'stream'), trains)
    for name, reason in reasons.items():
        value = getattr(config, name)
        if value != DEFAULTS[name]:
            raise ValueError(f'--{name}={value} is for simulation: {reason}; remove it.')


def run(grid: Grid, experiment: Experiment, timeout: float | None) -> None:
    """Wait for all clients, then train."""
    check_start(experiment)
    clients, facts = experiment.config.num_clients, facts_of(experiment)
    connected = Connected(set(), {}, {})
    said = time.monotonic()
    while missing := clients - len(connected.nodes):
        if problems := ask_new_nodes(grid, connected, facts, clients, timeout):
            raise ValueError(problems[0])
        time.sleep(_POLL_SECONDS if len(connected.nodes) < clients else 0)
        if time.monotonic() > said + _SAY_SECONDS:
            said = time.monotonic()
            console.say(
                f'waiting for {missing} of {clients} clients; start their nodes, or simulate with '
                f"flwr run --federation-config 'num-supernodes={clients}'"
            )
    counts = np.array([connected.counts[client] for client in range(clients)], np.int32)
    # The server knows the counts of classes, not the examples.
    dealt = experiment.dealt
    if not np.array_equal(counts, dealt.label_counts):  # not those that the settings deal
        dealt = dealt._replace(
            label_counts=counts,
            size=counts.sum(axis=1),
            digest=digest({'label_counts': counts}),
        )
    train(experiment._replace(dealt=dealt), remote=partial(connect, grid, connected, timeout))


def check_start(experiment: Experiment) -> None:
    """Raises a ValueError if clients need the file of --init_from, which only the server has."""
    config, method = experiment.config, experiment.method
    if config.init_from is None:
        return
    plain, dataset = dataclasses.replace(config, init_from=None), experiment.dealt.dataset
    sizes = experiment.input_shape, dataset.num_classes, dataset.vocabulary
    _, model = build_model(plain, method, *sizes)
    one, other = (
        jax.tree.leaves(method.init(model.init(jax.random.key(seed)), model.stats)[1])
        for seed in (0, 1)
    )
    if not all(map(np.array_equal, one, other)):
        raise ValueError(
            f'--init_from={config.init_from}: clients of --method={config.method} keep initial '
            'parameters, which they make themselves; remove it, or choose another method.'
        )


def facts_of(experiment: Experiment, longest: int = 0) -> Facts:
    """What a client must know, from the experiment of the server."""
    dataset = experiment.dealt.dataset
    return Facts(
        input_shape=list(experiment.input_shape),
        num_classes=dataset.num_classes,
        vocabulary=dataset.vocabulary,
        dtype=str(dataset.x_train.dtype),
        mean=experiment.mean.tolist(),
        std=experiment.std.tolist(),
        longest=longest,
        auxiliary=len(experiment.dealt.auxiliary),
    )


def ask_new_nodes(
    grid: Grid, connected: Connected, facts: Facts, num_clients: int, timeout: float | None
) -> list[str]:
    """Ask nodes that have not answered which clients they have.

    A client that another node has moves to the new one, because Flower lists a node for a while
    after it was killed.

    Returns:
      What prevents nodes from taking part: an error of an app, or other examples than before.
    """
    nodes, problems = set(grid.get_node_ids()), []
    connected.asked.intersection_update(nodes)  # one that returns is asked again
    new = sorted(nodes - connected.asked)
    content = RecordDict({FACTS: ConfigRecord(facts._asdict())})
    questions = [Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in new]
    for answer in grid.send_and_receive(questions, timeout=timeout) if questions else ():
        node = answer.metadata.src_node_id
        if answer.has_error():
            if answer.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
                connected.asked.add(node)
                problems.append(f'a node cannot take part: {answer.error.reason}')
            continue  # asked again, if it is still there
        connected.asked.add(node)
        record: Any = answer.content.config_records[CLIENTS]
        clients, counts = record['ids'], record['label_counts']
        shape = len(clients), facts.num_classes
        if len(counts) != math.prod(shape) or not {*clients} <= {*range(num_clients)}:
            problems.append(
                f'a node has the clients {clients} with {len(counts)} counts of classes: it must '
                f'have the settings of the server, {num_clients} clients and {facts.num_classes} '
                'classes.'
            )
            continue
        rows = np.reshape(counts, shape).tolist()
        for client in [c for c, place in connected.nodes.items() if place == node]:
            del connected.nodes[client]  # what the node had before it left
        for client, of_client in zip(clients, rows, strict=True):
            if connected.counts.get(client, of_client) != of_client:
                problems.append(f'client {client} returned with other examples; it stays lost.')
                continue
            if connected.nodes.get(client, node) in nodes - {node}:
                console.show_warning(f'client {client} is now at another node.')
            connected.nodes[client], connected.counts[client] = node, of_client
    return problems


def connect(
    grid: Grid, connected: Connected, timeout: float | None, experiments: Sequence[Experiment]
) -> Prepared:
    """The rounds of an experiment whose clients other machines train, for `simulate.train`."""
    began = time.perf_counter()
    (experiment,) = experiments
    mesh, config, method = make_mesh('1'), experiment.config, experiment.method
    facts = facts_of(experiment, longest=int(experiment.dealt.size.max()))
    programs = make_programs(config, facts)
    check_new(experiment, programs)
    start, _ = initial_state(config, experiment.model, method)
    server = replicate(jax.tree.map(lambda leaf: np.asarray(leaf)[None], start), mesh)
    to_input = partial(normalise, mean=experiment.mean, std=experiment.std)
    test_sets = place_test_sets(experiments, mesh)
    evaluation = compile_all(
        lower_evaluation(experiments, mesh, server, test_sets[0], to_input, lanes=1)
    )
    evaluators = make_evaluators(experiments, mesh, evaluation, test_sets)
    needed = evaluation_memory(evaluation, experiment.dealt.dataset.x_test.nbytes)
    data = data_of(experiment, to_input)
    # Clients know the seeds, but must not know the noise of the server.
    keys = secret_keys()

    def feed(lanes: int, first: int, running: np.ndarray | None = None) -> Iterator[PlannedRound]:
        for number, cohort, _ in plan_rounds(experiments, None, first, running):
            tuned = round_arguments(experiments, number, running)
            yield PlannedRound(number, cohort, tuned, iter(()))

    def run_round(
        server: ServerState, states: PyTree, planned: PlannedRound, keep: bool
    ) -> tuple[ServerState, Any, list[Any]]:
        inputs = RoundInputs(server, planned.cohort, planned.tuned, keys, data)
        # Those that returned.
        for problem in ask_new_nodes(grid, connected, facts, config.num_clients, timeout):
            console.show_warning(problem)
        messages = train_clients(grid, connected.nodes, programs, facts, inputs, timeout)
        arrived = [slot for slot, _ in messages]
        lost = np.setdiff1d(np.arange(config.clients_per_round), arrived)
        planned.cohort.epochs[0, lost] = 0
        if not messages and not method.always_merges:
            return server._replace(round=server.round + 1), None, []
        # Without messages, one of zeros, of a client without weight.
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), programs.sums)
        sums = add_up(
            messages or [(0, nothing)], programs.round.weigh(inputs), config.clients_per_round,
            combines=method.combine is not None,
            survives=method.survives_clients(server.stats),
        )  # fmt: skip
        return *programs.round.merge(inputs, sums), []

    here = Round(programs.round.train, programs.round.merge)
    return Prepared(
        mesh, 1, feed, False, here, run_round, evaluation, evaluators, server, (), keys,
        needed, memory(mesh), time.perf_counter() - began,
    )  # fmt: skip


def secret_keys() -> Any:
    """A random key [1] that nobody can repeat."""
    words: Any = np.frombuffer(secrets.token_bytes(8), np.uint32)
    return jax.random.wrap_key_data(words)[None]


def check_new(experiment: Experiment, programs: Programs) -> None:
    """Raises a ValueError for a run that continues although its clients have lost their states."""
    checkpoints = experiment.workdir / FOLDER
    if jax.tree.leaves(programs.client_state) and checkpoints.exists():
        raise ValueError(
            f'--method={experiment.config.method} keeps a state at each client, and Flower keeps '
            f'it for one run only, so {experiment.workdir} cannot be continued; choose another '
            '--workdir.'
        )


def data_of(experiment: Experiment, to_input: Callable[[Any], Any]) -> TrainingData:
    """What the server knows about the data: the clients' counts and its own examples."""
    dealt = experiment.dealt
    size: Any = dealt.size[None].astype(np.int32)
    counts: Any = dealt.label_counts[None].astype(np.int32)
    none: Any = ()
    batch = jax.tree.map(lambda leaf: leaf[None], auxiliary_batch(dealt, to_input))
    return TrainingData(none, none, none, size, size, counts, batch)


def train_clients(
    grid: Grid,
    nodes: Mapping[int, int],
    programs: Programs,
    facts: Facts,
    inputs: RoundInputs,
    timeout: float | None,
) -> list[tuple[int, Sums]]:
    """Send a round to its clients and wait for their answers.

    Args:
      grid: of Flower.
      nodes: client -> node.
      programs: of the run.
      facts: of the run.
      inputs: of the round.
      timeout: as in `server_app`.

    Returns:
      (place in the cohort, sums) of the clients that answered; a client whose node is lost or
      fails is missing.

    Raises:
      ValueError: if all clients fail; an answer that does not fit counts as a failure.
    """
    shared = programs.round.share(inputs)
    model = pack((inputs.server.params, inputs.server.stats, shared))
    number, rate = int(inputs.server.round[0]), float(inputs.tuned.learning_rate[0])
    clients, epochs = (np.asarray(rows)[0].tolist() for rows in inputs.cohort)
    slots = {client: slot for slot, client in enumerate(clients) if epochs[slot]}
    present, training = set(grid.get_node_ids()), len(slots)
    questions = [
        Message(
            RecordDict(
                {
                    MODEL: model,
                    FACTS: ConfigRecord(facts._asdict()),
                    ROUND: ConfigRecord(
                        RoundOfClient(number, client, epochs[slot], training, rate)._asdict()
                    ),
                }
            ),
            dst_node_id=nodes[client],
            message_type=MessageType.TRAIN,
        )
        for client, slot in slots.items()
        if nodes.get(client) in present
    ]
    messages: dict[int, Sums] = {}
    failures: list[str] = []
    for answer in grid.send_and_receive(questions, timeout=timeout) if questions else ():
        if answer.has_error():
            if answer.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
                failures.append(str(answer.error.reason))
            continue
        client: Any = answer.content.config_records[ROUND]['client']
        if client not in slots or nodes.get(client) != answer.metadata.src_node_id:
            failures.append(f'a node answered for client {client}, which it was not asked for')
            continue
        try:
            sums = unpack(answer.content.array_records[SUMS], programs.sums)
        except ValueError as error:
            failures.append(str(error))
            continue
        messages[slots[client]] = sums
    if failures and len(failures) == len(questions):
        raise ValueError(f'round {number + 1}: all clients failed: {failures[0]}')
    for failure in failures:
        console.show_warning(f'round {number + 1}: a client failed: {failure}')
    return list(messages.items())
