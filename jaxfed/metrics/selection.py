"""The measures of a run: which `--measure` selects, whether they are valid, what they record."""

import reprlib
from collections.abc import Collection, Sequence
from typing import Any, get_args

import numpy as np

from jaxfed.internal.messages import locate_errors, printable, suggestion
from jaxfed.metrics.accuracy import Evaluation
from jaxfed.metrics.measures import MEASURES, Fields, LocalModels, Measure, Need, RoundData


def parse_measures(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of measures.

    Args:
      text: names out of MEASURES joined by commas, 'all' or 'none'.

    Returns:
      The names.

    Raises:
      ValueError: if a name is unknown or named twice.
    """
    if text in ('none', 'all'):
        return tuple(MEASURES) if text == 'all' else ()
    names = tuple(name.strip() for name in text.split(','))
    for name in names:
        if name not in MEASURES:
            raise ValueError(
                f'--measure={text} names {name!r}: choose from {", ".join(MEASURES)}, separated by '
                f"commas, or 'all' or 'none'{suggestion(name, MEASURES)}"
            )
        if names.count(name) > 1:
            raise ValueError(f'--measure={text} names {name!r} twice; name it once.')
    return names


def check_measures(names: Sequence[str], reserved: Collection[str]) -> None:
    """Checks the measures of a run, which may be registered ones.

    Args:
      names: out of MEASURES.
      reserved: the fields of records that are not of measures.

    Raises:
      ValueError: if one is not a `Measure` or has fields of other forms than its own, needs an
        unknown part of `LocalModels`, or records a field of something else; measures may share
        arrays.
    """
    owners = dict.fromkeys(reserved, 'jaxfed')
    for name in names:
        measure, place = MEASURES[name], f'MEASURES[{name!r}]'
        if not isinstance(measure, Measure):
            raise ValueError(f'{place} must be a Measure, got {printable(reprlib.repr(measure))}.')
        for kind in ('scalars', 'arrays', 'by_class'):
            if not isinstance(getattr(measure, kind), tuple):
                raise ValueError(f"{place}.{kind} must be a tuple of names, as ('name',).")
        if others := set(measure.by_class) - set(measure.arrays):
            raise ValueError(
                f'{place}.by_class must name fields of its arrays, got {sorted(others)[0]!r}.'
            )
        if others := set(measure.titles) - set(measure.scalars):
            raise ValueError(f'{place}.titles must name its scalars, got {sorted(others)[0]!r}.')
        for need in measure.needs:
            if need not in get_args(Need):
                choices = ' or '.join(map(repr, get_args(Need)))
                raise ValueError(f'{place}.needs must name {choices}, got {need!r}.')
        for scalar in measure.scalars:
            owners.setdefault(scalar, f'--measure={name}')
    for name in names:
        for field in MEASURES[name].fields:
            owner = owners.get(field, f'--measure={name}')
            if owner != f'--measure={name}':
                raise ValueError(
                    f'MEASURES[{name!r}] records {field!r}, as {owner} does; rename the field.'
                )


def parse_clients(text: str | None) -> tuple[int, ...]:
    """Parses a comma-separated list of client ids.

    Args:
      text: for instance '0,3'; None for no client.

    Returns:
      The ids.

    Raises:
      ValueError: if an id is not a number or is named twice.
    """
    if text is None:
        return ()
    ids = tuple(part.strip() for part in text.split(','))
    if not all(part.isascii() and part.isdecimal() for part in ids):
        raise ValueError(
            f'--confusion_clients must be client ids separated by commas, as in 0,3, got {text}.'
        )
    numbers = tuple(map(int, ids))
    if len(set(numbers)) < len(numbers):
        raise ValueError(f'--confusion_clients={text} names a client twice; name it once.')
    return numbers


def fields(names: Sequence[str]) -> tuple[str, ...]:
    """Lists the fields that measures add to metrics.jsonl.

    Args:
      names: out of MEASURES.

    Returns:
      Each field once.
    """
    return tuple(dict.fromkeys(field for name in names for field in MEASURES[name].fields))


def fields_by_class() -> tuple[str, ...]:
    """Lists the fields of metrics.jsonl with a number for each class, of all measures."""
    return ('class_accuracy', *(name for m in MEASURES.values() for name in m.by_class))


def need_local_models(names: Sequence[str], confusion_clients: Sequence[int]) -> bool:
    """Returns whether any measure needs local models, if they are evaluated at all.

    Args:
      names: out of MEASURES.
      confusion_clients: those without which a measure of `named_clients` needs none.

    Returns:
      Whether there is one.
    """
    testing = [MEASURES[name] for name in names if MEASURES[name].tests_locals]
    return any(confusion_clients or not measure.named_clients for measure in testing)


def needs(names: Sequence[str]) -> set[Need]:
    """Lists the optional parts of `LocalModels` and its evaluations that measures need.

    Args:
      names: out of MEASURES.

    Returns:
      Names of its fields.
    """
    return {need for name in names for need in MEASURES[name].needs}


# Function of a measure -> the inputs that it has only if `needs` names them.
_OPTIONAL: dict[str, tuple[Need, ...]] = {
    'of_round': (),
    'of_global': ('logits',),
    'of_locals': get_args(Need),
}


def _advice(measure: Measure, function: str) -> str:
    """What to add to an error of a function that reads an input which it did not ask for."""
    code = getattr(getattr(measure, function), '__code__', None)
    read = [
        n for n in _OPTIONAL[function] if code and n in code.co_names and n not in measure.needs
    ]
    return f"; it reads {read[0]}, so add needs=('{read[0]}',) to the measure" if read else ''


def _fields_of(name: str, function: str, *arguments: Any) -> Fields:
    """What a function of a measure returns; raises a ValueError if it fails or is no dictionary."""
    with locate_errors(f'MEASURES[{name!r}].{function}'):
        try:
            found = getattr(MEASURES[name], function)(*arguments)
        except (AttributeError, TypeError) as error:  # of the None or () in its place
            error.args = (f'{error}{_advice(MEASURES[name], function)}',)
            raise
    if not isinstance(found, dict):
        raise ValueError(
            f"MEASURES[{name!r}].{function} must return a dictionary of fields, as {{'name': 0.5}}"
            f', got {type(found).__name__}.'
        )
    return found


def measure_round(
    names: Sequence[str], data: RoundData, now: Evaluation | None, local: LocalModels | None
) -> Fields:
    """Computes the measures of a round.

    Args:
      names: out of MEASURES.
      data: the clients and data of the round.
      now: evaluation of the global model after the round; None if it was not evaluated.
      local: the local models; None if they were not evaluated.

    Returns:
      All fields of the measures; None for a field without a value in this round.

    Raises:
      ValueError: if a measure fails, or returns no dictionary, a field that it does not list, or
        an array as a scalar, or values that are no numbers.
    """
    values: Fields = dict.fromkeys(fields(names))
    for name in names:
        measure = MEASURES[name]
        found = dict(_fields_of(name, 'of_round', data))
        found |= {} if now is None else _fields_of(name, 'of_global', data, now)
        found |= {} if local is None else _fields_of(name, 'of_locals', data, local)
        for field, value in found.items():
            if field not in measure.fields:
                raise ValueError(
                    f'MEASURES[{name!r}] returns {field!r}, but its scalars and arrays do not list '
                    'it; add it to one of them.'
                )
            if field in measure.scalars and np.ndim(value):
                raise ValueError(
                    f'MEASURES[{name!r}] must return a number as its scalar {field!r}, got the '
                    f'shape {list(np.shape(value))}; list it in arrays instead.'
                )
            if field in measure.scalars and isinstance(value, str | bytes | dict):
                raise ValueError(
                    f'MEASURES[{name!r}] must return a number as its scalar {field!r}, got '
                    f'{printable(reprlib.repr(value))}.'
                )
            if not _holds_numbers(value):
                raise ValueError(
                    f'MEASURES[{name!r}] must return numbers, arrays of them or dictionaries of '
                    f'these as {field!r}, got {printable(reprlib.repr(value))}.'
                )
        values |= found
    return values


def _holds_numbers(value: Any) -> bool:
    """Whether a value is None, a number, an array of numbers, or a dictionary of such values."""
    if isinstance(value, dict):
        return all(map(_holds_numbers, value.values()))
    try:
        return value is None or np.asarray(value).dtype.kind in 'biuf'
    except ValueError:  # rows of different lengths
        return False
