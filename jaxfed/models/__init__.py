"""Networks: flax modules, which the rest of jaxfed uses as a pair of pure functions."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from flax import linen, nnx

from jaxfed.internal.messages import located
from jaxfed.internal.type_checks import check_value
from jaxfed.models import ops
from jaxfed.models.check import check_network
from jaxfed.models.cnn_dropout import CNNDropout
from jaxfed.models.feedforward import CNN, MLP, LeNet
from jaxfed.models.functional import as_model, linen_model, pair_model
from jaxfed.models.mobilenet import MobileNet
from jaxfed.models.ops import Convolution
from jaxfed.models.precision import Precision, with_precision
from jaxfed.models.resnet import ResNet8, ResNet18, ResNet50
from jaxfed.models.signal import CNN1D
from jaxfed.models.text import Text
from jaxfed.models.vgg import VGG11
from jaxfed.types import Model, example_inputs

__all__ = [
    'BUILT_IN',
    'MODELS',
    'Precision',
    'as_model',
    'check_network',
    'make_model',
    'options',
    'with_precision',
]

DEFAULT_CONVOLUTION = ops.convolution()
# name -> class or function that makes a module of flax.nnx or flax.linen, two functions (init,
# apply), or a `Model`. It receives the arguments of `PASSED` that it declares, by name; its
# parameters with a default are options.
MODELS: dict[str, Any] = {
    'cnn': CNN,
    'cnn1d': CNN1D,
    'cnn_dropout': CNNDropout,
    'lenet': LeNet,
    'mlp': MLP,
    'mobilenet': MobileNet,
    'resnet8': ResNet8,
    'resnet18': ResNet18,
    'resnet50': ResNet50,
    'text': Text,
    'vgg11': VGG11,
}
BUILT_IN = frozenset(MODELS.values())
PASSED = ('input_shape', 'num_classes', 'convolution', 'vocabulary', 'rngs')


def options(name: str) -> Mapping[str, inspect.Parameter]:
    """Lists the options of a network, with their types and defaults.

    Args:
      name: a key of `MODELS`.

    Returns:
      Name -> inspect.Parameter.
    """
    return {
        key: parameter
        for key, parameter in _parameters(name).items()
        if parameter.default is not parameter.empty and key not in (*PASSED, 'parent', 'name')
    }


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """Lists the parameters of the function, constructor or partial of either in the registry."""
    network: Any = functools.partial(MODELS[name])  # flattens a partial
    if inspect.isclass(network.func):
        # nnx replaces the signatures of its classes, but not those of their constructors.
        function = network.func.__init__
        network = functools.partial(function, None, *network.args, **network.keywords)
    return inspect.signature(network).parameters


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)


def _declared(name: str) -> set[str]:
    """Returns which values of `PASSED` a network takes; raises if it requires other ones."""
    parameters = _parameters(name)
    others = parameters.keys() - {*PASSED, *options(name)}
    for key in sorted(others):
        parameter = parameters[key]
        if parameter.default is parameter.empty and not _is_variadic(parameter):
            raise ValueError(
                f'--model={name} requires {key!r}, but jaxfed passes only {", ".join(PASSED)}, as '
                f'far as the network declares them. Give {key!r} a default.'
            )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return set(PASSED)
    return {key for key in PASSED if key in parameters}


def _checked_options(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the chosen options of a network; raises a ValueError for others."""
    checked = {option: value for option, value in settings.items() if value is not None}
    for option, value in checked.items():
        if option not in options(name):
            others = ', '.join(other for other in MODELS if option in options(other))
            raise ValueError(
                f'--{option}={value} is not an option of --model={name}'
                + (f': it belongs to {others}.' if others else '.')
            )
        kind = options(name)[option].annotation
        if kind in (int, 'int', int | None) and isinstance(value, float) and value.is_integer():
            checked[option] = value = int(value)  # --width of a network may count
        check_value(f'--{option}', value, kind)
    return checked


def make_model(
    name: str,
    *,
    input_shape: tuple[int, int, int],
    num_classes: int,
    vocabulary: int = 0,
    convolution: Convolution = DEFAULT_CONVOLUTION,
    **settings: Any,
) -> Model:
    """Makes a network for examples of a given shape.

    Args:
      name: a key of `MODELS`.
      input_shape: height, width and channels of an image; (1, 1, features) of a vector, (1, length,
        channels) of a signal, (1, length, 1) of token ids.
      num_classes: number of classes C.
      vocabulary: number of token ids, 0 for other inputs.
      convolution: the implementation of convolutions.
      **settings: options of the network, see `options`; None for the network's default.

    Returns:
      `init(key) -> params`, a nested dict of float32 arrays, and
      `apply(params, x [B, H, W, channels]) -> Outputs`, both pure; `Model` describes networks with
      batch statistics or dropout.

    Raises:
      ValueError: if the name is unknown, the network has no such option or does not take such
        inputs, a value is invalid, a size is below 1, the images are too small for the network, its
        constructor fails or needs another argument, or a registered object makes no network.
    """
    if name not in MODELS:
        raise ValueError(
            f'model={name!r} is unknown; choose one of {", ".join(sorted(MODELS))}, or assign your '
            f'network to jaxfed.models.MODELS[{name!r}] first, as in a file of --include.'
        )
    if not callable(MODELS[name]) or isinstance(MODELS[name], nnx.Module | linen.Module):
        raise ValueError(
            f'MODELS[{name!r}] must be a class or a function that makes a network, got an instance '
            f'of {type(MODELS[name]).__name__}; assign its class, or a function without parameters.'
        )
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(
            f'input_shape must be (height, width, channels), each 1 or more, got {input_shape}.'
        )
    if num_classes < 1:
        raise ValueError(f'num_classes must be 1 or more, got {num_classes}.')
    settings = _checked_options(name, settings)
    declared = _declared(name)
    if vocabulary and 'vocabulary' not in declared and MODELS[name] in BUILT_IN:
        raise ValueError(
            f'--model={name} requires numbers, but the inputs are token ids (integers that are not '
            "uint8); use --model=text, or .astype('float32') for rows of numbers."
        )
    values = (tuple(input_shape), num_classes, convolution, vocabulary)
    passed = {key: value for key, value in zip(PASSED, values, strict=False) if key in declared}
    make = functools.partial(MODELS[name], **passed, **settings)
    try:
        if 'rngs' in declared:
            return as_model(lambda rngs: make(rngs=rngs))
        module = make()
        if isinstance(module, linen.Module):
            return linen_model(module, example_inputs(1, input_shape, vocabulary))
        if isinstance(module, Model):
            return module
        if isinstance(module, tuple) and len(module) == 2 and all(map(callable, module)):
            return pair_model(*module)
    except Exception as error:  # of any kind, from the user's network
        if MODELS[name] in BUILT_IN:
            raise
        # The remedy of a list of layers is not in the first line of flax's message.
        end = ': nnx.List or nnx.Dict.' if 'nnx.List(' in str(error) else '.'
        raise located(f'--model={name} fails when it is made', error, end) from error
    raise ValueError(
        f'--model={name} must declare rngs, the random streams of its initialisation, or make a '
        f'flax.linen module or two functions (init, apply), got {type(module).__name__}.'
    )
