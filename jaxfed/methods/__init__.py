"""The federated methods, one file each; this is their registry.

`METHODS` maps a name to a factory with keyword-only hyper-parameters. `build` makes a method from
a specification such as 'fedlmd+fedprox'. To add a method of your own, put its factory here:
`METHODS['mine'] = mine`.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from jaxfed.internal.type_checks import check_value, printable
from jaxfed.methods.fedadagrad import fedadagrad
from jaxfed.methods.fedadam import fedadam
from jaxfed.methods.fedavg import fedavg
from jaxfed.methods.fedavgm import fedavgm
from jaxfed.methods.fedcad import fedcad
from jaxfed.methods.fedcurv import fedcurv
from jaxfed.methods.feddyn import feddyn
from jaxfed.methods.fedgkd import fedgkd
from jaxfed.methods.fedlmd import fedlmd
from jaxfed.methods.fedlmd_tf import fedlmd_tf
from jaxfed.methods.fedlsd import fedlsd
from jaxfed.methods.fednova import fednova
from jaxfed.methods.fedntd import fedntd
from jaxfed.methods.fedntd_tf import fedntd_tf
from jaxfed.methods.fedprox import fedprox
from jaxfed.methods.fedrs import fedrs
from jaxfed.methods.fedssd import fedssd
from jaxfed.methods.fedyogi import fedyogi
from jaxfed.methods.kd import kd
from jaxfed.methods.label_smoothing import label_smoothing
from jaxfed.methods.method import Method, chain
from jaxfed.methods.moon import moon
from jaxfed.methods.mse import mse
from jaxfed.methods.scaffold import scaffold
from jaxfed.methods.switch import switch

__all__ = ['METHODS', 'Part', 'build', 'describe', 'hyperparameters', 'resolve']

METHODS: dict[str, Callable[..., Method]] = {
    'fedavg': fedavg,
    'fedprox': fedprox,
    'fedcurv': fedcurv,
    'scaffold': scaffold,
    'fednova': fednova,
    'feddyn': feddyn,
    'moon': moon,
    'fedrs': fedrs,
    'kd': kd,
    'fedgkd': fedgkd,
    'mse': mse,
    'label_smoothing': label_smoothing,
    'fedlsd': fedlsd,
    'fedntd': fedntd,
    'fedntd_tf': fedntd_tf,
    'fedcad': fedcad,
    'fedssd': fedssd,
    'fedlmd': fedlmd,
    'fedlmd_tf': fedlmd_tf,
    'fedavgm': fedavgm,
    'fedadam': fedadam,
    'fedyogi': fedyogi,
    'fedadagrad': fedadagrad,
}


class Part(NamedTuple):
    """One method of a combination, with all its hyper-parameters."""

    name: str
    hyperparameters: dict[str, Any]
    phase: int = 0  # 0 before --switch_round, 1 after it


def hyperparameters(name: str) -> dict[str, inspect.Parameter]:
    """The hyper-parameters of a method, with their types and defaults.

    Args:
      name: of the method.

    Returns:
      Name -> inspect.Parameter, in the order of the factory's signature.
    """
    return dict(inspect.signature(METHODS[name]).parameters)


def resolve(specification: str, given: Mapping[str, Any]) -> list[Part]:
    """Find out which parts a specification names and which hyper-parameters each gets.

    Args:
      specification: names joined by '+', for instance 'fedlmd+fedprox'; two such methods joined
        by ',' follow each other.
      given: hyper-parameters by name ('beta'), or by part and name ('fedlmd.beta') where several
        parts take one of the same name.

    Returns:
      The parts in order, defaults filled in.

    Raises:
      ValueError: if a method is unknown or named twice, or a hyper-parameter is taken by none of
        the parts, or by several of them, or is given under both of its names.
    """
    phases = [[name.strip() for name in names.split('+')] for names in specification.split(',')]
    if len(phases) > 2:
        raise ValueError(f'--method={specification}: at most two methods follow each other.')
    for name in dict.fromkeys(name for names in phases for name in names):
        if name not in METHODS:
            near = difflib.get_close_matches(name, METHODS, n=3, cutoff=0.4)
            hint = f'did you mean {" or ".join(near)}? ' if near else ''
            raise ValueError(
                f'--method={printable(specification)}: unknown method {name!r}; {hint}'
                '--method=list shows all.'
            )
        if any(names.count(name) > 1 for names in phases):
            raise ValueError(f'--method={specification}: {name} is named twice.')
    # A part named in both phases is the same in both.
    values = {
        name: {key: p.default for key, p in hyperparameters(name).items()}
        for names in phases
        for name in names
    }
    parts = [Part(name, values[name], i) for i, names in enumerate(phases) for name in names]
    key_of: dict[tuple[str, str], str] = {}
    for key, value in given.items():
        owner, _, bare = key.rpartition('.')
        takers = [name for name, own in values.items() if bare in own and owner in ('', name)]
        if not takers:
            taken = ', '.join(f'--{name}.{h}' for name, own in values.items() for h in own)
            raise ValueError(
                f'--{key}={value}: --method={specification} takes no such hyper-parameter; '
                f'it takes {taken or "none"}.'
            )
        if len(takers) > 1:
            ways = ' or '.join(f'--{name}.{bare}' for name in takers)
            raise ValueError(
                f'--{key}={value}: several parts of --method={specification} take {bare}; '
                f'say which with {ways}.'
            )
        taker = takers[0]
        other = key_of.setdefault((taker, bare), key)
        if other != key:
            raise ValueError(
                f'--{other}={given[other]} and --{key}={value} are both {bare} of {taker}; '
                'leave one of them out.'
            )
        values[taker][bare] = value
    return parts


def build(parts: list[Part], *, switch_round: int | None = None) -> Method:
    """Make the method that the parts describe.

    Args:
      parts: from `resolve`.
      switch_round: the last round of the first of two methods that follow each other.

    Returns:
      The method; of several parts, their chain.

    Raises:
      ValueError: if a hyper-parameter is of a wrong type, not finite or out of range, or the
        parts do not combine.
    """
    made: tuple[list[Method], list[Method]] = [], []
    for name, values, phase in parts:
        try:
            for key, value in values.items():
                if not isinstance(value, jax.Array):  # traced numbers were checked as such
                    check_value(key, value, hyperparameters(name)[key].annotation)
            made[phase].append(METHODS[name](**values))
        except ValueError as error:
            raise ValueError(f'--method={name}: {error}') from error
    first, *second = (own[0] if len(own) == 1 else chain(*own) for own in made if own)
    if bool(second) != (switch_round is not None):
        raise ValueError(
            f'--switch_round={switch_round}: give the last round of the first method where two '
            'follow each other, as in --method=fedlmd_tf,fedlmd, and else leave it out.'
        )
    return switch(first, *second, rounds=switch_round) if switch_round is not None else first


def describe(name: str) -> tuple[str, str]:
    """A method's one-sentence description and its paper, from its docstring.

    Args:
      name: of the method.

    Returns:
      (description, reference), each in one line.
    """
    text = inspect.getdoc(METHODS[name]) or ''
    _, _, reference = text.partition('Reference:\n')
    return text.split('\n', 1)[0], ' '.join(reference.split())
