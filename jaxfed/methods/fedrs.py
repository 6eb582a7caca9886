"""FedRS: a softmax with scaled logits for the classes missing at a client."""

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import LocalView, Method
from jaxfed.models.heads import without_bias
from jaxfed.types import Array, ClientInfo


def fedrs(*, alpha: float = 0.5, continuous: bool = False) -> Method:
    """Restricted softmax, in training only.

    CE of s z; s_c = 1 if the client has class c, else alpha;
    continuous: s_c = alpha + (1 - alpha) n_c / max_k n_k

    The classifier has no bias.

    Args:
      alpha: scale of the logits of missing classes, in [0, 1]; 1 is FedAvg without that bias.
      continuous: scale by the share of examples, as the released code of FedRS does.

    Returns:
      The method.

    Raises:
      ValueError: if alpha is out of range, or the network's parameters hold no 'classifier'.

    Reference:
      Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID
      Data, KDD 2021, eq. 5.
    """
    check((alpha >= 0) & (alpha <= 1), 'alpha', alpha, 'in 0..1')

    def prepare(info: ClientInfo) -> Array:
        counts = info.label_counts.astype(jnp.float32)
        most = jnp.maximum(jnp.max(counts), 1)
        share = counts / most if continuous else (counts > 0).astype(jnp.float32)
        return alpha + (1 - alpha) * share

    def supervised(view: LocalView) -> Array:
        return losses.cross_entropy(view.outputs.logits * view.static, view.batch.y)

    return Method(prepare=prepare, supervised=supervised, adapt=without_bias)
