"""Label smoothing, FedAvg+LS."""

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import Method


def label_smoothing(*, smoothing: float = 0.1) -> Method:
    """Cross-entropy against smoothed labels.

    -sum_c ((1 - smoothing) 1[c = y] + smoothing / C) log p_c

    Args:
      smoothing: share of the uniform distribution, in [0, 1].

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016, section
      7. FedAvg+LS in Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023,
      table 2.
    """
    check((smoothing >= 0) & (smoothing <= 1), 'smoothing', smoothing, 'in 0..1')
    return Method(
        supervised=lambda view: losses.smoothed_cross_entropy(
            view.outputs.logits, view.batch.y, smoothing=smoothing
        )
    )
