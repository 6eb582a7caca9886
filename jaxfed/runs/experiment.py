"""An experiment: its settings checked, its data dealt, its method and network built."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfed import methods
from jaxfed.config import Config
from jaxfed.data.augment import check_augment, parse_augment
from jaxfed.engine import distributed
from jaxfed.engine.devices import check_devices
from jaxfed.engine.local import steps_per_epoch
from jaxfed.methods.method import Method
from jaxfed.models import make_model, ops, with_precision
from jaxfed.recording import run_files, trackers
from jaxfed.runs import checks, config_flags
from jaxfed.runs.deal import Dealt, deal
from jaxfed.runs.seeds import sample_cohort
from jaxfed.types import Cohort, Model


class Experiment(NamedTuple):
    """An experiment that passed every check."""

    config: Config
    parts: list[methods.Part]  # the method's parts and hyper-parameters, empty for one's own
    method: Method
    model: Model
    dealt: Dealt
    workdir: Path  # made by `set_up`


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
    experiment = look(config, method)
    made = distributed.from_leader(
        'work directory', lambda: str(run_files.make_workdir(config, experiment.parts))
    )
    return experiment._replace(workdir=Path(made))


def look(config: Config, method: Method | None = None) -> Experiment:
    """All that `set_up` does but for the work directory, which is not made.

    Args:
      config: as in `set_up`.
      method: as in `set_up`.

    Returns:
      The experiment; its work directory is the one above, where no other is named.

    Raises:
      ValueError: as in `set_up`.
      OSError: as in `set_up`.
    """
    checks.check(config)
    distributed.agree(config_flags.common_settings(config))
    distributed.check(config.clients_per_round, config.lanes)
    parts = [] if method else methods.resolve(config.method, config.hyperparameters)
    built = method or methods.build(parts, switch_round=config.switch_round)
    augmentations = parse_augment(config.augment)
    check_devices(config.devices)
    if distributed.leader():  # who records
        trackers.check(config)
        if config.workdir is not None:
            run_files.check_workdir(Path(config.workdir), config, parts)
    dealt = deal(config, auxiliary_per_class=built.auxiliary)
    dataset = dealt.dataset
    held = (dataset.y_train, dataset.y_test, *dealt.partition, dataset.x_train, dataset.x_test)
    distributed.agree_on_data(config.dataset, held)
    check_augment(augmentations, dataset.x_train.shape[1:])
    network = make_network(config, dataset.x_train.shape[1:], dataset.num_classes)
    model = with_precision(built.adapt(network), config.precision)
    size = dealt.label_counts.sum(axis=1)
    if not any(sample_cohort(config, size, r).epochs.any() for r in range(1, config.rounds + 1)):
        raise ValueError(
            f'--dropout={config.dropout} loses every client of all --rounds={config.rounds}; lower '
            'it, or train for more rounds.'
        )
    return Experiment(config, parts, built, model, dealt, Path(config.workdir or run_files.RUNS))


def make_network(
    config: Config,
    input_shape: tuple[int, int, int],
    num_classes: int,
    convolution: ops.Convolution | None = None,
) -> Model:
    """The network that the settings name, before a method adapts it.

    Args:
      config: the settings.
      input_shape: height, width and channels of an image.
      num_classes: C.
      convolution: what to compute convolutions with, instead of what --conv says.

    Returns:
      The network.

    Raises:
      ValueError: if there is no such network, or not with these options or for these images.
    """
    return make_model(
        config.model,
        input_shape=input_shape,
        num_classes=num_classes,
        convolution=convolution or ops.convolution(None if config.conv == 'auto' else config.conv),
        norm=config.norm,
        stem=config.stem,
        width=config.width,
        remat=config.remat,
    )


def client_steps(experiment: Experiment) -> np.ndarray:
    """Local steps of every client in a round.

    K_i = E ceil(n_i / B)

    Args:
      experiment: from `set_up`.

    Returns:
      [N] integers.
    """
    size, config = experiment.dealt.label_counts.sum(axis=1), experiment.config
    return config.local_epochs * steps_per_epoch(size, config.batch_size)


def cohort_steps(config: Config, size: np.ndarray, cohort: Cohort) -> np.ndarray:
    """Local steps of the clients of a round.

    Args:
      config: the settings.
      size: [N] examples of each client.
      cohort: of the round.

    Returns:
      [S] integers, 0 for those that are lost.
    """
    return cohort.epochs * steps_per_epoch(size[cohort.clients], config.batch_size)
