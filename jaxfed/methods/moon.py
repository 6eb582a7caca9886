"""MOON: contrasts representations with those of the global and the last local model."""

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods._weights import keep_if_finite
from jaxfed.methods.method import ClientView, LocalView, Method
from jaxfed.models.heads import with_projection
from jaxfed.types import Array, PyTree


def moon(*, mu: float = 1.0, tau: float = 0.5, projection: bool = False) -> Method:
    """Model-contrastive learning.

    CE + mu mean -log(exp(cos(f, f_g) / tau) / (exp(cos(f, f_g) / tau) + exp(cos(f, f_p) / tau)))

    f, f_g and f_p are the representations under the local model, the global one and the client's
    previous local one, at first the initial one, as in the code of FedNTD. A local model that is
    not finite is not kept.

    Args:
      mu: weight of the term, >= 0; FedSSD's tables use 5 on CIFAR-10 and 1 elsewhere, with the
        projection; FedNTD's code uses 0.1 without it.
      tau: temperature, > 0.
      projection: insert a projection of two layers, 256 wide, before the classifier; f is its
        output, else the input of the network's last layer.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range, or, with `projection`, the network's
        parameters hold no 'classifier' or have the names of the projection.

    Reference:
      Li et al., Model-Contrastive Federated Learning, CVPR 2021, eq. 3.
    """
    check(mu >= 0, 'mu', mu, 'at least 0')
    check_temperature(tau)

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        return (), (params, stats)

    def penalty(view: LocalView) -> Array:
        params, stats = view.state
        previous = view.evaluate(params, view.batch.x, stats)
        contrast = losses.model_contrastive(
            view.outputs.features, view.teacher.features, previous.features, temperature=tau
        )
        return mu * view.mean(contrast)

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        model = client.params, client.stats
        return keep_if_finite(model, client.state, model), ()

    adapt = with_projection if projection else Method().adapt
    return Method(init=init, penalty=penalty, finish=finish, adapt=adapt)
