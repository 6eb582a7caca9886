"""Checks of a setting's value against its annotation."""

import difflib
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

_WORDS = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'a string',
    type(None): 'None',
}
_LARGEST_INT = 2**63 - 1
_LARGEST_FLOAT = 3.4e38  # of float32, the precision of all settings in the program


def check_value(name: str, value: Any, kind: Any) -> None:
    """Raises a ValueError unless a value has its annotated type and float32 or int64 can hold it.

    `kind` is bool, int, float, str, a Literal, or a union of the first four and None; values of
    other annotations are not checked. An int is also a float, but a bool is not an int. A string
    must have no NUL character and no line break.
    """
    kinds = get_args(kind) or (kind,)
    literal = next((k for k in (kind, *kinds) if get_origin(k) is Literal), None)
    if literal is not None:
        optional = value is None and type(None) in kinds
        if not optional and value not in get_args(literal):
            choices, text = get_args(literal), printable(str(value))
            end = suggestion(text, choices, f'{name}=')
            raise ValueError(f'{name} must be one of {", ".join(choices)}, got {text}{end}')
        return
    if not all(k in _WORDS for k in kinds):
        return
    types = (*kinds, int) if float in kinds else kinds
    if not (bool in kinds if isinstance(value, bool) else isinstance(value, types)):
        words = ' or '.join(_WORDS[k] for k in kinds)
        raise ValueError(f'{name} must be {words}, got {value!r}.')
    if isinstance(value, str) and '\0' in value:
        raise ValueError(f'{name} must have no NUL character, got {value!r}.')
    if isinstance(value, str) and value and value.splitlines() != [value]:
        raise ValueError(f'{name} must have no line break, got {value!r}.')
    if isinstance(value, int) and float not in kinds and abs(value) > _LARGEST_INT:
        raise ValueError(
            f'{name} is an integer of {value.bit_length()} bits; it must be at most {_LARGEST_INT}.'
        )
    if float in kinds and value is not None and not abs(value) <= _LARGEST_FLOAT:
        raise ValueError(f'{name} must be a finite number, up to {_LARGEST_FLOAT:g}, got {value}.')


def suggestion(name: str, names: Iterable[str], prefix: str = '') -> str:
    """Return the end of a message: '; did you mean ...?', or '.' if no name is similar."""
    by_letters = {known.lower(): known for known in names}
    letters = name.lower()
    similar = [letters] if letters in by_letters else difflib.get_close_matches(letters, by_letters)
    shown = ' or '.join(prefix + by_letters[found] for found in similar)
    return f'; did you mean {shown}?' if shown else '.'


def printable(text: str) -> str:
    """Escapes the line breaks and control characters of a text."""
    return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
