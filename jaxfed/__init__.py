"""jaxfed: federated learning on label-skewed data, all clients of a round in one JAX program."""

from jaxfed.config import Config
from jaxfed.devices import use_every_core
from jaxfed.loading import Loaded, load
from jaxfed.method import Method, chain
from jaxfed.simulation import Diverged, Result, TooLarge, simulate
from jaxfed.together import simulate_all

__all__ = [
    'Config',
    'Diverged',
    'Loaded',
    'Method',
    'Result',
    'TooLarge',
    'chain',
    'load',
    'simulate',
    'simulate_all',
    'use_every_core',
]
