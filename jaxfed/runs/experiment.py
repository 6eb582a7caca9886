"""An experiment: settings checked and parsed, data dealt, method and network built."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed import methods
from jaxfed.config import DEFAULTS, Config
from jaxfed.data.augment import check_augment, parse_augment
from jaxfed.data.feature_shift import check_feature_shift
from jaxfed.data.statistics import channel_statistics
from jaxfed.engine import distributed
from jaxfed.engine.cohorts import everyone
from jaxfed.engine.devices import check_devices
from jaxfed.engine.local import steps_per_epoch
from jaxfed.engine.optimizers import reads_momentum
from jaxfed.methods.costs import MethodCost, method_cost
from jaxfed.methods.hooks import check_hooks, hook_errors
from jaxfed.methods.method import CombineView, Method, RoundInfo
from jaxfed.metrics.measures import MEASURES, Need
from jaxfed.metrics.selection import needs, parse_clients, parse_measures
from jaxfed.models import BUILT_IN, MODELS, check_network, make_model, ops, with_precision
from jaxfed.recording import run_files, trackers
from jaxfed.recording.own_code import own_code
from jaxfed.runs import checks, config_flags
from jaxfed.runs.arrays import checked_arrays, name_arrays
from jaxfed.runs.attack import with_attack
from jaxfed.runs.client_models import check_kept
from jaxfed.runs.deal import Dealt, columns_of, data_digest, deal
from jaxfed.runs.own_optimizer import check_registered, name_optimizers
from jaxfed.runs.privacy import check_privacy
from jaxfed.runs.seeds import sample_cohort
from jaxfed.runs.tensors import start_from
from jaxfed.types import Cohort, Dataset, Model


class Measures(NamedTuple):
    """The parsed --measure and --confusion_clients."""

    names: tuple[str, ...]
    needs: set[Need]
    confusion_clients: tuple[int, ...]


class Experiment(NamedTuple):
    """An experiment that passed every check."""

    config: Config
    parts: list[methods.Part]  # all hyper-parameters; [] for a method passed as an object
    method: Method
    network: Model  # before the method and --precision change it
    model: Model
    dealt: Dealt
    measures: Measures
    augmentations: tuple[str, ...]
    mean: np.ndarray  # [channels] of the training images, in the units of the dataset's files
    std: np.ndarray  # [channels]
    workdir: Path  # `set_up` creates it
    cost: MethodCost  # of the method beyond FedAvg

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        height, width, channels = self.dealt.dataset.x_train.shape[1:]
        return height, width, channels


def set_up(
    config: Config,
    method: Method | None = None,
    dataset: Dataset | Mapping[str, Any] | None = None,
) -> Experiment:
    """Make an experiment, then its work directory; if the first fails, nothing is written.

    Args:
      config: the settings.
      method: used instead of the one that `config.method` names. The records name it
        `config.method`, or `own` if that is the default.
      dataset: arrays in memory, used instead of the data that `config.dataset` names.
    """
    if method is not None:
        methods.check_method(method)
        config = _name_method(config)
    arrays = None if dataset is None else checked_arrays(dataset, columns_of(config))
    if arrays is not None:
        config = name_arrays(config, arrays)
    (config,) = name_optimizers([config])
    experiment = make_experiment(config, method, arrays)
    workdir = distributed.broadcast_from_leader(
        'work directory', lambda: str(run_files.make_workdir(config, experiment.parts))
    )
    return experiment._replace(workdir=Path(workdir))


def make_experiment(
    config: Config, method: Method | None = None, dataset: Dataset | None = None
) -> Experiment:
    """Check the settings, load and deal the data, build method and network; write nothing."""
    checks.check(config)
    distributed.check_settings(config_flags.common_settings(config))
    distributed.check_work(config.clients_per_round, config.lanes)
    parts, method = build_method(config, method)
    distributed.check_settings(_definitions(config, parts))
    _check_optimizer(config, method)
    check_privacy(config, method)
    measures = _select_measures(config, method)
    augmentations = parse_augment(config.augment)
    check_devices(config.devices)
    if distributed.is_leader():  # the process that records
        trackers.check(config)
        if config.workdir is not None:
            run_files.check_workdir(Path(config.workdir), config, parts)
    dealt = deal(config, dataset, auxiliary_per_class=method.auxiliary)
    dataset = dealt.dataset
    distributed.check_data(
        f'--dataset={config.dataset}', lambda: dealt.digest + data_digest(dataset, {})
    )
    input_shape = dataset.x_train.shape[1:]
    check_augment(augmentations, input_shape)
    check_feature_shift(
        config.feature_shift, config.shift_strength, dataset.x_train, f'--dataset={config.dataset}'
    )
    classes, vocabulary = dataset.num_classes, dataset.vocabulary
    network, model = build_model(config, method, input_shape, classes, vocabulary)
    if MODELS[config.model] not in BUILT_IN:
        check_network(
            config.model, model, input_shape=input_shape, num_classes=classes, vocabulary=vocabulary
        )
    if config.save_clients:
        check_kept(config, method, model)
    with hook_errors():
        _check_combine(config, method, model)
        cost = method_cost(
            method, network, input_shape=input_shape, num_classes=classes, vocabulary=vocabulary
        )
    mean, std = channel_statistics(dataset.x_train)
    workdir = Path(config.workdir or run_files.RUNS)
    experiment = Experiment(
        config, parts, method, network, model, dealt, measures, augmentations, mean, std, workdir,
        cost,
    )  # fmt: skip
    longest = client_steps(experiment).max()
    if config.accumulate_steps > longest:
        raise ValueError(
            f'--accumulate_steps={config.accumulate_steps} is more than the {longest} batches of '
            'the largest client in a round, so no client would train; lower it.'
        )
    _check_rounds(experiment)
    return experiment


def _definitions(config: Config, parts: list[methods.Part]) -> dict[str, Any]:
    """What the user's files define: hyper-parameters, with their defaults, and the code."""
    values = {f'--{p.name}.{key}': v for p in parts for key, v in p.hyperparameters.items()}
    return values | {f'digest of {name}': v for name, v in own_code(config, parts).items()}


def _select_measures(config: Config, method: Method) -> Measures:
    """Parses the flags; 'all' leaves out measures that clients with own parameters lack."""
    names = parse_measures(config.measure)
    compared = [name for name in names if method.own and MEASURES[name].from_start]
    if compared and config.measure != 'all':
        raise ValueError(
            f'--measure: {", ".join(compared)} compare clients with the global model as their '
            f'start, but those of --method={config.method} keep parameters; leave them out.'
        )
    names = tuple(name for name in names if name not in compared)
    return Measures(names, needs(names), parse_clients(config.confusion_clients))


def _check_rounds(experiment: Experiment) -> None:
    """Raises a ValueError if no client trains in any round."""
    config, rounds = experiment.config, range(1, experiment.config.rounds + 1)
    # Ends at the first round that trains, as many rounds of many clients take long to draw.
    if any(client_steps(experiment, cohort_of(experiment, round_)).any() for round_ in rounds):
        return
    if any(cohort_of(experiment, round_).epochs.any() for round_ in rounds):
        raise ValueError(
            f'--rounds={config.rounds} sample no client with examples; raise it, or '
            '--clients_per_round, or choose a partition with fewer empty clients.'
        )
    raise ValueError(
        f'--dropout={config.dropout} loses every client in each of --rounds={config.rounds}; '
        'lower it, or raise --rounds.'
    )


def _check_combine(config: Config, method: Method, model: Model) -> None:
    """Traces `combine` on a round; a sweep traces it later with numbers that cannot be checked."""
    if (combine := method.combine) is None:
        return
    clients = config.clients_per_round
    info = RoundInfo(
        jnp.int32(1), jnp.float32(config.learning_rate), config.momentum, config.num_clients,
        clients, config.local_epochs, jnp.int32(clients), clients,
    )  # fmt: skip

    def shape(kind: Any, *sides: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((clients, *sides), kind)

    params = jax.eval_shape(model.init, jax.random.key(0))
    jax.eval_shape(
        lambda updates, weights, arrived: combine(CombineView(updates, weights, arrived, info)),
        jax.tree.map(lambda w: shape(w.dtype, *w.shape), params),
        shape(jnp.float32),
        shape(jnp.bool_),
    )


def _name_method(config: Config) -> Config:
    """The settings with the name of a method object in the records."""
    if config.hyperparameters:
        raise ValueError(
            f'hyperparameters={config.hyperparameters} have no effect on a method object; pass '
            'them to the function that makes it.'
        )
    if config.switch_round is not None:
        raise ValueError(
            f'--switch_round={config.switch_round} has no effect on a method object; use '
            'jaxfed.methods.switch.'
        )
    if config.method == DEFAULTS['method']:
        config = dataclasses.replace(config, method='own')
    if methods.METHODS.keys() >= {*re.split('[+,]', str(config.method))}:
        raise ValueError(
            f'--method={config.method} and a method object exclude each other; omit one, or give '
            'the object a name that is not in METHODS.'
        )
    return config


def build_method(config: Config, method: Method | None = None) -> tuple[list[methods.Part], Method]:
    """The parts of the method, [] for an object, and the method with --attack."""
    parts = [] if method else parts_of(config)
    return parts, check_hooks(with_attack(config, method or method_of(config)))


def parts_of(config: Config) -> list[methods.Part]:
    """The parts of the method, with all their hyper-parameters; errors as of `methods.resolve`."""
    return methods.resolve(config.method, config.hyperparameters)


def method_of(config: Config) -> Method:
    """The method without --attack; errors as of `methods.resolve` and `methods.build`."""
    return methods.build(parts_of(config), switch_round=config.switch_round)


def build_model(
    config: Config,
    method: Method,
    input_shape: tuple[int, int, int],
    num_classes: int,
    vocabulary: int,
) -> tuple[Model, Model]:
    """The network with its initial parameters, and as the method and --precision change it."""
    network = make_network(config, input_shape, num_classes, vocabulary)
    if config.init_from is not None:
        network = start_from(Path(config.init_from), network, config.model)
    adapted = method.adapt(network)
    if config.init_from is not None and config.init_seed is not None:
        one, other = (adapted.init(jax.random.key(seed)) for seed in (0, 1))
        if all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other))):
            raise ValueError(
                f'--init_seed={config.init_seed} has no effect with --init_from, which sets the '
                'initial parameters; remove it.'
            )
    return network, with_precision(adapted, config.precision)


def _check_optimizer(config: Config, method: Method) -> None:
    """Refuses optimizers that fail, steps that the method does not count, momentum without use."""
    check_registered(config)
    if config.momentum != DEFAULTS['momentum'] and not reads_momentum(str(config.optimizer)):
        raise ValueError(
            f'--momentum={config.momentum} has no effect with --optimizer={config.optimizer}; '
            'remove it.'
        )
    if method.trainable and config.accumulate_steps > 1:
        raise ValueError(
            f'--method={config.method} may train other arrays in other local steps, so their '
            f'gradients have no mean: remove --accumulate_steps={config.accumulate_steps}.'
        )
    plain = config.optimizer == 'sgd' and config.accumulate_steps == 1
    if method.counts_steps and not plain:
        raise ValueError(
            f'--method={config.method} reads the local steps as those of SGD with momentum, got '
            f'--optimizer={config.optimizer} and --accumulate_steps={config.accumulate_steps}; '
            'remove them.'
        )


def make_network(
    config: Config,
    input_shape: tuple[int, int, int],
    num_classes: int,
    vocabulary: int = 0,
    convolution: ops.Convolution | None = None,
) -> Model:
    """The network of the settings before a method adapts it; `convolution` replaces --conv."""
    return make_model(
        config.model,
        input_shape=input_shape,
        num_classes=num_classes,
        vocabulary=vocabulary,
        convolution=convolution or ops.convolution(None if config.conv == 'auto' else config.conv),
        encoder=config.encoder,
        norm=config.norm,
        stem=config.stem,
        width=config.width,
        remat=config.remat,
    )


def cohort_of(experiment: Experiment, round_: int) -> Cohort:
    """The clients [S] of a round and the epochs that each completes."""
    return sample_cohort(experiment.config, experiment.dealt.size, round_)


def client_steps(experiment: Experiment, cohort: Cohort | None = None) -> np.ndarray:
    """Batches of a cohort's clients [S], or of all clients [N] in a round without failures.

    K_i = E_i ceil(n_i / B)
    """
    config, size = experiment.config, experiment.dealt.size
    if cohort is None:
        cohort = everyone(np.arange(config.num_clients), config.local_epochs)
    return cohort.epochs * steps_per_epoch(size[cohort.clients], config.batch_size)


def total_steps(experiment: Experiment, rounds: int) -> int:
    """Batches of all clients in the first `rounds` rounds."""
    return sum(
        int(client_steps(experiment, cohort_of(experiment, round_)).sum())
        for round_ in range(1, rounds + 1)
    )
