"""The axis of lanes: one stacked array with `jax.vmap`, or lanes side by side in the program.

An accelerator needs the stack: one operation computes all lanes. On the CPU, XLA runs independent
operations on different cores. Unrolled lanes are independent; with a stack all cores wait for each
other after every operation.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfed.internal.backend import on_cpu
from jaxfed.types import Array, PyTree

Lanes = PyTree


class Stacking(NamedTuple):
    """How L values of one type are held, and how a function is mapped over them."""

    from_stack: Callable[[PyTree], Lanes]  # tree of arrays [L, ...] -> lanes
    map: Callable[..., Lanes]  # (function of one lane of each, one or several lanes)
    get: Callable[[Lanes, Array], PyTree]  # the value in lane i, traced
    put: Callable[[Lanes, Array, PyTree], Lanes]  # the lanes with another value in lane i


def row(tree: PyTree, i: Array | int) -> PyTree:
    """Entry i of every leaf's leading axis."""
    return jax.tree.map(lambda leaf: leaf[i], tree)


def set_row(tree: PyTree, i: Array | int, value: PyTree) -> PyTree:
    """The tree with `value` as entry i of every leaf's leading axis."""
    return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), tree, value)


def map_range(function: Callable[[Array | int], PyTree], count: int) -> PyTree:
    """The results for 0..count-1, stacked; the number is traced unless count is 1."""
    if count == 1:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(0))
    return jax.lax.map(function, jnp.arange(count))


def _unstack(stack: PyTree) -> list[PyTree]:
    return [row(stack, i) for i in range(len(jax.tree.leaves(stack)[0]))]


def _map(function: Callable[..., PyTree], *lanes: list[PyTree]) -> list[PyTree]:
    return list(map(jax.jit(function), *lanes))  # jit: traced once for all lanes


def _switch(lanes: list[PyTree], i: Array) -> PyTree:
    return jax.lax.switch(i, [lambda lanes, j=j: lanes[j] for j in range(len(lanes))], lanes)


def _select(lanes: list[PyTree], i: Array, value: PyTree) -> list[PyTree]:
    return [
        jax.tree.map(lambda old, new, replaced=(i == j): jnp.where(replaced, new, old), lane, value)
        for j, lane in enumerate(lanes)
    ]


STACKED = Stacking(
    from_stack=lambda stack: stack,
    map=lambda function, *lanes: jax.vmap(function)(*lanes),
    get=row,
    put=set_row,
)
UNROLLED = Stacking(from_stack=_unstack, map=_map, get=_switch, put=_select)


def stacking() -> Stacking:
    """`UNROLLED` on the CPU, `STACKED` elsewhere."""
    return UNROLLED if on_cpu() else STACKED
