"""FedDecorr: features that do not correlate, so that representations do not collapse."""

from typing import Literal

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array

Form = Literal['released', 'paper']


def feddecorr(*, beta: float = 0.1, form: Form = 'released') -> Method:
    """Penalty on the correlations K of the F features over the n examples of a batch.

    CE + beta ((n - 1)^2 / n) 1 / (F (F - 1)) sum_{i != j} K_ij^2;
    paper: CE + beta / F^2 ||K||_F^2

    The released code does not divide the products of the features by n - 1, so that its term is
    about n times that of the paper. The constant diagonal of K is left out of both.

    Args:
      beta: weight of the term, >= 0.
      form: 'released' for the term of the authors' code, with which 0.1 was chosen, or 'paper'.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
      Federated Learning, ICLR 2023, section 5.
    """
    check(beta >= 0, 'beta', beta, 'at least 0')
    check(form in ('released', 'paper'), 'form', form, 'released or paper')

    def penalty(view: LocalView) -> Array:
        features, mask = view.outputs.features, view.batch.mask
        number, width = jnp.maximum(jnp.sum(mask), 1), features.shape[-1]
        scale = (number - 1) ** 2 / number if form == 'released' else (width - 1) / width
        return beta * scale * losses.decorrelation(features, where=mask)

    return Method(penalty=penalty)
