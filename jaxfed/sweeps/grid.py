"""The grid of settings of --sweep: which parameters it may have, and its points."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxfed import methods
from jaxfed.config import DEFAULTS, FIELDS, PROBLEM, SETTINGS, Config, settings_that_affect
from jaxfed.internal.messages import suggestion
from jaxfed.internal.type_checks import choices_of
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.runs.checks import annotations
from jaxfed.runs.config_flags import flag_of
from jaxfed.runs.experiment import parts_of

Value = float | bool | str
Point = tuple[tuple[str, Value], ...]  # (name, value) of each swept parameter

_OWNERS = 'method', 'partition'  # settings that decide which other parameters there are
_NAMES = 'method', 'dataset'  # settings whose values are names, but not those of a registry
_BOOL = {'true': True, 'false': False}
_WORDS = {int: 'an integer', float: 'a number', bool: 'true or false', str: 'a name'}


class Member(NamedTuple):
    """One experiment of a sweep."""

    point: Point
    seed: int
    config: Config  # with its work directory


def parse_grid(text: str, config: Config) -> list[Point]:
    """Parse --sweep.

    Args:
      text: such as 'beta=.1,.3,1 tau=1,3'; '' for a grid of one point, the settings themselves.
      config: the settings.

    Returns:
      Every combination of values; the last parameter changes fastest. A parameter that the method
      or the partition of a combination does not have is left out there.

    Raises:
      ValueError: for a parameter that no combination has, that cannot be swept over or is named
        twice, a value of another kind or named twice, another word, or a hyper-parameter of
        `config` that no method has.
    """
    listed: dict[str, list[str]] = {}
    for word in text.split():
        name, equals, values = word.removeprefix('--').partition('=')
        if not equals or not name:
            raise ValueError(
                f'--sweep={text}: {word!r} must be a parameter and its values, as in beta=.1,.3,1.'
            )
        if name in listed:
            raise ValueError(f'--sweep={text}: {name} is named twice; join its values by commas.')
        listed[name] = values.split(',')
    swept = [name for name in _OWNERS if name in listed]
    if 'partition' in listed:
        _parse('partition', listed['partition'], annotations()['partition'], text, ())
    owners = list(itertools.product(*(listed[name] for name in swept)))
    variants = [with_values(config, dict(zip(swept, values, strict=True))) for values in owners]
    kinds_of = [sweepable(variant) for variant in variants]
    kinds = dict(zip(owners, kinds_of, strict=True))
    for name in listed:
        _check_known(name, variants, kinds_of, text)
    _check_given(config, variants, swept)
    parsed = {
        (owner, name): _parse(name, listed[name], of[name], text, owner)
        for owner, of in kinds.items()
        for name in listed
        if name in of
    }
    points = []
    for places in itertools.product(*(range(len(values)) for values in listed.values())):
        place = dict(zip(listed, places, strict=True))
        owner = tuple(listed[name][place[name]] for name in swept)
        names = (name for name in listed if name in kinds[owner])
        points.append(tuple((name, parsed[owner, name][place[name]]) for name in names))
    return list(dict.fromkeys(points))


def _parse(
    name: str, words: Sequence[str], kind: Any, text: str, owner: Sequence[str]
) -> list[Value]:
    """Return the values of a parameter; raise a ValueError for another kind or a value twice.

    Args:
      name: of the parameter.
      words: its values in --sweep.
      kind: its type.
      text: --sweep.
      owner: the method and partition that have this type, if they are swept over.
    """
    choices, found = choices_of(kind), list[Value]()
    for word in words:
        try:
            if word not in (choices or (word,)):
                raise ValueError
            found.append(word if choices else _BOOL[word.lower()] if kind is bool else kind(word))
        except (ValueError, KeyError):
            wanted = f'one of {", ".join(choices)}' if choices else _WORDS[kind]
            raise ValueError(
                f'--sweep={text}: {name}={word!r} must be {wanted}'
                f'{" for " * bool(owner)}{" and ".join(owner)}; values are joined by commas, '
                'without spaces.'
            ) from None
    if len(set(found)) < len(found):
        raise ValueError(f'--sweep={text}: {name} has a value twice.')
    return found


def _check_known(
    name: str, variants: Sequence[Config], kinds_of: Sequence[dict[str, Any]], text: str
) -> None:
    """Raise a ValueError if a parameter cannot be swept over in any of the variants.

    Args:
      name: of the parameter.
      variants: the settings with each swept method and partition.
      kinds_of: from `sweepable`, for each.
      text: --sweep.
    """
    kinds: dict[str, Any] = {}
    for config, own in zip(variants, kinds_of, strict=True):
        kinds |= own
        parts = {(part.name, key) for part in parts_of(config) for key in part.hyperparameters}
        full = sorted(f'{part}.{key}' for part, key in parts if key == name)
        if len(full) > 1 and name not in own:
            raise ValueError(
                f'--sweep={text}: {len(full)} parts of --method={config.method} have {name}; use '
                f'{" or ".join(full)}.'
            )
    if name in kinds:
        return
    if name == 'seed':
        raise ValueError(f'--sweep={text}: use --seeds=3 for three seeds, from --seed on.')
    if name == 'validation':
        raise ValueError(
            f'--sweep={text}: {name} decides on which examples the accuracy is measured, so its '
            'runs do not compare; run once for each value.'
        )
    if owners := [other for other in PARTITIONS if name in partition_settings(other)]:
        chosen = dict.fromkeys(config.partition for config in variants)
        raise ValueError(
            f'--sweep={text}: {name} belongs to --partition={" or ".join(owners)}, but '
            f'--partition is {" or ".join(chosen)}; remove one of them.'
        )
    method = ' or '.join(dict.fromkeys(config.method for config in variants))
    parts = {(part.name, key) for c in variants for part in parts_of(c) for key in part[1]}
    if name in FIELDS or name in {*(key for _, key in parts), *map('.'.join, parts)}:
        raise ValueError(
            f'--sweep={text}: {name} is no parameter to sweep over; run once for each value, or '
            'sweep over one of ' + ', '.join(kinds) + '.'
        )
    raise ValueError(
        f'--sweep={text}: --method={method} and the settings have no {name}'
        f'{suggestion(name, kinds)} The parameters are {", ".join(kinds)}.'
    )


def _check_given(config: Config, variants: Sequence[Config], swept: Sequence[str]) -> None:
    """Raise a ValueError for a hyper-parameter or partition setting that no variant takes.

    `swept` has the names of `_OWNERS` that the grid varies.
    """
    given = {**config.hyperparameters, **config.partition_settings}
    taken = {name for variant in variants for name in variant.hyperparameters}
    taken |= {name for variant in variants for name in variant.partition_settings}
    if 'partition' in swept:
        fields = {key for other in PARTITIONS for key in partition_settings(other)} & {*SETTINGS}
        given |= {name: getattr(config, name) for name in fields}
        taken |= {name for variant in variants for name in partition_settings(variant.partition)}
        taken |= {name for name in fields if getattr(config, name) == DEFAULTS[name]}
    for name, value in given.items():
        if name not in taken:
            raise ValueError(
                f'--{name}={value}, a flag or of --config: no method or partition of --sweep takes '
                'it; remove it.'
            )


def sweepable(config: Config) -> dict[str, Any]:
    """Return flag -> type of the parameters that a sweep may have: numbers, bools and choices."""
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
    types = annotations()
    for name in settings_that_affect('training', 'randomness'):
        if name not in ('seed', 'validation') and name not in unread:
            found.setdefault(name, _without_none(types[name]))
    listable = {name: kind for name, kind in found.items() if kind in _WORDS and kind is not str}
    listable |= {name: kind for name, kind in found.items() if choices_of(kind)}
    return {name: listable.get(name, str) for name in found if name in {*listable, *_NAMES}}


def _without_none(kind: Any) -> Any:
    """The type of an optional setting, which a sweep gives a value."""
    plain = {*getattr(kind, '__args__', ())} - {type(None)}
    return kind if choices_of(kind) or len(plain) != 1 else plain.pop()


def with_values(config: Config, values: Mapping[str, Value], **fields: Any) -> Config:
    """Return the settings with new fields, and new values of swept parameters.

    Another method or partition gets the settings that it takes.
    """
    fields |= {name: value for name, value in values.items() if name in SETTINGS}
    hyperparameters = dict(config.hyperparameters)
    partition = dict(config.partition_settings)
    if 'method' in values:
        parts = methods.resolve(str(values['method']), {})
        taken = {flag for p in parts for key in p[1] for flag in (key, f'{p.name}.{key}')}
        hyperparameters = {key: v for key, v in hyperparameters.items() if key in taken}
    own = partition_settings(fields.get('partition', config.partition))
    if 'partition' in values:
        partition = {key: v for key, v in partition.items() if key in own}
    for name, value in values.items():
        if name in own and name not in SETTINGS:
            partition[name] = value
        elif name not in SETTINGS:  # replaces the hyper-parameter under its short and long name
            for other in config.hyperparameters:
                if other == name or other.endswith(f'.{name}') or name.endswith(f'.{other}'):
                    hyperparameters.pop(other, None)
            hyperparameters[name] = value
    return dataclasses.replace(
        config, partition_settings=partition, hyperparameters=hyperparameters, **fields
    )


def in_words(value: Value) -> str:
    """Return a name, true or false, or the shortest text of a number that no other number has."""
    if isinstance(value, str | bool):
        return str(value) if isinstance(value, str) else str(value).lower()
    short = f'{value:g}'
    return short if float(short) == value else repr(value)


def of_problem(point: Point, config: Config) -> list[str]:
    """The parameters that belong to the problem, as the partition, so that they are no choice."""
    own = partition_settings(str(dict(point).get('partition', config.partition)))
    return [name for name, _ in point if name in PROBLEM or name in own]
