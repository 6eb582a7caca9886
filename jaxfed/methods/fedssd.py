"""FedSSD: distillation weighted by the credibility of the global model."""

from typing import Literal

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import LocalView, Method, ServerView
from jaxfed.types import Array


def fedssd(
    *,
    max_weight: float = 0.01,
    form: Literal['linear', 'squared'] = 'linear',
    auxiliary: int = 64,
) -> Method:
    """Selective self-distillation, with a weight for each example and class.

    CE + M_max ||m (zg - z)||^2, m[k] = max(0, M_class[k] M_sample - 0.1),
    M_class[k] = A[k, k] (1 - max_{j != k} A[j, k]), M_sample = 1 - sqrt(1 - pg_y)

    A is the global model's confusion matrix on the server's auxiliary data, each row divided by its
    sum, recomputed every round. Eq. 3 as written squares M_max, too; the weights are then so small
    that FedSSD is FedAvg. That M_max is linear is inferred from theorem 1 and table III; lemma 1
    has M_max^2.

    Args:
      max_weight: M_max, >= 0; the paper uses .01 for CIFAR-10 and .001 for CIFAR-100 and
        Tiny-ImageNet.
      form: 'linear', or 'squared' for M_max^2 ||m (zg - z)||^2.
      auxiliary: default number of examples of each class on the server, >= 1; the largest counts in
        a combination.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      He et al., Learning Critically: Selective Self Distillation in Federated Learning on Non-IID
      Data, IEEE Transactions on Big Data 2022, eq. 2-4.
    """
    check(max_weight >= 0, 'max_weight', max_weight, 'at least 0')
    check(form in ('linear', 'squared'), 'form', form, "'linear' or 'squared'")
    check(auxiliary >= 1, 'auxiliary', auxiliary, 'at least 1')

    def share(server: ServerView) -> Array:
        assert server.auxiliary is not None  # because `auxiliary` is above 0
        return losses.credibility_matrix(server.predict(server.auxiliary.x), server.auxiliary.y)

    def penalty(view: LocalView) -> Array:
        teacher = view.teacher.logits
        scale = max_weight if form == 'squared' else jnp.sqrt(max_weight)  # the norm squares it
        weights = losses.credibility_weights(teacher, view.batch.y, view.shared, max_weight=scale)
        return view.mean(losses.masked_mse_distillation(view.outputs.logits, teacher, weights))

    return Method(share=share, penalty=penalty, auxiliary=auxiliary, reads_server=True)
