"""Modules of `flax.nnx` and `flax.linen`, and users' functions, as pairs of pure functions."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from jaxfed.models.masking import add_masks, real_examples
from jaxfed.types import Array, Model, Outputs, PyTree

MODE = ('mask', 'train', 'training', 'deterministic')  # optional arguments of a module's __call__


def as_model(build: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Turns an nnx module into a pair of pure functions.

    Args:
      build: random streams -> module. `module(x)` returns logits or `Outputs`. If its `__call__`
        declares them, it also receives `mask` [B], the real examples in training and None in
        evaluation, and the flags `train`, `training` and `deterministic`.

    Returns:
      The network.

    Raises:
      ValueError: if the module has variables other than parameters, batch statistics and random
        streams.
    """
    # Shapes only: the functions below must not keep a set of parameters in memory.
    module = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    add_masks(module)
    split: Any = nnx.split(module, nnx.Param, nnx.BatchStat, nnx.RngState, ...)
    graph, _, stat_shapes, stream_shapes, others = split
    if others:
        names = ', '.join('.'.join(map(str, path)) for path, _ in nnx.to_flat_state(others))
        raise ValueError(
            f'the network has other variables than nnx.Param and nnx.BatchStat: {names}; make '
            'them one of the two, or constants of the module.'
        )
    streams = nnx.to_pure_dict(stream_shapes)
    dropout = any(isinstance(layer, nnx.Dropout) for _, layer in nnx.iter_modules(module))
    call = type(module).__call__

    def init(key: Array) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

    def apply(
        params: PyTree,
        x: Array,
        stats: PyTree = (),
        mask: Array | None = None,
        key: Array | None = None,
    ) -> Outputs:
        if stat_shapes and not stats:
            raise ValueError('the network has batch statistics; call apply(params, x, stats).')
        stats = jax.tree.map(jnp.asarray, stats or {})
        module: Any = nnx.merge(graph, params, stats, _seed(streams, key))
        train = mask is not None
        module.set_attributes(
            deterministic=not train, use_running_average=not train, raise_if_not_found=False
        )
        with real_examples(mask):
            outputs = _as_outputs(module(x, **_mode(call, mask)))
        if mask is None or not stat_shapes:
            return outputs
        return outputs._replace(stats=nnx.to_pure_dict(nnx.state(module, nnx.BatchStat)))

    @jax.jit  # so that the compiler removes the parameters
    def initial_stats() -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(0)), nnx.BatchStat))

    stats = _mean_and_var(module, stat_shapes) if stat_shapes else ()
    if stats is None:
        stats = initial_stats()
    random = bool(streams) or dropout or _declares(call, MODE[1:])
    return Model(init, apply, stats, random, _declares(call, MODE[:1]))


def linen_model(module: linen.Module, inputs: jax.ShapeDtypeStruct) -> Model:
    """Turns a linen module into a pair of pure functions.

    Args:
      module: `__call__` declares and returns the same as that of `as_model`.
      inputs: shape and dtype of a batch.

    Returns:
      The network.

    Raises:
      ValueError: if the module has collections other than `params` and `batch_stats`.
    """
    call = type(module).__call__

    def variables(key: Array) -> dict[str, PyTree]:
        return dict(module.init(key, jnp.zeros(inputs.shape, inputs.dtype), **_mode(call, None)))

    others = jax.eval_shape(variables, jax.random.key(0)).keys() - {'params', 'batch_stats'}
    if others:
        raise ValueError(
            f'the network has other collections than params and batch_stats: '
            f'{", ".join(sorted(others))}.'
        )

    def apply(
        params: PyTree,
        x: Array,
        stats: PyTree = (),
        mask: Array | None = None,
        key: Array | None = None,
    ) -> Outputs:
        with real_examples(mask):
            result, new = module.apply(
                {'params': params, 'batch_stats': stats or {}},
                x,
                rngs=key,
                mutable=[] if mask is None else ['batch_stats'],
                **_mode(call, mask),
            )
        return _as_outputs(result)._replace(stats=new.get('batch_stats', ()))

    stats = jax.jit(lambda: variables(jax.random.key(0)).get('batch_stats', ()))()
    # A flag of training may make it draw random numbers.
    random, masked = _declares(call, MODE[1:]), _declares(call, MODE[:1])
    return Model(lambda key: variables(key)['params'], apply, stats, random, masked)


def pair_model(init: Callable[[Array], PyTree], apply: Callable[..., Any]) -> Model:
    """Makes a network of two pure functions.

    Args:
      init: random key -> params, any tree of float32 arrays.
      apply: (params, x [B, H, W, channels]) -> logits or `Outputs`.

    Returns:
      The network.
    """
    return Model(init, lambda params, x: _as_outputs(apply(params, x)))


def _mean_and_var(module: nnx.Module, shapes: Any) -> PyTree:
    """The initial statistics of batch normalisations; None if there are other statistics."""
    norms = [p for p, layer in nnx.iter_modules(module) if isinstance(layer, nnx.BatchNorm)]
    known = {(*path, name) for path in norms for name in ('mean', 'var')}
    if {path for path, _ in nnx.to_flat_state(shapes)} - known:
        return None
    shapes = nnx.to_pure_dict(shapes)
    return jax.tree.map_with_path(
        lambda path, leaf: jnp.full(leaf.shape, float(path[-1].key == 'var'), leaf.dtype), shapes
    )


def _mode(call: Callable, mask: Array | None) -> dict[str, Any]:
    """The flags of training and evaluation that `__call__` declares, with their values."""
    train = mask is not None
    values = dict(zip(MODE, (mask, train, train, not train), strict=True))
    declared = inspect.signature(call).parameters
    return {name: value for name, value in values.items() if name in declared}


def _declares(call: Callable, names: Sequence[str]) -> bool:
    """Whether `__call__` has a parameter with one of these names."""
    return not inspect.signature(call).parameters.keys().isdisjoint(names)


def _seed(streams: PyTree, key: Array | None) -> PyTree:
    """Random streams of these shapes, each with its own key; constant in evaluation."""
    if not streams:
        return {}
    key = jax.random.key(0) if key is None else key
    leaves, structure = jax.tree.flatten(streams)
    values = [
        jax.random.split(jax.random.fold_in(key, i), leaf.shape)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else jnp.zeros(leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, values)


def _as_outputs(result: Any) -> Outputs:
    """The result of a module; logits alone are their own features."""
    if isinstance(result, Outputs):
        return result
    if not isinstance(result, jax.Array):
        raise ValueError(
            'the network must return logits [B, C] or jaxfed.types.Outputs(logits, features), got '
            f'{type(result).__name__}.'
        )
    return Outputs(logits=result, features=result)
