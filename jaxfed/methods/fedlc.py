"""FedLC: logits with a margin that falls with a client's number of examples of the class."""

from jaxfed.methods._calibrated import calibrated
from jaxfed.methods._check import check
from jaxfed.methods.method import Method


def fedlc(*, tau: float = 1.0) -> Method:
    """Logits calibration, in training only.

    CE of z_c - tau n_c^(-1/4), over the classes that the client has

    The paper's sum leaves out the true class, so that the loss has no lower bound. It is included
    here, as in the code of FedDecorr and of FL-bench.

    Args:
      tau: weight of the margins, >= 0; 1 in FL-bench, 0.1 in the code of FedDecorr.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML
      2022.
    """
    check(tau >= 0, 'tau', tau, 'at least 0')
    return calibrated(lambda counts: tau * counts**-0.25)
