"""The grid of settings of --sweep: which parameters it may have, and its points."""

import itertools
import typing
from typing import Any

from jaxfed import methods
from jaxfed.config import FIELDS, Config, settings_that_affect
from jaxfed.internal.messages import suggestion
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.runs.config_flags import flag_of
from jaxfed.runs.experiment import parts_of

Point = tuple[tuple[str, float], ...]  # (name, value) of each swept parameter


def parse_grid(text: str, config: Config) -> list[Point]:
    """Parse --sweep.

    Args:
      text: such as 'beta=.1,.3,1 tau=1,3'; '' for a grid of one point, the settings themselves.
      config: the settings.

    Returns:
      Every combination of values; the last parameter changes fastest.

    Raises:
      ValueError: for a parameter that does not exist, is not a number or is named twice, a value
        that is not a number or is named twice, or another word.
    """
    grid: dict[str, list[float]] = {}
    for word in text.split():
        name, equals, listed = word.removeprefix('--').partition('=')
        if not equals or not name:
            raise ValueError(
                f'--sweep={text}: {word!r} must be a parameter and its values, as in beta=.1,.3,1.'
            )
        if name in grid:
            raise ValueError(f'--sweep={text}: {name} is named twice; join its values by commas.')
        kind = _kind(name, config, text)
        grid[name] = []
        for value in listed.split(','):
            try:
                grid[name].append(kind(value))
            except ValueError:
                wanted = 'an integer' if kind is int else 'a number'
                raise ValueError(
                    f'--sweep={text}: {name}={value!r} must be {wanted}; values are joined by '
                    'commas, without spaces.'
                ) from None
        if len(set(grid[name])) < len(grid[name]):
            raise ValueError(f'--sweep={text}: {name} has a value twice.')
    return [tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _kind(name: str, config: Config, text: str) -> type[float] | type[int]:
    """Return the type of a parameter; raise a ValueError if it cannot be swept over."""
    kinds = sweepable(config)
    if name in kinds:
        return kinds[name]
    if name == 'seed':
        raise ValueError(f'--sweep={text}: use --seeds=3 for three seeds, from --seed on.')
    if name == 'validation':
        raise ValueError(
            f'--sweep={text}: {name} decides on which examples the accuracy is measured, so its '
            'runs do not compare; run once for each value.'
        )
    if owners := [other for other in PARTITIONS if name in partition_settings(other)]:
        raise ValueError(
            f'--sweep={text}: {name} belongs to --partition={" or ".join(owners)}, but '
            f'--partition is {config.partition}; remove one of them.'
        )
    own = {(part.name, key) for part in parts_of(config) for key in part.hyperparameters}
    if len(full := sorted(f'{part}.{key}' for part, key in own if key == name)) > 1:
        raise ValueError(
            f'--sweep={text}: {len(full)} parts of --method={config.method} have {name}; use '
            f'{" or ".join(full)}.'
        )
    if name in FIELDS or name in {*(key for _, key in own), *map('.'.join, own)}:
        raise ValueError(
            f'--sweep={text}: {name} is not a number to sweep over; run once for each value, or '
            'sweep over one of ' + ', '.join(kinds) + '.'
        )
    raise ValueError(
        f'--sweep={text}: --method={config.method} and the settings have no {name}'
        f'{suggestion(name, kinds)} The parameters are {", ".join(kinds)}.'
    )


def sweepable(config: Config) -> dict[str, type[float] | type[int]]:
    """Return the numeric parameters of the method, the partition and training, flag -> type."""
    found: dict[str, Any] = {}
    parts = parts_of(config)
    # A part of both phases has the same values in both.
    names = [
        key for values in {p.name: p.hyperparameters for p in parts}.values() for key in values
    ]
    for name, _, _ in parts:
        for key, parameter in methods.hyperparameters(name).items():
            # A short name is unambiguous if only one part has it, and no other flag.
            short = names.count(key) == 1 and flag_of(name, key) == key
            found |= {flag: parameter.annotation for flag in [key] * short + [f'{name}.{key}']}
    chosen = partition_settings(config.partition)
    for name, parameter in chosen.items():
        found.setdefault(name, parameter.annotation)
    unread = {key for other in PARTITIONS for key in partition_settings(other)} - set(chosen)
    types = typing.get_type_hints(Config)
    for name in settings_that_affect('training', 'randomness'):
        kinds = set(typing.get_args(types[name]) or (types[name],)) - {type(None)}
        if len(kinds) == 1 and name not in ('seed', 'validation') and name not in unread:
            found.setdefault(name, kinds.pop())
    return {name: kind for name, kind in found.items() if kind in (int, float)}
