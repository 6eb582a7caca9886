"""The files outside of jaxfed that define what a run uses."""

import functools
import hashlib
import inspect
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxfed.config import SETTINGS, Config
from jaxfed.internal.messages import LIBRARIES
from jaxfed.methods import METHODS, Part
from jaxfed.metrics.measures import MEASURES
from jaxfed.metrics.selection import parse_measures


def is_own(function: Any) -> bool:
    """Whether a registered function or class is a user's, not one of a library."""
    module = getattr(_plain(function), '__module__', None) or 'jaxfed'
    return module.partition('.')[0] not in LIBRARIES


def _plain(function: Any) -> Any:
    """The function inside of partial functions and decorators."""
    return inspect.unwrap(functools.partial(function).func) if callable(function) else function


def own_code(config: Config, parts: Sequence[Part]) -> dict[str, str]:
    """Digests of the files that define a user's methods, measures and choices of settings.

    These choices are network, partition, sampling and optimizer. Files that these import are not
    followed.

    Returns:
      Name of the file -> digest.
    """
    measures = [MEASURES[name] for name in parse_measures(config.measure)]
    functions: list[Any] = [METHODS.get(part.name) for part in parts]
    for name, setting in SETTINGS.items():
        if setting.registry:
            chosen = pkgutil.resolve_name(setting.registry).get(getattr(config, name))
            functions += [chosen, *getattr(chosen, 'args', ())]  # an optimizer of `of_gradient`
    functions += [f for m in measures for f in (m.of_round, m.of_global, m.of_locals)]
    files: dict[str, set[bytes]] = {}  # several folders may have a file of one name
    for function in filter(is_own, functions):
        try:
            path = Path(inspect.getfile(_plain(function)))
            files.setdefault(path.name, set()).add(path.read_bytes())
        except (TypeError, OSError):  # written in a notebook or in an interpreter
            continue
    return {
        name: hashlib.sha256(b''.join(sorted(texts))).hexdigest()[:12]
        for name, texts in files.items()
    }
