"""The check of a user's network before training."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxfed.internal.messages import located
from jaxfed.types import Model, PyTree, example_inputs


def check_network(
    name: str, model: Model, *, input_shape: tuple[int, ...], num_classes: int, vocabulary: int = 0
) -> None:
    """Checks what a network takes and returns, without computing it.

    Args:
      name: the key of `MODELS`, for messages.
      model: the network.
      input_shape: height, width and channels of an image.
      num_classes: C.
      vocabulary: number of token ids, 0 for other inputs.

    Raises:
      ValueError: if the network fails on such images, has no parameters, or returns outputs of
        other shapes than logits [B, C] and features [B, F], or logits that are not floats.
    """
    batch = 2
    x = example_inputs(batch, input_shape, vocabulary)
    mask = jax.ShapeDtypeStruct((batch,), jnp.bool_)

    def run(model_key: Any, x: Any, mask: Any) -> tuple[PyTree, Any, Any]:
        params = model.init(model_key)
        evaluated = model.evaluate(params, x, model.stats)
        return params, evaluated, model.train(params, x, model.stats, mask, model_key)

    try:
        params, *results = jax.eval_shape(run, jax.random.key(0), x, mask)
    except Exception as error:  # of any kind, from the user's module
        raise located(f'--model={name} fails on images {x.shape}', error) from error
    if not jax.tree.leaves(params):
        raise ValueError(f'--model={name} has no parameters, such as nnx.Param.')
    for logits, features, _ in results:
        if logits.shape != (batch, num_classes) or not jnp.issubdtype(logits.dtype, jnp.floating):
            raise ValueError(
                f'--model={name} must return float logits of shape {(batch, num_classes)} for '
                f'{batch} images of {num_classes} classes, got {logits.dtype} {logits.shape}.'
            )
        if features.ndim != 2 or len(features) != batch:
            raise ValueError(
                f'--model={name} must return features of shape ({batch}, F) for {batch} images, '
                f'got {features.shape}.'
            )
