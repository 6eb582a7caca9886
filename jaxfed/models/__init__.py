"""Networks: flax.nnx modules, which the rest of jaxfed uses as a pair of pure functions."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.internal.type_checks import check_value
from jaxfed.models import ops
from jaxfed.models.feedforward import CNN, MLP, LeNet
from jaxfed.models.mobilenet import MobileNet
from jaxfed.models.ops import Convolution
from jaxfed.models.precision import Precision, with_precision
from jaxfed.models.resnet import ResNet8, ResNet18, ResNet50
from jaxfed.models.vgg import VGG11
from jaxfed.types import Array, Model, Outputs, PyTree

__all__ = ['MODELS', 'Precision', 'as_model', 'make_model', 'options', 'with_precision']

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
    """Lists the options of a network, with their types and defaults.

    Args:
      name: a key of `MODELS`.

    Returns:
      Name -> inspect.Parameter.
    """
    # nnx replaces the signatures of its classes, but not those of their constructors.
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
    **settings: Any,
) -> Model:
    """Makes a network for images of a given shape.

    Args:
      name: a key of `MODELS`.
      input_shape: height, width and channels of an image.
      num_classes: number of classes C.
      convolution: the implementation of convolutions.
      **settings: options of the network, see `options`; None for the network's default.

    Returns:
      `init(key) -> params`, a nested dict of float32 arrays, and
      `apply(params, x [B, H, W, channels]) -> Outputs`, both pure; `Model` describes networks with
      batch statistics.

    Raises:
      ValueError: if the name is unknown, the network has no such option, a value is invalid, a size
        is below 1 or the images are too small for the network.
    """
    if name not in MODELS:
        raise ValueError(f'model={name!r} is unknown; choose one of {", ".join(sorted(MODELS))}.')
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(
            f'input_shape={input_shape} must be (height, width, channels), each 1 or more.'
        )
    if num_classes < 1:
        raise ValueError(f'num_classes={num_classes} must be 1 or more.')
    settings = {option: value for option, value in settings.items() if value is not None}
    for option, value in settings.items():
        if option not in options(name):
            others = ', '.join(other for other in MODELS if option in options(other))
            raise ValueError(
                f'--{option}={value} is no option of --model={name}'
                + (f': it belongs to {others}.' if others else '.')
            )
        check_value(f'--{option}', value, options(name)[option].annotation)

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return MODELS[name](
            tuple(input_shape), num_classes, convolution=convolution, rngs=rngs, **settings
        )

    return as_model(build)


def as_model(build: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Turns an nnx module into a pair of pure functions.

    Args:
      build: random streams -> module; `module(x) -> Outputs` evaluates it, and `module(x, mask)`
        trains one with batch statistics.

    Returns:
      The network.
    """
    # Shapes only: the functions below must not hold a set of parameters alive.
    shapes = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    split: Any = nnx.split(shapes, nnx.Param, nnx.BatchStat)
    graph, _, stat_shapes = split
    # The mean is 0 and the variance 1 before the first batch.
    initial_stats = jax.tree.map_with_path(
        lambda path, leaf: jnp.full(leaf.shape, float(path[-1].key == 'var'), leaf.dtype),
        nnx.to_pure_dict(stat_shapes),
    )

    def init(key: Array) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

    def apply(params: PyTree, x: Array, stats: PyTree = (), mask: Array | None = None) -> Outputs:
        if initial_stats and not stats:
            raise ValueError('the network has batch statistics; call apply(params, x, stats).')
        module: Any = nnx.merge(graph, params, jax.tree.map(jnp.asarray, stats or {}))
        if mask is None:
            return module(x)
        outputs = module(x, mask)
        return outputs._replace(stats=nnx.to_pure_dict(nnx.state(module, nnx.BatchStat)))

    return Model(init=init, apply=apply, stats=initial_stats or ())
