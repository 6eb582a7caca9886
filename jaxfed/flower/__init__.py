"""jaxfed's methods in Flower: training on real devices, with the extra `flower`.

`client_app` and `server_app` make the two apps of a Flower project, which `python -m jaxfed.flower
init DIR` writes. A round is that of `jaxfed.simulate`: the server shares and merges; a client
trains with the same compiled program and keeps its state; its update and its upload leave it.
"""

from jaxfed.flower.client import client_app
from jaxfed.flower.server import server_app

__all__ = ['client_app', 'server_app']
