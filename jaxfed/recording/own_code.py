"""The files outside of jaxfed that define what a run uses."""

import functools
import hashlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxfed.config import Config
from jaxfed.methods import METHODS, Part
from jaxfed.metrics.measures import MEASURES
from jaxfed.metrics.selection import parse_measures
from jaxfed.models import MODELS
from jaxfed.partition import PARTITIONS


def is_own(function: Any) -> bool:
    """Whether a registered function or class is a user's, not jaxfed's."""
    module = getattr(_plain(function), '__module__', None) or 'jaxfed'
    return module.partition('.')[0] != 'jaxfed'


def _plain(function: Any) -> Any:
    """The function inside of partial functions and decorators."""
    return inspect.unwrap(functools.partial(function).func) if callable(function) else function


def own_code(config: Config, parts: Sequence[Part]) -> dict[str, str]:
    """Digests of the files that define methods, network, partition and measures of a user.

    Files that these import are not followed.

    Returns:
      Name of the file -> digest.
    """
    measures = [MEASURES[name] for name in parse_measures(config.measure)]
    functions: list[Any] = [METHODS.get(part.name) for part in parts]
    functions += [MODELS.get(config.model), PARTITIONS.get(config.partition)]
    functions += [f for m in measures for f in (m.of_round, m.of_global, m.of_locals)]
    found = {}
    for function in filter(is_own, functions):
        try:
            path = Path(inspect.getfile(_plain(function)))
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        except (TypeError, OSError):  # written in a notebook or in an interpreter
            continue
    return found
