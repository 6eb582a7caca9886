"""The outputs of a network with fixed parameters, such as a teacher's."""

import jax

from jaxfed.types import Array, Model, Outputs, PyTree


def evaluate_fixed(model: Model, params: PyTree, x: Array, stats: PyTree) -> Outputs:
    """Logits and features of x [B, H, W, channels], without gradient.

    Clients that share the parameters are one batch, which must be the first axis of logits and
    features, and an example's outputs must not depend on the others. Mapped layer by layer, the
    results would be split and merged between the layers, for which a TPU copies them.
    """

    def evaluate(params: PyTree, x: Array, stats: PyTree) -> Outputs:
        return model.evaluate(params, x, stats)._replace(stats=())

    as_one = jax.custom_batching.custom_vmap(evaluate)

    @as_one.def_vmap
    def rule(
        size: int, mapped: list[PyTree], params: PyTree, x: Array, stats: PyTree
    ) -> tuple[Outputs, Outputs]:
        if mapped[1] and not any(jax.tree.leaves((mapped[0], mapped[2]))):
            outputs = as_one(params, x.reshape(-1, *x.shape[2:]), stats)
            outputs = jax.tree.map(lambda y: y.reshape(size, -1, *y.shape[1:]), outputs)
        else:
            axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, tuple(mapped))
            outputs = jax.vmap(evaluate, axes)(params, x, stats)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return as_one(*jax.lax.stop_gradient((params, x, stats)))
