"""Malicious clients of a run: --malicious, --attack and --attack_scale."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.config import DEFAULTS, Config
from jaxfed.methods import Method, chain
from jaxfed.methods.attacks import ATTACKS
from jaxfed.methods.method import ClientView
from jaxfed.types import PyTree

Send = Callable[[ClientView], PyTree]  # as `Method.send`
Own = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]  # as `Method.own`


def malicious_clients(config: Config) -> int:
    """The number of malicious clients, those with the lowest ids."""
    return round(config.malicious * config.num_clients)


def check_attack(config: Config) -> None:
    """Raises a ValueError in one line if --malicious is less than one client, or missing."""
    if config.attack != DEFAULTS['attack'] and not config.malicious:
        raise ValueError(
            f'--attack={config.attack} needs malicious clients; set --malicious=0.2, or remove '
            '--attack.'
        )
    scaled = config.malicious > 0 and config.attack in ATTACKS
    if config.attack_scale != DEFAULTS['attack_scale'] and not scaled:
        raise ValueError(
            f'--attack_scale={config.attack_scale} is for malicious clients that send other '
            'updates; set --malicious=0.2 and such an --attack, or remove the flag.'
        )
    if config.malicious and not malicious_clients(config):
        raise ValueError(
            f'--malicious={config.malicious} of --num_clients={config.num_clients} is no client; '
            'raise it.'
        )


def with_attack(config: Config, method: Method) -> Method:
    """The method with clients that send something else than their update."""
    clients = malicious_clients(config)
    if not clients or config.attack not in ATTACKS:
        return method
    if method.uploads:
        raise ValueError(
            f'--malicious={config.malicious}: --attack={config.attack} changes updates only, but '
            f'--method={config.method} uploads more; choose --attack=label_flip or another method.'
        )
    attack = ATTACKS[config.attack](clients=clients, scale=config.attack_scale)
    if method.own is not None:
        attack = attack._replace(send=_of_sent_arrays(attack.send, method.own))
    return chain(attack, method)


def _of_sent_arrays(send: Send, own: Own) -> Send:
    """A `send` that reads and changes only the arrays that clients do not keep."""

    def send_others(client: ClientView) -> PyTree:
        kept, _ = own(client.params, client.stats)
        arrays, form = jax.tree.flatten(client.update)
        keeps = jax.tree.leaves(kept)
        others = [array for array, keep in zip(arrays, keeps, strict=True) if not keep]
        sent = iter(send(client._replace(update=others)))
        pairs = zip(arrays, keeps, strict=True)
        leaves = [jnp.zeros_like(array) if keep else next(sent) for array, keep in pairs]
        return jax.tree.unflatten(form, leaves)

    return send_others


def flip_labels(
    config: Config, labels: np.ndarray, partition: list[np.ndarray], num_classes: int
) -> np.ndarray:
    """Labels C - 1 - y for the malicious clients of --attack=label_flip."""
    clients = malicious_clients(config)
    if not clients or config.attack != 'label_flip':
        return labels
    flipped, places = labels.copy(), np.concatenate(partition[:clients])
    flipped[places] = num_classes - 1 - flipped[places]
    return flipped
