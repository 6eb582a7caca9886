"""What a program computes, read from its jaxpr."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
from jax.extend.core import jaxprs_in_params

from jaxfed.methods.costs import size_of

LAYERS = ('conv_general_dilated', 'dot_general')


def products(jaxpr: Any) -> int:
    """Operations of the matrix products and convolutions of a program, a loop counted as one turn.

    XLA, too, counts one turn of a loop.
    """
    total = 0
    for equation in jaxpr.eqns:
        total += sum(map(products, jaxprs_in_params(equation.params)))
        if equation.primitive.name == 'dot_general':
            (contracted, _), _ = equation.params['dimension_numbers']
            sides = equation.invars[0].aval.shape
            terms = math.prod(sides[axis] for axis in contracted)
        elif equation.primitive.name == 'conv_general_dilated':
            kernel, (output, *_) = (
                equation.invars[1].aval.shape,
                equation.params['dimension_numbers'].rhs_spec,
            )
            terms = math.prod(kernel) // kernel[output]
        else:
            continue
        total += 2 * terms * equation.outvars[0].aval.size
    return total


def layer_bytes(jaxpr: Any) -> int:
    """Bytes of the results of the matrix products and convolutions of a program."""
    layers = [equation for equation in jaxpr.eqns if equation.primitive.name in LAYERS]
    inside = [inner for equation in jaxpr.eqns for inner in jaxprs_in_params(equation.params)]
    return sum(size_of([v.aval for v in layer.outvars]) for layer in layers) + sum(
        map(layer_bytes, inside)
    )


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """The `products` of each program that is lowered meanwhile, by the name of its function."""
    operations, lower = dict[str, int](), jax.stages.Traced.lower

    def count(traced: Any, **options: Any) -> Any:
        operations[traced.fun_name] = products(traced.jaxpr.jaxpr)
        return lower(traced, **options)

    # A compiled program has no jaxpr.
    with mock.patch.object(jax.stages.Traced, 'lower', count):
        yield operations
