"""jaxfed: federated learning on label-skewed data, all clients of a round in one JAX program."""

from jaxfed import losses, methods, partition
from jaxfed.config import Config
from jaxfed.engine.devices import use_every_core
from jaxfed.internal.versions import VERSION
from jaxfed.methods import Method, chain
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.load import Loaded, load
from jaxfed.runs.simulate import Diverged, Result, simulate
from jaxfed.sweeps.runner import simulate_all
from jaxfed.types import Dataset

__version__ = VERSION

__all__ = [
    'Config',
    'Dataset',
    'Diverged',
    'Loaded',
    'Method',
    'Result',
    'TooLarge',
    'chain',
    'load',
    'losses',
    'methods',
    'partition',
    'simulate',
    'simulate_all',
    'use_every_core',
]
