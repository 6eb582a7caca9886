"""The host's loop over rounds: set up an experiment, train it, record it."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed import config as config_lib
from jaxfed import methods, ops
from jaxfed.config import Config
from jaxfed.costs import method_cost
from jaxfed.data import load_dataset
from jaxfed.data.augment import check_augment, make_augment, normalise, parse_augment
from jaxfed.data.auxiliary import split_auxiliary
from jaxfed.data.statistics import channel_statistics
from jaxfed.devices import check_devices, make_mesh, memory, replicate, split
from jaxfed.execution import compile_round, peak_memory, run_round
from jaxfed.lanes import Schedule, choose_lanes, schedule
from jaxfed.method import Method
from jaxfed.metrics import Evaluation, evaluate, local_accuracy
from jaxfed.models import make_model, with_precision
from jaxfed.partition import label_counts, make_partition
from jaxfed.partition.heatmap import draw_heatmap
from jaxfed.recording import console, records
from jaxfed.recording.plots import draw_accuracy
from jaxfed.round import (
    LocalSettings,
    Round,
    ServerState,
    TrainingData,
    make_round,
    steps_per_epoch,
)
from jaxfed.types import Array, Batch, Dataset, Model, PyTree


class Diverged(RuntimeError):
    """Training produced values that are not finite."""


class Dealt(NamedTuple):
    """A dataset and who holds what of its training examples."""

    dataset: Dataset
    partition: list[np.ndarray]  # N index arrays
    auxiliary: np.ndarray  # index array, the server's own examples
    label_counts: np.ndarray  # [N, C] int32


class Experiment(NamedTuple):
    """An experiment that passed every check and has its work directory."""

    config: Config
    parts: list[methods.Part]  # the method's parts and hyper-parameters, empty for one's own
    method: Method
    model: Model
    dealt: Dealt
    workdir: Path


class Result(NamedTuple):
    """What an experiment leaves."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # one entry a round, as in metrics.jsonl
    params: PyTree  # the last global parameters
    workdir: Path


# Where a CPU is one device, a few clients side by side fill its cores; more only take memory and
# compile longer. Where each core is a device, one client at a time keeps it busy.
CPU_LANES = 8

# What a round that diverged has no value for.
FAILED = ('train_loss', 'test_loss', 'test_accuracy', 'class_accuracy', 'local_accuracy')

# Separate random streams, so that changing what draws from one leaves the others as they are.
_STREAMS = ('partition', 'cohort', 'initialisation', 'batches', 'auxiliary')


def stream(seed: int, name: str) -> int:
    """The seed of one of the experiment's random streams.

    Args:
      seed: of the experiment.
      name: of the stream: partition, cohort, initialisation, batches or auxiliary.

    Returns:
      A 32-bit seed.
    """
    return int(np.random.SeedSequence([seed, _STREAMS.index(name)]).generate_state(1)[0])


def sample_cohort(config: Config, round_: int) -> np.ndarray:
    """The clients of a round, uniformly without replacement.

    Args:
      config: the settings; seed, num_clients and clients_per_round are read.
      round_: number of the round.

    Returns:
      [S] int32 client ids.
    """
    rng = np.random.default_rng([stream(config.seed, 'cohort'), round_])
    chosen = rng.choice(config.num_clients, config.clients_per_round, replace=False)
    return np.sort(chosen).astype(np.int32)


def set_up(config: Config, method: Method | None = None) -> Experiment:
    """Check the settings, load and deal the data, build the method and write config.json.

    Nothing is written before everything else has succeeded.

    Args:
      config: the settings.
      method: a method of one's own, instead of the one that `config.method` names.

    Returns:
      The experiment.

    Raises:
      ValueError: for settings or data that do not do, naming what would.
      OSError: if data cannot be read.
    """
    config_lib.check(config)
    parts = [] if method else methods.resolve(config.method, config.hyperparameters)
    built = method or methods.build(parts, switch_round=config.switch_round)
    augmentations = parse_augment(config.augment)
    check_devices(config.devices)
    if config.workdir is not None:
        records.check_workdir(Path(config.workdir))
    dealt = deal(config, auxiliary_per_class=built.auxiliary)
    dataset = dealt.dataset
    check_augment(augmentations, dataset.x_train.shape[1:])
    network = make_model(
        config.model,
        input_shape=dataset.x_train.shape[1:],
        num_classes=dataset.num_classes,
        convolution=ops.convolution(None if config.conv == 'auto' else config.conv),
    )
    model = with_precision(built.adapt(network), config.precision)
    return Experiment(config, parts, built, model, dealt, records.make_workdir(config, parts))


def deal(config: Config, *, auxiliary_per_class: int = 0) -> Dealt:
    """Load the dataset, set the server's auxiliary data aside and deal the rest to the clients.

    Args:
      config: the settings; of them data, partition and seed are read.
      auxiliary_per_class: what the method needs, if the settings do not say.

    Returns:
      The dataset and who holds what of it.

    Raises:
      ValueError: if there is no such dataset, or it cannot be dealt so.
    """
    config_lib.check(config)
    dataset = load_dataset(config.dataset, data_dir=config.data_dir, npz=config.npz)
    per_class = config.auxiliary_per_class
    if per_class == 0 and auxiliary_per_class:
        raise ValueError(
            f'--auxiliary_per_class=0, but --method={config.method} needs auxiliary data on the '
            f'server; leave the flag out for {auxiliary_per_class} examples a class.'
        )
    auxiliary, remaining = split_auxiliary(
        dataset.y_train,
        per_class=auxiliary_per_class if per_class is None else per_class,
        num_classes=dataset.num_classes,
        seed=stream(config.seed, 'auxiliary'),
    )
    parts = make_partition(
        config.partition,
        dataset.y_train[remaining],
        num_clients=config.num_clients,
        seed=stream(config.seed, 'partition'),
        alpha=config.alpha,
        min_size=config.min_size,
        balanced=config.balanced,
        shards_per_client=config.shards_per_client,
        labels_per_client=config.labels_per_client,
    )
    partition = [remaining[part] for part in parts]
    counts = label_counts(dataset.y_train, partition, dataset.num_classes)
    return Dealt(dataset, partition, auxiliary, counts)


def train(experiment: Experiment, *, quiet: bool = False) -> Result:
    """Train an experiment to its last round and record it in its work directory.

    Args:
      experiment: from `set_up`.
      quiet: show no progress.

    Returns:
      Summary, metrics of all rounds, final parameters and the work directory.

    Raises:
      Diverged: if training produces values that are not finite; earlier rounds stay recorded.
    """
    began = time.perf_counter()
    config, method, model = experiment.config, experiment.method, experiment.model
    dealt, workdir = experiment.dealt, experiment.workdir
    dataset = dealt.dataset
    title = f'{config.dataset}, {config.partition}, {config.num_clients} clients'
    draw_heatmap(dealt.label_counts, workdir / 'partition.png', title=title)

    mean, std = channel_statistics(dataset.x_train)
    augment = make_augment(parse_augment(config.augment), mean=mean, std=std)
    to_input = functools.partial(normalise, mean=mean, std=std)
    mesh = make_mesh(config.devices, most=config.clients_per_round // max(config.lanes, 1))
    data = place_data(dealt, to_input, mesh)
    steps = client_steps(experiment)
    lanes = config.lanes or choose_lanes(
        steps,
        cohort_size=config.clients_per_round,
        most=most_lanes(config, mesh.size),
        devices=mesh.size,
    )
    settings = LocalSettings(
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        aggregation=config.aggregation,
        longest=max(len(part) for part in dealt.partition),
        keep_models=config.local_eval_every > 0,
    )
    params = model.init(jax.random.key(stream(config.seed, 'initialisation')))
    server_state, client_state = method.init(params)
    server = replicate(ServerState(params, server_state, jnp.zeros((), jnp.int32)), mesh)
    # Every client's state lives on the host; a round's rows travel.
    client_states = jax.tree.map(
        lambda leaf: of_every_client(np.asarray(leaf), config.num_clients), client_state
    )
    test_set = replicate((dataset.x_test, dataset.y_test), mesh)
    key = replicate(jax.random.key(stream(config.seed, 'batches')), mesh)

    def inputs(round_: int) -> tuple[np.ndarray, Schedule, float]:
        cohort = sample_cohort(config, round_)
        rate = config.learning_rate * config.lr_decay ** (round_ - 1)
        return cohort, schedule(steps[cohort], lanes=lanes, devices=mesh.size), rate

    with console.status('compiling', quiet=quiet):
        compiling = time.perf_counter()
        parts = make_round(model, method, settings, augment, to_input, mesh=mesh)
        programs = compile_round(parts, mesh, server, client_states, *inputs(1), key, data)
        # The program says how much memory its lanes take, most of which grows with them.
        while not config.lanes and (fitting := fitting_lanes(lanes, programs, mesh)) < lanes:
            lanes = fitting
            programs = compile_round(parts, mesh, server, client_states, *inputs(1), key, data)
        test = functools.partial(evaluate, model.apply, prepare=to_input, mesh=mesh)
        compiled_test = jax.jit(test).lower(server.params, *test_set).compile()
        local_test = functools.partial(
            local_accuracy, model.apply, prepare=to_input, mesh=mesh, lanes=lanes
        )
        if config.local_eval_every:
            plan = inputs(1)[1]
            kept = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((*plan.slot.shape, *leaf.shape), leaf.dtype),
                params,
            )
            arguments = kept, split(plan.clients, mesh), *test_set
            compiled_local_test = jax.jit(local_test).lower(*arguments).compile()
        compile_seconds = time.perf_counter() - compiling

    def due(every: int, round_: int) -> bool:
        return every > 0 and (round_ % every == 0 or round_ == config.rounds)

    metrics: list[dict[str, Any]] = []
    with console.progress(config.rounds, quiet=quiet) as report, records.lines(workdir) as record:
        for round_ in range(1, config.rounds + 1):
            ticks = [time.perf_counter()]
            cohort, plan, rate = inputs(round_)
            server, trained, local_params = run_round(
                programs, mesh, server, client_states, cohort, plan, rate, key, data
            )
            train_loss = float(trained.train_loss)
            ticks.append(time.perf_counter())
            evaluation = local = None
            if due(config.eval_every, round_):
                evaluation = jax.device_get(compiled_test(server.params, *test_set))
            ticks.append(time.perf_counter())
            if due(config.local_eval_every, round_):
                count = split(plan.clients, mesh)
                each = jax.device_get(compiled_local_test(local_params, count, *test_set))
                local = each[np.arange(each.shape[1]) < plan.clients[:, None]]
            ticks.append(time.perf_counter())
            entry = describe_round(round_, train_loss, evaluation, local, rate)
            entry['seconds'] = round(ticks[3] - ticks[0], 4)
            entry['evaluation_seconds'] = round(ticks[2] - ticks[1], 4)
            entry['local_evaluation_seconds'] = round(ticks[3] - ticks[2], 4)
            failed = not_finite(entry)
            if failed and config.on_divergence == 'stop':
                raise Diverged(
                    f'round {round_}: {failed} is not finite; training diverged. A lower '
                    '--learning_rate or smaller weights of the method may help. The rounds before '
                    f'are in {workdir}. --on_divergence=record ends such a run without an error.'
                )
            if failed:
                entry |= dict.fromkeys(FAILED) | {'failed': True}
            metrics.append(entry)
            record(entry)
            report(entry)
            if failed:
                break

    trained_rounds = range(1, len(metrics) + 1)
    done = sum(int(steps[sample_cohort(config, r)].sum()) for r in trained_rounds)
    summary = summarise(config, metrics, compile_seconds, done)
    cost = method_cost(
        method, model, input_shape=dataset.x_train.shape[1:], num_classes=dataset.num_classes
    )
    summary['cost'] = cost._asdict()
    summary['devices'] = mesh.size
    summary['lanes'] = lanes
    summary['auxiliary_examples'] = len(dealt.auxiliary)
    summary['seconds_total'] = round(time.perf_counter() - began, 2)
    records.write_json(workdir / 'summary.json', summary)
    draw_accuracy(metrics, workdir / 'accuracy.png', title=f'{config.method}, {title}')
    if not quiet:
        console.show_summary(summary, workdir)
    return Result(summary, metrics, server.params, workdir)


def place_data(dealt: Dealt, to_input: Callable[[Array], Array], mesh: Mesh) -> TrainingData:
    """Put the training data on the devices: every image once, clients as groups of indices.

    Args:
      dealt: from `deal`.
      to_input: normalisation, for the server's auxiliary data.
      mesh: the devices.

    Returns:
      The training data.
    """
    dataset, auxiliary = dealt.dataset, dealt.auxiliary
    size = np.array([len(part) for part in dealt.partition], np.int32)
    own = None
    if len(auxiliary):
        y = jnp.asarray(dataset.y_train[auxiliary])
        own = Batch(to_input(dataset.x_train[auxiliary]), y, jnp.ones(y.shape, bool))
    arrays = (
        dataset.x_train,
        dataset.y_train,
        np.concatenate(dealt.partition).astype(np.int32),
        (np.cumsum(size) - size).astype(np.int32),
        size,
        dealt.label_counts.astype(np.int32),
    )
    x, y, order, start, size, counts = replicate(arrays, mesh)
    return TrainingData(x, y, order, start, size, counts, replicate(own, mesh))


def most_lanes(config: Config, devices: int) -> int:
    """The largest number of lanes worth having on each device."""
    if jax.default_backend() != 'cpu':
        return config.clients_per_round
    return CPU_LANES if devices == 1 else 1


def fitting_lanes(lanes: int, programs: Round, mesh: Mesh) -> int:
    """The number of lanes for which a device has the memory.

    Args:
      lanes: that the programs were compiled for.
      programs: of a round, compiled.
      mesh: the devices.

    Returns:
      The same number if they fit, else a smaller one, at least 1.
    """
    available, taken = memory(mesh), peak_memory(programs)
    return lanes if taken <= available else max(1, int(lanes * available / taken))


def of_every_client(leaf: np.ndarray, num_clients: int) -> np.ndarray:
    """The same array for each of N clients, [N, ...]; zeros take memory when they are written."""
    if not leaf.any():
        return np.zeros((num_clients, *leaf.shape), leaf.dtype)
    return np.repeat(leaf[None], num_clients, axis=0)


def client_steps(experiment: Experiment) -> np.ndarray:
    """Local steps of every client in a round, K_i = E ceil(n_i / B), as [N] integers."""
    size = np.array([len(part) for part in experiment.dealt.partition])
    config = experiment.config
    return config.local_epochs * steps_per_epoch(size, config.batch_size)


def describe_round(
    round_: int,
    train_loss: float,
    evaluation: Evaluation | None,
    local: np.ndarray | None,
    learning_rate: float,
) -> dict[str, Any]:
    """One line of metrics.jsonl, without its times; None for what was not evaluated."""
    entry: dict[str, Any] = {
        'round': round_,
        'test_accuracy': None,
        'test_loss': None,
        'class_accuracy': None,
        'local_accuracy': None if local is None else round(float(local.mean()), 6),
        'train_loss': round(train_loss, 6),
        'learning_rate': round(learning_rate, 9),
    }
    if evaluation is not None:
        entry['test_accuracy'] = round(float(evaluation.accuracy), 6)
        entry['test_loss'] = round(float(evaluation.loss), 6)
        entry['class_accuracy'] = [round(float(a), 6) for a in evaluation.class_accuracy]
    return entry


def not_finite(entry: dict[str, Any]) -> str | None:
    """The name of a loss of this round that is not finite, None if there is no such loss."""
    for name in ('train_loss', 'test_loss'):
        if entry[name] is not None and not np.isfinite(entry[name]):
            return name
    return None


def summarise(
    config: Config, metrics: list[dict[str, Any]], compile_seconds: float, steps: int
) -> dict[str, Any]:
    """The numbers of summary.json that follow from the rounds.

    Args:
      config: the settings.
      metrics: one entry a round.
      compile_seconds: time the compiler took.
      steps: client-steps of all rounds together.

    Returns:
      The summary.
    """
    tested = [entry for entry in metrics if entry['test_accuracy'] is not None]
    accuracy = [entry['test_accuracy'] for entry in tested]
    local = [e['local_accuracy'] for e in metrics if e['local_accuracy'] is not None]
    seconds = [entry['seconds'] for entry in metrics]
    best = int(np.argmax(accuracy)) if tested else None
    target = config.target_accuracy
    reached = [e['round'] for e in tested if target and e['test_accuracy'] >= target]

    def share(name: str) -> float:
        return round(sum(entry[name] for entry in metrics) / sum(seconds), 4)

    return {
        'method': config.method,
        'dataset': config.dataset,
        'rounds': len(metrics),
        'failed': any(entry.get('failed') for entry in metrics),
        'final_accuracy': accuracy[-1] if tested else None,
        'best_accuracy': None if best is None else accuracy[best],
        'best_round': None if best is None else tested[best]['round'],
        'local_accuracy': local[-1] if local else None,
        'target_accuracy': target,
        'rounds_to_target': reached[0] if reached else None,
        'seconds_per_round': round(float(np.median(seconds)), 4),
        'compile_seconds': round(compile_seconds, 2),
        'client_steps_per_second': round(steps / sum(seconds), 2),
        'evaluation_share': share('evaluation_seconds'),
        'local_evaluation_share': share('local_evaluation_seconds'),
    }


def simulate(config: Config, *, method: Method | None = None, quiet: bool = True) -> Result:
    """Run an experiment from its settings, with the same records as the command line.

    Args:
      config: the settings.
      method: a method of one's own, instead of the one that `config.method` names.
      quiet: show no progress.

    Returns:
      Summary, metrics of all rounds, final parameters and the work directory.

    Raises:
      ValueError: for settings or data that do not do, before anything is written.
      Diverged: if training produces values that are not finite.
    """
    return train(set_up(config, method), quiet=quiet)
