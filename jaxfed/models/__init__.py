"""Networks: flax.nnx modules, handed to the rest of jaxfed as a pair of pure functions."""

from typing import Any

from flax import nnx

from jaxfed import ops
from jaxfed.models.cnn import CNN
from jaxfed.models.lenet import LeNet
from jaxfed.models.mlp import MLP
from jaxfed.models.precision import Precision, with_precision
from jaxfed.ops import Convolution
from jaxfed.types import Array, Model, Outputs, PyTree

__all__ = ['CNN', 'MLP', 'MODELS', 'LeNet', 'Precision', 'make_model', 'with_precision']

DEFAULT_CONVOLUTION = ops.convolution()
MODELS: dict[str, Any] = {'cnn': CNN, 'lenet': LeNet, 'mlp': MLP}


def make_model(
    name: str,
    *,
    input_shape: tuple[int, int, int],
    num_classes: int,
    convolution: Convolution = DEFAULT_CONVOLUTION,
) -> Model:
    """Makes the network `name` for images of a shape.

    Args:
      name: a key of `MODELS`.
      input_shape: height, width and channels of an image.
      num_classes: number of classes C.
      convolution: the operations to compute convolutions with.

    Returns:
      `init(key) -> params`, a nested dict of float32 arrays, and
      `apply(params, x [B, H, W, channels]) -> Outputs`, pure.

    Raises:
      ValueError: unknown name, images too small for the network, or a size below 1.
    """
    if name not in MODELS:
        raise ValueError(f'model={name!r} is unknown; choose one of {", ".join(sorted(MODELS))}.')
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(
            f'input_shape={input_shape} must be (height, width, channels), each 1 or more.'
        )
    if num_classes < 1:
        raise ValueError(f'num_classes={num_classes} must be 1 or more.')

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return MODELS[name](tuple(input_shape), num_classes, convolution=convolution, rngs=rngs)

    # Shapes only: the functions below must not hold a set of parameters alive.
    graph, _ = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(0))))

    def init(key: Array) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

    def apply(params: PyTree, x: Array) -> Outputs:
        return nnx.merge(graph, params)(x)

    return Model(init=init, apply=apply)
