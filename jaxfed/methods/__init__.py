"""The federated methods, one file each, and their registry.

`METHODS` maps a name to a factory with keyword-only hyper-parameters. `resolve` and `build` make a
method from a specification such as 'fedlmd+fedprox'. `METHODS['mine'] = mine` adds a method.
"""

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax

from jaxfed.internal.messages import located, one_line, printable, suggestion
from jaxfed.internal.type_checks import check_value, checked_parameters
from jaxfed.methods.apfl import apfl
from jaxfed.methods.chain import chain
from jaxfed.methods.ditto import ditto
from jaxfed.methods.dp import dp
from jaxfed.methods.fedadagrad import fedadagrad
from jaxfed.methods.fedadam import fedadam
from jaxfed.methods.fedavg import fedavg
from jaxfed.methods.fedavgm import fedavgm
from jaxfed.methods.fedbn import fedbn
from jaxfed.methods.fedbuff import fedbuff
from jaxfed.methods.fedcad import fedcad
from jaxfed.methods.fedcurv import fedcurv
from jaxfed.methods.feddecorr import feddecorr
from jaxfed.methods.feddyn import feddyn
from jaxfed.methods.fedgkd import fedgkd
from jaxfed.methods.fedlc import fedlc
from jaxfed.methods.fedlmd import fedlmd
from jaxfed.methods.fedlmd_tf import fedlmd_tf
from jaxfed.methods.fedlsd import fedlsd
from jaxfed.methods.fednova import fednova
from jaxfed.methods.fedntd import fedntd
from jaxfed.methods.fedntd_tf import fedntd_tf
from jaxfed.methods.fedper import fedper
from jaxfed.methods.fedprox import fedprox
from jaxfed.methods.fedrep import fedrep
from jaxfed.methods.fedrs import fedrs
from jaxfed.methods.fedssd import fedssd
from jaxfed.methods.fedyogi import fedyogi
from jaxfed.methods.kd import kd
from jaxfed.methods.krum import krum
from jaxfed.methods.label_smoothing import label_smoothing
from jaxfed.methods.logit_adjustment import logit_adjustment
from jaxfed.methods.median import median
from jaxfed.methods.method import Method, check_method
from jaxfed.methods.moon import moon
from jaxfed.methods.mse import mse
from jaxfed.methods.multikrum import multikrum
from jaxfed.methods.quantize import quantize
from jaxfed.methods.scaffold import scaffold
from jaxfed.methods.switch import switch
from jaxfed.methods.topk import topk
from jaxfed.methods.trimmed_mean import trimmed_mean

__all__ = [
    'METHODS',
    'Method',
    'Part',
    'build',
    'chain',
    'check_method',
    'describe',
    'hyperparameters',
    'resolve',
    'switch',
]

METHODS: dict[str, Callable[..., Method]] = {
    factory.__name__: factory
    for factory in (
        fedavg, fedprox, fedcurv, scaffold, fednova, feddyn, moon, feddecorr, fedrs, fedlc,
        logit_adjustment, label_smoothing, kd, fedgkd, mse, fedlsd, fedntd, fedntd_tf, fedcad,
        fedssd, fedlmd, fedlmd_tf,
        fedavgm, fedadam, fedyogi, fedadagrad,
        fedper, fedrep, fedbn, ditto, apfl,
        median, trimmed_mean, krum, multikrum, quantize, topk, dp, fedbuff,
    )
}  # fmt: skip


_Named = tuple[str, Method]


class Part(NamedTuple):
    """One method of a combination, with all its hyper-parameters."""

    name: str
    hyperparameters: dict[str, Any]
    phase: int = 0  # 0 up to --switch_round, 1 after it


def hyperparameters(name: str) -> Mapping[str, inspect.Parameter]:
    """Lists the hyper-parameters of a method, with their types and defaults.

    Args:
      name: of the method.

    Returns:
      Name -> inspect.Parameter, in the order of the factory's signature.

    Raises:
      ValueError: if the registered value is not a function, or a parameter of it has no default
        or a type that a flag cannot have.
    """
    factory = METHODS[name]
    if not callable(factory):
        raise ValueError(
            f'METHODS[{name!r}] must be a function that returns a jaxfed.Method, got a '
            f'{type(factory).__name__}; write METHODS[{name!r}] = lambda: ...'
        )
    parameters = checked_parameters(factory, f'METHODS[{name!r}]')
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty:
            raise ValueError(f'METHODS[{name!r}]: its parameter {key} must have a default value.')
    return parameters


def resolve(specification: str, settings: Mapping[str, Any]) -> list[Part]:
    """Resolves a specification into its parts with their hyper-parameters.

    Args:
      specification: names joined by '+', for instance 'fedlmd+fedprox'; ',' separates the method
        of the first rounds from that of the later rounds.
      settings: hyper-parameters by name ('beta'), or by part and name ('fedlmd.beta') if several
        parts have that name.

    Returns:
      The parts in order, with defaults filled in.

    Raises:
      ValueError: if a method is unknown or named twice for the same rounds, more than two follow
        each other, a registered name has '+' or ',', or a hyper-parameter belongs to no part or to
        several, or is set under both of its names.
    """
    for name in METHODS:
        if name in specification and {*name} & {'+', ','}:
            raise ValueError(
                f"METHODS[{name!r}]: its name must have no '+' and no ',', which combine methods; "
                'rename it.'
            )
    phases = [[name.strip() for name in names.split('+')] for names in specification.split(',')]
    if len(phases) > 2:
        raise ValueError(
            f'--method={specification}: at most two methods can follow each other; to compare '
            f'them, use --sweep="method={specification}".'
        )
    names = [name for phase in phases for name in phase]
    for name in names:
        if name not in METHODS:
            raise ValueError(
                f'--method={printable(specification)}: unknown method {name!r}'
                f'{suggestion(name, METHODS)} --method=list prints all; --include=FILE.py adds '
                'your own.'
            )
        if any(phase.count(name) > 1 for phase in phases):
            raise ValueError(f'--method={specification}: {name} is named twice.')
    # A part in both phases has the same hyper-parameters in both.
    values = {name: {key: p.default for key, p in hyperparameters(name).items()} for name in names}
    flags: dict[tuple[str, str], str] = {}
    for flag, value in settings.items():
        name, key = _find_part(specification, values, flag, value)
        other = flags.setdefault((name, key), flag)
        if other != flag:
            raise ValueError(
                f'--{other}={settings[other]} and --{flag}={value} are both {key} of {name}; '
                'remove one of them.'
            )
        values[name][key] = value
    return [Part(name, values[name], i) for i, phase in enumerate(phases) for name in phase]


def _find_part(
    specification: str, parts: Mapping[str, Mapping[str, Any]], flag: str, value: Any
) -> tuple[str, str]:
    """Finds the part and the hyper-parameter that a flag sets."""
    part, _, key = flag.rpartition('.')
    names = [name for name, known in parts.items() if key in known and part in ('', name)]
    if not names:
        known = ', '.join(f'--{name}.{key}' for name, keys in parts.items() for key in keys)
        raise ValueError(
            f'--{flag}={value}: --method={specification} takes no such hyper-parameter; '
            f'it takes {known or "none"}.'
        )
    if len(names) > 1:
        choices = ' or '.join(f'--{name}.{key}' for name in names)
        raise ValueError(
            f'--{flag}={value}: several parts of --method={specification} take {key}; '
            f'use {choices}.'
        )
    return names[0], key


def build(parts: list[Part], *, switch_round: int | None = None) -> Method:
    """Makes the method of several parts.

    Parts that begin or end both of two phases stay one, outside of the `switch`: their state goes
    on. Other parts of both begin anew.

    Args:
      parts: from `resolve`.
      switch_round: the last round of the first of two phases.

    Returns:
      The method, a `chain` if there are several parts, with a `switch` if there are two phases.

    Raises:
      ValueError: if a hyper-parameter is of a wrong type, not finite or out of range, a registered
        function returns no valid method, the parts do not combine, or there are two phases without
        `switch_round` or the reverse.
    """
    phases: list[list[_Named]] = [
        [(part.name, _make(part.name, part.hyperparameters)) for part in parts if part.phase == i]
        for i in (0, 1)
    ]
    first, second = phases
    text = ','.join(_label(phase) for phase in phases if phase)
    if second and switch_round is None:
        raise ValueError(
            'two methods that follow each other need --switch_round, the last round of the first; '
            f'to compare them, use --sweep="method={text}".'
        )
    if switch_round is not None and not second:
        raise ValueError(
            f'--switch_round={switch_round} needs two methods that follow each other, as in '
            '--method=fedlmd_tf,fedlmd.'
        )
    try:
        return _combine(first) if switch_round is None else _switch(first, second, switch_round)
    except ValueError as error:
        raise ValueError(f'--method={text}: {error}') from error


def _make(name: str, values: Mapping[str, Any]) -> Method:
    """Makes the method of a part."""
    try:
        for key, value in values.items():
            if not isinstance(value, jax.core.Tracer):  # traced numbers were checked before
                check_value(key, value, hyperparameters(name)[key].annotation)
        method = METHODS[name](**_as_floats(name, values))
        check_method(method, 'its function must return')
    except ValueError as error:
        raise ValueError(f'--method={name}: {error}') from error
    except Exception as error:  # of any kind, from the user's function
        if any(isinstance(value, jax.core.Tracer) for value in values.values()):
            raise  # a sweep reads its type
        misspelt = re.search(r"Method\.__new__.* argument '(\w+)'$", one_line(error))
        end = suggestion(misspelt[1], Method._fields) if misspelt else '.'
        raise located(f'METHODS[{name!r}]', error, end) from error
    return method


def _label(named: Sequence[_Named]) -> str:
    return '+'.join(name for name, _ in named) or 'fedavg'


def _combine(named: Sequence[_Named]) -> Method:
    """Chains methods; none is FedAvg."""
    if len(named) < 2:
        return named[0][1] if named else fedavg()
    names, methods = zip(*named, strict=True)
    return chain(*methods, names=names)


def _switch(first: Sequence[_Named], second: Sequence[_Named], rounds: int) -> Method:
    """Switches what is between the parts that begin and those that end both methods."""
    before = _alike(first, second)
    after = _alike(first[before:][::-1], second[before:][::-1])
    one, other = (phase[before : len(phase) - after] for phase in (first, second))
    names = {name for name, _ in one}
    # A part of both adapts the network once.
    other = [(n, m._replace(adapt=Method().adapt) if n in names else m) for n, m in other]
    switched = switch(_combine(one), _combine(other), rounds=rounds)
    label = f'{_label(one)},{_label(other)}'
    return _combine([*first[:before], (label, switched), *first[len(first) - after :]])


def _alike(one: Sequence[_Named], other: Sequence[_Named]) -> int:
    """The number of parts with which both begin."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0][0] == pair[1][0], pairs))


def _as_floats(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turns ints into floats where the annotation has float; JAX takes no ints beyond 32 bits."""
    known = hyperparameters(name)
    return {
        key: float(value) if type(value) is int and _is_float(known[key].annotation) else value
        for key, value in values.items()
    }


def _is_float(annotation: Any) -> bool:
    return float in (annotation, *get_args(annotation))


def describe(name: str) -> tuple[str, str]:
    """Returns a method's one-sentence description and its paper, from its docstring.

    Args:
      name: of the method.

    Returns:
      (description, reference), one line each.
    """
    text = inspect.getdoc(functools.partial(METHODS[name]).func) or ''
    _, _, reference = text.partition('Reference:\n')
    return text.split('\n', 1)[0], ' '.join(reference.split())
