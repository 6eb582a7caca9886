"""FedRep: a classifier of its own for every client, trained before the common features."""

import jax

from jaxfed.methods._check import check
from jaxfed.methods._own import below, keep_own
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import PyTree


def fedrep(*, body_epochs: int = 1) -> Method:
    """Personal classifier, trained alone first; then the features alone.

    E - body_epochs epochs of the classifier with fixed features, then body_epochs epochs of the
    features with a fixed classifier; only the features are sent and averaged

    The authors' code weighs clients equally, as --aggregation=uniform does.

    Args:
      body_epochs: epochs of the features, the last ones of local training, >= 1 and below
        --local_epochs.

    Returns:
      The method.

    Raises:
      ValueError: if `body_epochs` is out of range, or the network's parameters hold no
        'classifier'.

    Reference:
      Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML
      2021, algorithm 1.
    """
    check(body_epochs >= 1, 'body_epochs', body_epochs, 'at least 1')
    head = below('classifier')

    def trainable(view: LocalView) -> PyTree:
        head_epochs = view.round.local_epochs - body_epochs
        if head_epochs < 1:
            raise ValueError(
                f'body_epochs={body_epochs} must be below '
                f'--local_epochs={view.round.local_epochs}, because the first epochs train the '
                'classifier; raise --local_epochs.'
            )
        of_head = view.epoch < head_epochs
        mask = head(view.params, ())
        return jax.tree.map(lambda is_head: of_head if is_head else ~of_head, mask)

    return keep_own(head)._replace(trainable=trainable)
