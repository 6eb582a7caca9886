"""Checks the values that the hooks of a method return.

The checks read shapes and types while JAX traces the hooks; compiled programs do not change.
"""

import contextlib
import functools
import inspect
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.types import Array, Model, PyTree

# Field of a view -> the hook that sets it.
_SOURCES = {
    'state': 'init', 'static': 'prepare', 'shared': 'share', 'begun': 'begin', 'uploads': 'finish',
}  # fmt: skip
_ARRAY = (jax.Array, np.ndarray, np.number, np.bool_, int, float, complex)


def check_hooks(method: Any) -> Any:
    """A `Method` whose hooks raise a ValueError if they return values of a wrong form."""
    hooks = {name: hook for name, hook in method._asdict().items() if callable(hook)}
    method = method._replace(
        **{name: _in_float32(_located(name, hook)) for name, hook in hooks.items()}
    )

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        value = method.init(params, stats)
        server, client = _pair('init', 'server state', 'state of one client', value)
        return _tree('init', server), _tree('init', client)

    def weigh(cohort: Any) -> Array:
        shape = jnp.shape(cohort.weights)
        return _array('weigh', 'one weight for each client', shape, method.weigh(cohort))

    def receive(client: Any) -> tuple[PyTree, PyTree]:
        params, stats = _pair('receive', 'parameters', 'statistics', method.receive(client))
        _check_form('receive', 'the parameters', 'the global ones', params, client.params)
        _check_form('receive', 'the statistics', 'the global ones', stats, client.stats)
        return params, stats

    def supervised(view: Any) -> Array:
        shape = jnp.shape(view.batch.y)
        return _array('supervised', 'one loss for each example', shape, method.supervised(view))

    def penalty(view: Any) -> Array:
        role = 'one number, for instance view.mean(values)'
        return _array('penalty', role, (), method.penalty(view))

    def trainable(view: Any) -> PyTree:
        mask, flag = method.trainable(view), jnp.bool_(True)
        like = jax.tree.map(lambda _: flag, view.params)
        _check_form('trainable', 'a bool for each array', 'the parameters', mask, like)
        return mask

    def send(client: Any) -> PyTree:
        update = method.send(client)
        _check_form('send', 'the update', 'the parameters', update, client.params, cast=True)
        return update

    def combine(view: Any) -> PyTree:
        update, like = method.combine(view), jax.tree.map(lambda leaf: leaf[0], view.updates)
        _check_form('combine', 'the update', 'the parameters', update, like, cast=True)
        return update

    def finish(client: Any) -> tuple[PyTree, PyTree]:
        state, upload = _pair('finish', 'client state', 'upload', method.finish(client))
        _check_form('finish', 'the client state', 'init', state, client.state)
        if not jax.tree.leaves(_tree('finish', upload)):
            return state, upload
        if method.privacy is not None:
            raise _error('finish', 'no upload, (): noise hides the update only', upload)
        # A combination could change the update but not the upload; delayed ones have the changes.
        if not (method.uploads or method.delays):
            raise _error('finish', 'no upload, (), unless Method has uploads=True', upload)
        return state, upload

    def merge(view: Any) -> tuple[PyTree, PyTree]:
        update, state = _pair('merge', 'update', 'server state', method.merge(view))
        _check_form('merge', 'the update', 'the parameters', update, view.params, cast=True)
        _check_form('merge', 'the server state', 'init', state, view.state)
        return update, state

    checked = method._replace(
        init=init,
        prepare=lambda info: _tree('prepare', method.prepare(info)),
        share=lambda server: _tree('share', method.share(server)),
        weigh=weigh,
        receive=receive if method.receive else None,
        begin=lambda client: _tree('begin', method.begin(client)),
        supervised=supervised,
        penalty=penalty,
        trainable=trainable if method.trainable else None,
        send=send,
        finish=finish,
        combine=combine if method.combine else None,
        sent=lambda upload: _tree('sent', method.sent(upload)),
        merge=merge,
        **_outside_rounds(method),
    )
    return checked._replace(
        **{name: _defined(name, hook, getattr(checked, name)) for name, hook in hooks.items()}
    )


def _outside_rounds(method: Any) -> dict[str, Any]:
    """The checked hooks that run outside of a round."""

    def personal(params: PyTree) -> PyTree:
        value = method.personal(params)
        _check_form('personal', 'parameters', 'the given ones', value, params)
        return value

    def own(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        value = _pair(
            'own', 'bools for parameters', 'bools for statistics', method.own(params, stats)
        )
        flag = jnp.bool_(True)
        for mask, tree in zip(value, (params, stats), strict=True):
            like = jax.tree.map(lambda _: flag, tree)
            _check_form('own', 'a bool for each array', 'the parameters and statistics', mask, like)
        return value

    def message_size(update: Any, size: Any) -> Any:
        value = method.message_size(update, size)
        if not isinstance(value, type(size)):
            raise _error('message_size', 'a jaxfed.methods.method.MessageSize', value)
        return value

    def adapt(model: Model) -> Model:
        adapted = method.adapt(model)
        if not isinstance(adapted, Model):
            raise _error('adapt', 'a jaxfed.types.Model', adapted)
        if method.privacy is not None and adapted.stats:
            raise ValueError(
                'noise for privacy, as of dp, needs a network without batch statistics, which are '
                'averaged without clipping and noise; choose one, as --model=cnn.'
            )
        return adapted

    return {
        'adapt': adapt,
        'personal': personal if method.personal else None,
        'own': own if method.own else None,
        'message_size': message_size,
    }


def _in_float32(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook whose products of matrices have the digits of float32; the network sets its own."""

    @functools.wraps(hook)
    def precise(*arguments: Any) -> Any:
        with jax.default_matmul_precision('float32'):  # GPUs and TPUs have fewer by default
            return hook(*arguments)

    return precise


def _code(function: Callable[..., Any]) -> types.CodeType | None:
    """The code of a function of another package than jaxfed."""
    if (function.__module__ or '').partition('.')[0] == 'jaxfed':
        return None
    return getattr(inspect.unwrap(function), '__code__', None)


def _defined(
    hook: str, function: Callable[..., Any], checked: Callable[..., Any]
) -> Callable[..., Any]:
    """A checked hook whose errors name the place of the function that another package defines."""
    if (code := _code(function)) is None:
        return checked
    place = f'{hook} ({Path(code.co_filename).name}, line {code.co_firstlineno})'

    def defined(*arguments: Any) -> Any:
        try:
            return checked(*arguments)
        except ValueError as error:
            rest = str(error).removeprefix(f'Method.{hook} must')
            if rest == str(error):
                raise
            raise ValueError(f'Method.{place} must{rest}') from error

    return defined


def _located(hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of another package, whose ValueErrors name the hook and its line.

    Errors of other types get this place as a note, because a sweep handles them by type.
    """
    if (code := _code(function)) is None:
        return function

    @functools.wraps(function)
    def located(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            lines = traceback.extract_tb(error.__traceback__)
            own = [line for line in lines if line.filename == code.co_filename]
            number, source = (own[-1].lineno, own[-1].line or '') if own else ('unknown', '')
            unset = _unset(arguments[0], source)
            place = f'Method.{hook} ({Path(code.co_filename).name}, line {number}{unset})'
            if not isinstance(error, ValueError):
                error.add_note(place)
                raise
            text = ' '.join(str(error).split())
            raise ValueError(f'{place}: {text}') from error

    return located


def _unset(view: Any, source: str) -> str:
    """The field of a view that a line of code reads, if the method does not set it, in words."""
    if '.auxiliary' in source and getattr(view, 'auxiliary', ()) is None:
        return '; auxiliary is None without Method(auxiliary=EXAMPLES_PER_CLASS)'
    for field, hook in _SOURCES.items():
        value = getattr(view, field, None)
        if f'.{field}' in source and isinstance(value, tuple) and not value:
            return f'; {field} is () without Method.{hook}'
    return ''


class HookTypeError(ValueError, TypeError):
    """A TypeError of a hook; from a traced number, a sweep tries constants instead."""


@contextlib.contextmanager
def hook_errors() -> Iterator[None]:
    """Replace an error of a hook by a ValueError in one line."""
    try:
        yield
    except Exception as error:
        if explained := _explain(error):
            raise explained from error
        raise


def _explain(error: Exception) -> ValueError | None:
    """An error of a hook in one line; None for other errors."""
    places = [note for note in getattr(error, '__notes__', ()) if note.startswith('Method.')]
    if not places:
        return None
    text = ' '.join(str(error).partition('\n')[0].split())
    advice = ''
    if isinstance(error, jax.errors.JAXTypeError):
        advice = ' Use jax.numpy for numpy, jax.numpy.where for if, and no float() or bool().'
    kind = HookTypeError if isinstance(error, TypeError) else ValueError
    return kind(f'{places[0]}: {type(error).__name__}: {text.rstrip(".")}.{advice}')


def _error(hook: str, form: str, value: Any) -> ValueError:
    return ValueError(f'Method.{hook} must return {form}, got {_describe(value)}.')


def _describe(value: Any) -> str:
    """A value in words: 'float32[50, 10]', 'None', 'a tuple of length 3', 'a dict'."""
    if value is None:
        return 'None'
    if isinstance(value, _ARRAY):
        return f'{jnp.result_type(value)}{list(jnp.shape(value))}'
    length = f' of length {len(value)}' if isinstance(value, tuple | list) else ''
    name = type(value).__name__
    return f'{"an" if name[0] in "aeiou" else "a"} {name}{length}'


def _pair(hook: str, first: str, second: str, value: Any) -> tuple[PyTree, PyTree]:
    """The value, if it is a tuple of two."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise _error(hook, f'a tuple ({first}, {second})', value)
    return value[0], value[1]


def _array(hook: str, role: str, shape: tuple[int, ...], value: Any) -> Any:
    """The value, if it is an array of this shape."""
    if not isinstance(value, _ARRAY) or jnp.shape(value) != shape:
        raise _error(hook, f'{role}, shape {list(shape)}' if shape else role, value)
    return value


def _tree(hook: str, value: PyTree) -> PyTree:
    """The value, if it is a tree of arrays."""
    for leaf in jax.tree.leaves(value):
        if not isinstance(leaf, _ARRAY):
            raise _error(hook, 'arrays in tuples, lists or dicts', leaf)
    return value


def _check_form(
    hook: str, role: str, origin: str, value: PyTree, like: PyTree, *, cast: bool = False
) -> None:
    """Checks structure, shapes and, unless the engine casts, types against those of `like`."""
    rule = f'Method.{hook} must return {role} in the form of {origin}'
    _check_same(rule, _tree(hook, value), like, lambda old: cast)


def check_carry(carry: PyTree, initial: PyTree) -> None:
    """Checks what the function of `client.fold` returns; the loop casts numbers of Python."""
    rule = 'the function of client.fold must return the carry in the form of initial'
    _check_same(rule, carry, initial, lambda old: jax.typeof(old).weak_type)


def _check_same(rule: str, value: PyTree, like: PyTree, casts: Callable[[Any], bool]) -> None:
    """Compares two trees of arrays; `casts` says for which of `like` another type is valid."""

    def check(same: bool, place: str, expected: Any, found: Any) -> None:
        if not same:
            raise ValueError(f'{rule}: {expected}{place}, got {found}.')

    expected, found = _by_path(like), _by_path(value)
    for path in {**expected, **found}:
        place = f' at {path}' if path else ''
        check(path in found, place, _describe(expected.get(path)), 'nothing')
        check(path in expected, place, 'nothing', _describe(found[path]))
        old, new = expected[path], found[path]
        same_type = casts(old) or jnp.result_type(new, old) == jnp.result_type(old)
        same = same_type and jnp.shape(new) == jnp.shape(old)
        check(same, place, _describe(old), _describe(new))
    structure: Any = jax.tree.structure(like)
    check(structure == jax.tree.structure(value), '', structure, jax.tree.structure(value))


def _by_path(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as "['kernel']"."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in paths}
