"""Networks: flax.nnx modules, handed to the rest of jaxfed as a pair of pure functions."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.internal.type_checks import check_value
from jaxfed.models import ops
from jaxfed.models.cnn import CNN
from jaxfed.models.lenet import LeNet
from jaxfed.models.mlp import MLP
from jaxfed.models.mobilenet import MobileNet
from jaxfed.models.ops import Convolution
from jaxfed.models.precision import Precision, with_precision
from jaxfed.models.resnet import ResNet8, ResNet18, ResNet50
from jaxfed.models.vgg import VGG11
from jaxfed.types import Array, Model, Outputs, PyTree

__all__ = [
    'CNN',
    'MLP',
    'MODELS',
    'VGG11',
    'LeNet',
    'MobileNet',
    'Precision',
    'ResNet8',
    'ResNet18',
    'ResNet50',
    'as_model',
    'make_model',
    'options',
    'with_precision',
]

DEFAULT_CONVOLUTION = ops.convolution()
MODELS: dict[str, Any] = {
    'cnn': CNN,
    'lenet': LeNet,
    'mlp': MLP,
    'mobilenet': MobileNet,
    'resnet8': ResNet8,
    'resnet18': ResNet18,
    'resnet50': ResNet50,
    'vgg11': VGG11,
}


def options(name: str) -> Mapping[str, inspect.Parameter]:
    """What may be chosen of a network besides its input and output, with types and defaults.

    Args:
      name: a key of `MODELS`.

    Returns:
      The parameters by name.
    """
    # Of the constructor, because nnx gives its classes a signature of their own.
    parameters = inspect.signature(MODELS[name].__init__).parameters
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def make_model(
    name: str,
    *,
    input_shape: tuple[int, int, int],
    num_classes: int,
    convolution: Convolution = DEFAULT_CONVOLUTION,
    **chosen: Any,
) -> Model:
    """Makes the network `name` for images of a shape.

    Args:
      name: a key of `MODELS`.
      input_shape: height, width and channels of an image.
      num_classes: number of classes C.
      convolution: the operations to compute convolutions with.
      **chosen: options of the network, see `options`; None for the network's default.

    Returns:
      `init(key) -> params`, a nested dict of float32 arrays, and
      `apply(params, x [B, H, W, channels]) -> Outputs`, pure; both as `Model` says where the
      network has batch statistics.

    Raises:
      ValueError: unknown name, an option that the network does not have or a value that does not
        do, images too small for the network, or a size below 1.
    """
    if name not in MODELS:
        raise ValueError(f'model={name!r} is unknown; choose one of {", ".join(sorted(MODELS))}.')
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(
            f'input_shape={input_shape} must be (height, width, channels), each 1 or more.'
        )
    if num_classes < 1:
        raise ValueError(f'num_classes={num_classes} must be 1 or more.')
    given = {option: value for option, value in chosen.items() if value is not None}
    for option, value in given.items():
        if option not in options(name):
            having = [other for other in MODELS if option in options(other)]
            raise ValueError(
                f'--{option}={value} is no option of --model={name}'
                + (f': it belongs to {", ".join(having)}.' if having else '.')
            )
        check_value(f'--{option}', value, options(name)[option].annotation)

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return MODELS[name](
            tuple(input_shape), num_classes, convolution=convolution, rngs=rngs, **given
        )

    return as_model(build)


def as_model(build: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Makes a pair of pure functions of an nnx module.

    Args:
      build: random streams -> module; `module(x) -> Outputs` evaluates, and one with batch
        statistics is trained by `module(x, mask)`.

    Returns:
      The network.
    """
    # Shapes only: the functions below must not hold a set of parameters alive.
    shapes = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    parts: Any = nnx.split(shapes, nnx.Param, nnx.BatchStat)
    graph, _, stats = parts

    # The mean is 0 and the variance 1 before the first batch.
    def at_start(path: Any, leaf: Any) -> Array:
        return jnp.full(leaf.shape, float(path[-1].key == 'var'), leaf.dtype)

    start = jax.tree_util.tree_map_with_path(at_start, nnx.to_pure_dict(stats))

    def init(key: Array) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

    def apply(params: PyTree, x: Array, stats: PyTree = (), mask: Array | None = None) -> Outputs:
        if start and not stats:
            raise ValueError('this network has batch statistics: apply(params, x, stats).')
        module: Any = nnx.merge(graph, params, jax.tree.map(jnp.asarray, stats or {}))
        if mask is None:
            return module(x)
        outputs = module(x, mask)
        return outputs._replace(stats=nnx.to_pure_dict(nnx.state(module, nnx.BatchStat)))

    return Model(init=init, apply=apply, stats=start or ())
