"""jaxfed's methods in Flower: training on real devices, with the extra `flower`.

`client_app` and `server_app` make the two apps of a Flower project, which `python -m jaxfed.flower
init DIR` writes. A round is that of `jaxfed.simulate`: the server shares and merges; a client
trains with the same compiled program and keeps its state; what leaves it is its update, its upload,
changes of batch statistics, the sum of its losses and its numbers of examples by class.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxfed.flower.client import client_app
    from jaxfed.flower.server import server_app

__all__ = ['client_app', 'server_app']


def __getattr__(name: str) -> Any:
    """Imports an app's module when it is used, so that the command can report a missing Flower."""
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{name.removesuffix("_app")}'), name)
