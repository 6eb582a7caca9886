"""Checks of a setting's value against its annotation."""

import functools
import inspect
import reprlib
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from jaxfed.internal.messages import printable, suggestion

_WORDS = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'a string',
    type(None): 'None',
}
_LARGEST_INT = 2**31 - 1  # of the programs
_LARGEST_ON_HOST = 2**63 - 1
_ON_HOST = 'seed', '_every'  # the ends of names
_LARGEST_FLOAT = 3.4e38  # of float32, the precision of all settings in the program


def checked_parameters(
    function: Callable[..., Any], place: str, without: tuple[str, ...] = ()
) -> Mapping[str, inspect.Parameter]:
    """The parameters of a registered function, whose types flags can have.

    Args:
      function: any callable.
      place: for the message, as "METHODS['mine']".
      without: names of parameters that are neither checked nor returned.

    Raises:
      ValueError: if it is no function, or the type of a parameter is missing, unknown or another.
    """
    if not callable(function):
        raise ValueError(
            f'{place} must be a function, got a {type(function).__name__}; assign a function to it.'
        )
    # Each command line asks for those of all functions, and a suite has hundreds.
    check = _check_once if isinstance(function, Hashable) else _check_parameters
    return check(function, place, without)


def _check_parameters(
    function: Callable[..., Any], place: str, without: tuple[str, ...]
) -> Mapping[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters
        found = {
            name: parameter.replace(annotation=_type_of(parameter.annotation, function))
            for name, parameter in parameters.items()
            if name not in without
        }
    except Exception as error:  # of any kind, from a type that is written as a text
        raise ValueError(f'{place}: the types of its parameters are unknown: {error}.') from error
    for name, parameter in found.items():
        kind = parameter.annotation
        plain, choices = {*_options(kind)} - {type(None)}, choices_of(kind)
        texts = bool(choices) and all(isinstance(choice, str) for choice in choices)
        if not texts and not (len(plain) == 1 and plain <= _WORDS.keys()):
            raise ValueError(
                f'{place}: its parameter {name} must have the type bool, int, float, str, a '
                f'Literal of texts, or one of them or None, as in {name}: float = 1.0.'
            )
    return types.MappingProxyType(found)


_check_once = functools.cache(_check_parameters)


def _type_of(annotation: Any, function: Callable[..., Any]) -> Any:
    """The type of a parameter, which may be written as a text in the module of the function."""
    if not isinstance(annotation, str):
        return annotation
    module = getattr(inspect.unwrap(functools.partial(function).func), '__globals__', {})
    # As `inspect.signature(eval_str=True)`, but of this parameter only. The text is part of the
    # function's own module, which runs anyway, and never comes from a flag or a file.
    return eval(annotation, module)


def _options(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def choices_of(kind: Any) -> tuple[str, ...]:
    """The choices of a Literal or of an optional one, () for other types."""
    literals = (k for k in (kind, *get_args(kind)) if get_origin(k) is Literal)
    return get_args(next(literals, None))


def check_value(name: str, value: Any, kind: Any) -> None:
    """Raises a ValueError unless a value has its annotated type and float32 or int32 can hold it.

    `kind` is bool, int, float, str, a Literal, or a union of the first four and None; values of
    other annotations are not checked. An int is also a float, but a bool is not an int. A string
    must have no NUL character and no line break. Seeds and intervals of rounds may
    have 64 bits.
    """
    kinds = _options(kind)
    if choices := choices_of(kind):
        optional = value is None and type(None) in kinds
        if not optional and value not in choices:
            text = printable(str(value))
            end = suggestion(text, choices, f'{name}=')
            raise ValueError(f'{name} must be one of {", ".join(choices)}, got {text}{end}')
        return
    if not all(k in _WORDS for k in kinds):
        return
    accepted = (*kinds, int) if float in kinds else kinds
    if not (bool in kinds if isinstance(value, bool) else isinstance(value, accepted)):
        words, shown = ' or '.join(_WORDS[k] for k in kinds), printable(reprlib.repr(value))
        end = ': pass a plain Python value, not an array.' if hasattr(value, 'dtype') else '.'
        raise ValueError(f'{name} must be {words}, got {shown}{end}')
    if isinstance(value, str) and '\0' in value:
        raise ValueError(f'{name} must have no NUL character, got {value!r}.')
    if isinstance(value, str) and value and value.splitlines() != [value]:
        raise ValueError(f'{name} must have no line break, got {value!r}.')
    largest = _LARGEST_ON_HOST if name.endswith(_ON_HOST) else _LARGEST_INT
    if isinstance(value, int) and float not in kinds and abs(value) > largest:
        raise ValueError(
            f'{name} is an integer of {value.bit_length()} bits; it must be at most {largest}.'
        )
    if float in kinds and value is not None and not abs(value) <= _LARGEST_FLOAT:
        raise ValueError(f'{name} must be a finite number, up to {_LARGEST_FLOAT:g}, got {value}.')
