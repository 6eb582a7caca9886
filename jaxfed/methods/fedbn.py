"""FedBN: every client keeps its batch normalisation."""

import jax

from jaxfed.methods._own import keep_own
from jaxfed.methods.method import Method
from jaxfed.types import PyTree


def fedbn() -> Method:
    """Personal batch normalisation, everything else is averaged.

    w = (body, norm_i); only the body is sent and averaged

    norm_i are scale, bias, running mean and variance of every normalisation. The simulator also
    averages running means and variances for the server, which the costs do not count. The server's
    normalisation keeps its initial parameters, so the global accuracy says little; --personal_test
    measures the clients' models. The authors' code weighs clients equally, as
    --aggregation=uniform does.

    Returns:
      The method.

    Raises:
      ValueError: if the network has no batch normalisation.

    Reference:
      Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR
      2021, algorithm 1.
    """

    def normalisation(params: PyTree, stats: PyTree) -> PyTree:
        places = {path[:-1] for path, _ in jax.tree_util.tree_leaves_with_path(stats)}
        if not places:
            raise ValueError(
                'fedbn needs a network with batch normalisation; choose one, as --model=resnet8.'
            )
        return jax.tree_util.tree_map_with_path(lambda path, _: path[:-1] in places, params)

    return keep_own(normalisation, stats=True)
