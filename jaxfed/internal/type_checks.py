"""One check for values that were given: of the annotated type and, if a float, finite; in words."""

from typing import Any, Literal, get_args, get_origin

_WORDS = {
    bool: 'True or False',
    int: 'an integer',
    float: 'a number',
    str: 'a string',
    type(None): 'None',
}
_WIDEST = 2**63 - 1
_LARGEST = 3.4e38  # of float32, in which everything is computed


def check_value(name: str, value: Any, kind: Any) -> None:
    """Check a value against its annotation.

    Args:
      name: of the setting, as it is given.
      value: it was given; an int does for a float, a bool does not for an int.
      kind: bool, int, float, str, a Literal, or a union of the first four and None; anything else
        passes unchecked.

    Raises:
      ValueError: if the value is of another type, none of the Literal's, or a float that float32
        cannot hold, an int of more than 64 bits, or a string with a NUL character
        or a line break.
    """
    literal = next((k for k in (kind, *get_args(kind)) if get_origin(k) is Literal), None)
    if literal is not None:
        given = value is not None or type(None) not in get_args(kind)
        if given and value not in get_args(literal):
            told = printable(str(value))
            raise ValueError(f'{name}={told} must be one of {", ".join(get_args(literal))}.')
        return
    kinds = get_args(kind) or (kind,)
    if not all(k in _WORDS for k in kinds):
        return
    fitting = (*kinds, int) if float in kinds else kinds
    if not (bool in kinds if isinstance(value, bool) else isinstance(value, fitting)):
        raise ValueError(f'{name}={value!r} must be {" or ".join(_WORDS[k] for k in kinds)}.')
    if isinstance(value, str) and '\0' in value:
        raise ValueError(f'{name}={value!r} must have no NUL character.')
    if isinstance(value, str) and value and value.splitlines() != [value]:
        raise ValueError(f'{name}={value!r} must have no line break.')
    if isinstance(value, int) and float not in kinds and abs(value) > _WIDEST:
        raise ValueError(
            f'{name} is an integer of {value.bit_length()} bits; it must be at most {_WIDEST}.'
        )
    if float in kinds and value is not None and not abs(value) <= _LARGEST:
        raise ValueError(f'{name}={value} must be a finite number, up to {_LARGEST:g}.')


def printable(text: str) -> str:
    """A text for the middle of a line, such as a name that a file holds.

    Args:
      text: any.

    Returns:
      The text, with escapes in the place of line breaks and control characters.
    """
    return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
