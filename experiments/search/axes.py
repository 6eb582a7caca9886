"""The axes of a search: --grid lists the values of a flag, --range bounds them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

from jaxfed import methods
from jaxfed.config import SETTINGS
from jaxfed.runs import checks


class Range(NamedTuple):
    """A number between two others."""

    low: float
    high: float
    log: bool  # whether its logarithm is searched
    integer: bool

    def __str__(self) -> str:
        """The range as in --range."""
        return f'{self.low}..{self.high}{":log" * self.log}'

    def text(self, number: float) -> str:
        """A number of the range as on the command line, with six digits if these stay in it."""
        if self.integer:
            return str(int(number))
        short = f'{number:g}'
        return short if self.low <= float(short) <= self.high else repr(float(number))


Axis = tuple[str, ...] | Range  # values as on the command line, or a range


def read_axes(grids: Sequence[str], ranges: Sequence[str], method: str) -> dict[str, Axis]:
    """Read the axes of a search.

    Args:
      grids: the values of --grid.
      ranges: the values of --range.
      method: as for --method.

    Returns:
      Flag -> axis.

    Raises:
      ValueError: for an invalid axis, a flag that is named twice, or no axis.
    """
    if not grids and not ranges:
        raise ValueError(
            '--grid is missing; write --grid=NAME:VALUE,VALUE, once for each name, or with '
            '--sampler=optuna also --range=NAME:LOW..HIGH.'
        )
    kinds, axes = kinds_of(method), dict[str, Axis]()
    texts = [('grid', read_grid, text) for text in grids]
    texts += [('range', read_range, text) for text in ranges]
    for flag, read, text in texts:
        name, axis = read(text, kinds)
        if name in axes:
            raise ValueError(f'--{flag}={text}: {name} is named twice.')
        axes[name] = axis
    return axes


def kinds_of(method: str) -> dict[str, Any]:
    """The types of all flags that can be searched.

    Args:
      method: as for --method.

    Returns:
      Flag -> annotation; a hyper-parameter as NAME if only one part has it, and as METHOD.NAME.

    Raises:
      ValueError: if there is no such method.
    """
    hints = checks.annotations()
    found = {name: hints[name] for name, setting in SETTINGS.items() if setting.searched}
    owners: dict[str, list[str]] = {}
    for part in dict.fromkeys(part.name for part in methods.resolve(method, {})):
        for name, parameter in methods.hyperparameters(part).items():
            owners.setdefault(name, []).append(part)
            found[f'{part}.{name}'] = parameter.annotation
    # --alpha and similar names belong to the experiment.
    for name, parts in owners.items():
        if len(parts) == 1 and name not in hints:
            found[name] = found[f'{parts[0]}.{name}']
    return found


def read_grid(text: str, kinds: Mapping[str, Any]) -> tuple[str, Axis]:
    """Read one --grid.

    Args:
      text: 'NAME:VALUE,VALUE'.
      kinds: from `kinds_of`.

    Returns:
      The name and its values, as on the command line.

    Raises:
      ValueError: for an unknown name, no values, a repeated value or a value of another type.
    """
    flag = f'--grid={text}'
    name, listed = _split(flag, text, kinds)
    values = tuple(value.strip() for value in listed.split(',') if value.strip())
    if not values:
        raise ValueError(f'{flag} has no values; write --grid={name}:VALUE,VALUE.')
    read = [read_value(flag, value, kinds[name]) for value in values]
    for index, value in enumerate(read):
        if value in read[:index]:
            raise ValueError(f'{flag} has {values[index]} twice.')
    return name, values


def read_range(text: str, kinds: Mapping[str, Any]) -> tuple[str, Axis]:
    """Read one --range.

    Args:
      text: 'NAME:LOW..HIGH' or 'NAME:LOW..HIGH:log'.
      kinds: from `kinds_of`.

    Returns:
      The name and its range, of integers for a flag of integers.

    Raises:
      ValueError: for an unknown name, a flag that is not a number, or an invalid range.
    """
    flag = f'--range={text}'
    name, rest = _split(flag, text, kinds)
    types = _types(kinds[name])
    if not {int, float} & {*types}:
        raise ValueError(f'{flag}: {name} is not a number; write --grid={name}:VALUE,VALUE.')
    ends, colon, scale = rest.partition(':')
    low_text, dots, high_text = ends.partition('..')
    if not (dots and low_text and high_text) or (colon and scale != 'log'):
        raise ValueError(
            f'{flag} must be --range={name}:LOW..HIGH or --range={name}:LOW..HIGH:log.'
        )
    low, high = (read_value(flag, end, kinds[name]) for end in (low_text, high_text))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f'{flag}: {low_text} must be below {high_text}, and both finite.')
    if colon and low <= 0:
        raise ValueError(f'{flag}: {low_text} must be positive, because of :log.')
    return name, Range(low, high, bool(colon), float not in types)


def _split(flag: str, text: str, kinds: Mapping[str, Any]) -> tuple[str, str]:
    """Split 'NAME:REST'; a ValueError for an unknown name."""
    name, _, rest = text.partition(':')
    if name not in kinds:
        raise ValueError(f'{flag}: {name or "nothing"!r} must be one of {", ".join(kinds)}.')
    return name, rest


def _types(kind: Any) -> list[Any]:
    return [k for k in (kind, *get_args(kind)) if k is not type(None)]


def read_value(flag: str, text: str, kind: Any) -> Any:
    """Read a value of a flag.

    Args:
      flag: for the error message.
      text: the value.
      kind: annotation of the searched flag.

    Returns:
      The value.

    Raises:
      ValueError: if it has another type.
    """
    kinds = _types(kind)
    for choices in (get_args(k) for k in kinds if get_origin(k) is Literal):
        if text not in choices:
            raise ValueError(f'{flag}: {text} must be one of {", ".join(choices)}.')
        return text
    if bool in kinds:
        if text.lower() not in ('true', 'false'):
            raise ValueError(f'{flag}: {text} must be True or False.')
        return text.lower() == 'true'
    number: type[int] | type[float] = float if float in kinds else int
    try:
        return number(text)
    except ValueError:
        words = 'a number' if number is float else 'an integer'
        raise ValueError(f'{flag}: {text} must be {words}.') from None
