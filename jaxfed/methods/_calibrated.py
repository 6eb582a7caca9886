"""What FedLC and logit adjustment share: margins of the classes from a client's counts."""

from collections.abc import Callable

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array, ClientInfo


def calibrated(margins: Callable[[Array], Array]) -> Method:
    """The calibrated cross-entropy, over the classes that the client has, in training only.

    Args:
      margins: function of the client's counts [C] to the margins [C]; it gets at least 1.
    """

    def prepare(info: ClientInfo) -> Array:
        counts = info.label_counts.astype(jnp.float32)
        return jnp.where(counts > 0, margins(jnp.maximum(counts, 1)), jnp.inf)

    def supervised(view: LocalView) -> Array:
        return losses.calibrated_cross_entropy(view.outputs.logits, view.batch.y, view.static)

    return Method(prepare=prepare, supervised=supervised)
