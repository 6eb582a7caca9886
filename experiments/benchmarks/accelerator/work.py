"""What the parts of `accelerator` share: sizes, data, settings and programs."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.measuring.timing import seconds
from experiments.benchmarks.programs.local_steps import matrix_product, network
from experiments.benchmarks.programs.rounds import CLASSES, SHAPE, Trainer
from experiments.benchmarks.sweeps import GRID
from jaxfed.config import DEFAULTS, Config
from jaxfed.data import load_dataset
from jaxfed.engine.devices import make_mesh
from jaxfed.models import Precision, with_precision
from jaxfed.models.feedforward import FeedForward
from jaxfed.models.ops import convolution
from jaxfed.runs import config_flags
from jaxfed.runs.experiment import Experiment, client_steps, cohort_of, make_experiment
from jaxfed.types import Dataset, Model

# The partition of the released code takes half a minute.
DEALT = ('--partition=dirichlet', '--sampling=uniform')
FLAGS = Path(__file__).parents[2] / 'fedlmd' / 'cifar10_lda0.05.flags'
ROUNDS = 200  # of a run
PATIENCE = 10  # seconds for the measurements of a program
# --precision -> type of the operands and precision of a matrix product.
PRODUCTS: dict[Precision, tuple[Any, str]] = {
    'float32': (jnp.float32, 'float32'),
    'tf32': (jnp.float32, 'tensorfloat32'),
    'bfloat16': (jnp.bfloat16, 'default'),
}
Row = dict[str, Any]


class Sizes(NamedTuple):
    """The amount of work."""

    settings: Mapping[str, Any] = {}  # that replace those of `FLAGS`
    model: str = 'cnn'
    batch_size: int = 50
    lanes: int = 10  # of a step
    other_lanes: tuple[int, ...] = (1, 4, 32, 64)
    steps: int = 50  # of each lane in a measurement
    side: int = 8192  # of the matrix product
    repeats: int = 3  # most measurements of a program
    turns: int = 3  # of the host
    rounds: int = 3  # measured rounds
    run: int = ROUNDS  # rounds of a run
    twice: int = 3  # rounds of each of two runs that are compared
    grid: str = GRID
    seeds: tuple[int, ...] = (2, 4)  # of each point of the grid
    alpha: float = 0.1  # of the round beside a loop
    large: Mapping[str, Any] = {
        'batch_size': 1000, 'clients_per_round': 64, 'lanes': 64, 'local_epochs': 1,
    }  # settings of a program with a large memory  # fmt: skip
    chunks: tuple[int, ...] = (100, 500, 2000)  # images evaluated at once
    images: tuple[int, int] = (50_000, 10_000)  # for training and test


class Tiny(FeedForward):
    """The network of `TOY`: one small convolution, and 8 hidden units."""

    name, channels, units = 'tiny', (4,), (('hidden', 8),)


TOY = Sizes(
    settings={
        'model': 'tiny', 'lanes': 1, 'num_clients': 4, 'clients_per_round': 2, 'batch_size': 10,
        'local_epochs': 1, 'alpha': 1.0, 'min_size': 2, 'augment': 'none',
    },
    model='tiny',
    batch_size=4,
    lanes=1,
    other_lanes=(2,),
    steps=2,
    side=256,
    repeats=2,
    turns=2,
    rounds=1,
    run=2,
    grid='beta=1,3',
    seeds=(1, 2),
    alpha=1.0,
    large={'batch_size': 20},
    chunks=(10, 20),
    images=(100, 20),
)  # fmt: skip


class Clock:
    """The time that is left."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._end = now, now() + 60 * minutes

    def over(self) -> bool:
        """Whether no further case may start."""
        return self._now() >= self._end


class Work:
    """Sizes, data and shared programs of a command; programs are compiled when they are needed."""

    def __init__(self, sizes: Sizes, dataset: Dataset, folder: Path, clock: Clock) -> None:
        self.sizes, self.dataset, self.folder, self.clock = sizes, dataset, folder, clock
        self.mesh = make_mesh(1)
        self.product_seconds = functools.cache(self._product_seconds)

    def config(self, **changes: Any) -> Config:
        """The settings of FedLMD on one device, with changes."""
        base = config_flags.parse([f'--flagfile={FLAGS}', *DEALT, '--method=fedlmd'])
        settings: dict[str, Any] = {'dataset': DEFAULTS['dataset'], 'devices': '1'}
        settings |= {'rounds': ROUNDS, **self.sizes.settings, **changes}
        return dataclasses.replace(base, **settings)

    def experiment(self, **changes: Any) -> Experiment:
        """An experiment with these settings on the data."""
        return make_experiment(self.config(**changes), None, self.dataset)

    @functools.cached_property
    def fedlmd(self) -> Trainer:
        """The compiled rounds of FedLMD."""
        return Trainer([self.experiment()])

    def model(self, lowering: str = 'auto', precision: Precision = 'float32') -> Model:
        """The network of a step."""
        chosen = convolution(None if lowering == 'auto' else lowering)
        return with_precision(network(self.sizes.model, convolution=chosen), precision)

    def _product_seconds(self, precision: Precision) -> float:
        dtype, rounding = PRODUCTS[precision]
        run = matrix_product(self.sizes.side, dtype=dtype, precision=rounding)
        return self.median(run)

    def product_rate(self, precision: Precision) -> float:
        """FLOP/s of a large matrix product."""
        return 2 * self.sizes.side**3 / self.product_seconds(precision)

    def median(self, run: Callable[[], Any]) -> float:
        """Median of the seconds of a program after one run; a slow one is repeated less often."""
        repeats = min(self.sizes.repeats, int(PATIENCE / seconds(run)))
        return statistics.median(seconds(run) for _ in range(max(1, repeats)))


def load_images(npz: str | None, sizes: tuple[int, int]) -> Dataset:
    """CIFAR-10 from a file of arrays, or random images of its shape.

    Raises:
      ValueError: if the file cannot be read, or has other images.
    """
    if npz:
        dataset = load_dataset('npz', npz=npz)
        found = *dataset.x_train.shape[1:], dataset.num_classes
        if found != (*SHAPE, CLASSES):
            raise ValueError(
                f'--npz={npz} must be CIFAR-10, 32 x 32 x 3 pixels and 10 classes, got '
                f'{" x ".join(map(str, found[:-1]))} and {found[-1]}.'
            )
        return dataset._replace(name='cifar10')
    rng = np.random.default_rng(0)
    splits = [
        (rng.integers(0, 256, (n, *SHAPE), np.uint8), np.arange(n, dtype=np.int32) % CLASSES)
        for n in sizes
    ]
    return Dataset('random_images', *splits[0], *splits[1], CLASSES)


def next_round(trainer: Trainer) -> int:
    """The number of a trainer's next round."""
    return int(np.asarray(trainer.state.server.round)[0]) + 1


def steps_of_round(trainer: Trainer, number: int) -> int:
    """Local steps of all clients of a round."""
    return sum(int(client_steps(e, cohort_of(e, number)).sum()) for e in trainer.experiments)


def device_memory() -> dict[str, int]:
    """The memory statistics of the device; {} if it has none."""
    return jax.devices()[0].memory_stats() or {}
