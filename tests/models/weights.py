"""Weights of a network for tests, drawn by NumPy, which has nothing to compile."""

import jax
import numpy as np


def draw(model, *leading, scale=0.1):
    """Parameters [*leading, ...] and statistics away from their initial values."""
    rng = np.random.default_rng(7)

    def normal(leaf):
        return (scale * rng.standard_normal((*leading, *leaf.shape))).astype(np.float32)

    params = jax.tree.map(normal, jax.eval_shape(model.init, jax.random.key(0)))
    stats = jax.tree.map(lambda a: rng.uniform(0.5, 1.5, a.shape).astype(np.float32), model.stats)
    return params, stats
