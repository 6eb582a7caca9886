"""Operations: equal to lax in value and gradients, mapped over or not."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxfed.internal.backend import compiling_for
from jaxfed.models.ops import (
    LOWERINGS,
    conv_general_dilated,
    conv_max_pool,
    lowering,
    max_pool,
    recording_convolution,
)
from jaxfed.models.ops.chunks import sum_over_chunks
from jaxfed.models.ops.conv_pool import FEW

LAYOUT = ('NHWC', 'HWIO', 'NHWC')

# input, kernel, strides, padding
GEOMETRIES = [
    ((2, 8, 8, 3), (5, 5, 3, 4), (1, 1), 'SAME'),
    ((2, 8, 8, 3), (5, 5, 3, 4), (1, 1), 'VALID'),
    ((2, 8, 8, 4), (3, 3, 4, 5), (2, 2), 'SAME'),
    ((2, 7, 8, 4), (3, 3, 4, 5), (2, 2), ((1, 1), (1, 1))),
    ((2, 9, 8, 1), (3, 3, 1, 5), (2, 2), 'VALID'),
    ((3, 8, 6, 4), (1, 1, 4, 6), (1, 1), 'VALID'),
    ((3, 8, 7, 4), (1, 1, 4, 6), (2, 2), 'SAME'),
    ((1, 8, 8, 2), (2, 3, 2, 3), (1, 2), ((0, 2), (3, 1))),
    ((2, 11, 10, 2), (3, 2, 2, 3), (3, 3), 'VALID'),
    ((2, 6, 6, 5), (7, 7, 5, 2), (2, 2), ((3, 3), (3, 3))),
    ((2, 4, 4, 2), (4, 4, 2, 3), (1, 1), 'VALID'),
    ((2, 6, 6, 2), (1, 1, 2, 3), (1, 1), ((1, 2), (0, 1))),
]


@pytest.fixture(autouse=True, scope='module')
def optimised():
    """Compiles as users do, because the fast paths depend on what XLA makes of them."""
    jax.config.update('jax_disable_most_optimizations', False)
    yield
    jax.config.update('jax_disable_most_optimizations', True)


def both(strides, padding, use='unrolled'):
    """The fast convolution and the plain one, as functions of inputs and kernel."""

    def fast(x, w):
        return conv_general_dilated(x, w, strides, padding, dimension_numbers=LAYOUT, use=use)

    def plain(x, w):
        return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=LAYOUT)

    return fast, plain


def operands(shape, kernel, *leading, dtype=jnp.float32):
    """Random inputs and kernel, with leading axes as asked for each."""
    x_leading, w_leading = leading or ((), ())
    rng = np.random.default_rng(0)  # NumPy's, because JAX's compiles for every shape
    x, w = rng.standard_normal((*x_leading, *shape)), rng.standard_normal((*w_leading, *kernel))
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype)


def value_and_gradients(function, x, w):
    """The value, and the gradients for a cotangent that differs everywhere."""

    def run(x, w):
        y, vjp = jax.vjp(function, x, w)
        cotangent = np.sin(np.arange(y.size)).reshape(y.shape)
        return y, vjp(jnp.asarray(cotangent, y.dtype))

    return jax.jit(run)(x, w)


def assert_equal(fast, plain, x, w, *, atol=2e-4):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=1e-4),
        value_and_gradients(fast, x, w),
        value_and_gradients(plain, x, w),
    )


FAST = ['unrolled', 'patches', 'fourier']


@pytest.mark.parametrize('use', FAST)
@pytest.mark.parametrize(('shape', 'kernel', 'strides', 'padding'), GEOMETRIES)
def test_value_and_gradients(shape, kernel, strides, padding, use):
    assert_equal(*both(strides, padding, use), *operands(shape, kernel))


# No example, no result, negative padding.
EDGES = [
    ((0, 8, 8, 3), (3, 3, 3, 4), 'SAME'),
    ((0, 8, 8, 8), (1, 1, 8, 4), 'SAME'),
    ((2, 2, 2, 3), (3, 3, 3, 4), 'VALID'),
    ((2, 8, 8, 3), (3, 3, 3, 4), ((-1, 0), (0, 0))),
    ((2, 8, 8, 8), (1, 1, 8, 4), ((-1, -1), (0, 0))),
]


@pytest.mark.parametrize('use', [None, 'patches'])
@pytest.mark.parametrize(('shape', 'kernel', 'padding'), EDGES)
def test_edges(shape, kernel, padding, use):
    assert_equal(*both((1, 1), padding, use), *operands(shape, kernel))


# The mapped axes of inputs and kernel; None is shared.
MAPPED = {'inputs': (0, None), 'kernels': (None, 0), 'both': (0, 0), 'moved': (1, 3)}


@pytest.mark.parametrize('use', FAST)
@pytest.mark.parametrize('mapped', MAPPED)
@pytest.mark.parametrize(('shape', 'kernel', 'strides', 'padding'), [GEOMETRIES[0], GEOMETRIES[3]])
def test_mapped_over(mapped, shape, kernel, strides, padding, use):
    in_axes = MAPPED[mapped]
    x, w = operands(shape, kernel, *(() if axis is None else (3,) for axis in in_axes))
    x = x if in_axes[0] is None else jnp.moveaxis(x, 0, in_axes[0])
    w = w if in_axes[1] is None else jnp.moveaxis(w, 0, in_axes[1])
    functions = both(strides, padding, use)
    fast, plain = (jax.vmap(function, in_axes=in_axes) for function in functions)
    assert_equal(fast, plain, x, w)


@pytest.mark.parametrize(
    ('outer', 'inner'),
    [
        ((0, 0), (0, 0)),
        ((0, 0), (0, None)),
        ((0, None), (0, 0)),
        ((None, 0), (0, None)),
        ((0, None), (None, 0)),
        ((None, 0), (None, 0)),
        ((0, None), (0, None)),
    ],
)
def test_mapped_over_twice(outer, inner):
    shape, kernel, strides, padding = GEOMETRIES[2]
    leading = [
        tuple(size for size, axis in ((2, outer[i]), (3, inner[i])) if axis == 0) for i in range(2)
    ]
    x, w = operands(shape, kernel, *leading)
    fast, plain = (
        jax.vmap(jax.vmap(function, in_axes=inner), in_axes=outer)
        for function in both(strides, padding)
    )
    assert_equal(fast, plain, x, w)


def test_gradient_of_each_example_alone():
    shape, kernel, strides, padding = GEOMETRIES[0]
    x, w = operands(shape, kernel, (4,), ())
    fast, plain = (
        jax.jit(jax.vmap(jax.grad(lambda w, x, f=f: jnp.sum(f(x, w) ** 2)), (None, 0)))(w, x)
        for f in both(strides, padding)
    )
    np.testing.assert_allclose(fast, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize('use', FAST)
@pytest.mark.parametrize(('shape', 'kernel', 'strides', 'padding'), GEOMETRIES[1:3])
def test_second_derivatives(shape, kernel, strides, padding, use):
    x, w = operands(shape, kernel)
    directions = operands(shape, kernel)[::-1]

    def curvature(function):
        def along(x, w):
            gradients = jax.grad(lambda x, w: jnp.sum(function(x, w) ** 3), argnums=(0, 1))(x, w)
            return sum(jnp.vdot(g, d) for g, d in zip(gradients, directions[::-1], strict=True))

        return jax.jit(jax.grad(along, argnums=(0, 1)))(x, w)

    fast, plain = (curvature(function) for function in both(strides, padding, use))
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())


@pytest.mark.parametrize('loop', ['scan', 'fori_loop'])
def test_inside_a_loop_over_steps(loop):
    shape, kernel, strides, padding = GEOMETRIES[0]
    x, w = operands(shape, kernel, (3,), (3,))

    def train(function):
        def step(w):
            grad = jax.grad(lambda w, x: jnp.mean(function(x, w) ** 2))
            return w - 0.01 * jax.vmap(grad)(w, x)

        if loop == 'scan':
            return jax.jit(lambda w: lax.scan(lambda w, _: (step(w), None), w, length=4)[0])(w)
        return jax.jit(lambda w: lax.fori_loop(0, 4, lambda _, w: step(w), w))(w)

    fast, plain = (train(function) for function in both(strides, padding))
    assert not np.allclose(fast, w, atol=1e-3)
    np.testing.assert_allclose(fast, plain, atol=1e-4)


@pytest.mark.parametrize('use', FAST)
def test_bfloat16(use):
    shape, kernel, strides, padding = GEOMETRIES[0]
    x, w = operands(shape, kernel, (2,), (2,), dtype=jnp.bfloat16)
    fast, plain = (jax.vmap(function) for function in both(strides, padding, use))
    y, gradients = value_and_gradients(fast, x, w)
    assert {leaf.dtype for leaf in jax.tree.leaves((y, gradients))} == {jnp.dtype(jnp.bfloat16)}
    exact = value_and_gradients(plain, x.astype(jnp.float32), w.astype(jnp.float32))
    for a, b in zip(jax.tree.leaves((y, gradients)), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.04 * np.abs(b).max())


@pytest.mark.parametrize(
    'options',
    [
        {'rhs_dilation': (2, 2)},
        {'lhs_dilation': (2, 1)},
        {'feature_group_count': 2},
        {'batch_group_count': 2},
        {'dimension_numbers': ('NCHW', 'HWIO', 'NHWC')},
        {'preferred_element_type': jnp.float32},
    ],
)
def test_the_fast_path_falls_back_to_lax(options):
    options = {'dimension_numbers': LAYOUT, **options}
    width = 3 if 'feature_group_count' in options else 6
    x, w = operands((2, 6, 6, 6), (3, 3, width, 4))
    args = (x, w, (1, 1), ((1, 1), (1, 1)))
    fast = conv_general_dilated(*args, **options, use='unrolled')
    plain = lax.conv_general_dilated(*args, **options)
    np.testing.assert_array_equal(fast, plain)


def test_one_dimensional_convolution_is_plain():
    x, w = jnp.arange(8.0).reshape(1, 8, 1), jnp.ones((3, 1, 1))
    y = conv_general_dilated(
        x, w, (1,), 'VALID', dimension_numbers=('NWC', 'WIO', 'NWC'), use='unrolled'
    )
    np.testing.assert_array_equal(y[0, :, 0], [3, 6, 9, 12, 15, 18])


def primitives(jaxpr):
    """The parameters of every convolution in a program, subprograms included."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive is lax.conv_general_dilated_p:
            found.append(equation.params)
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: hasattr(v, 'jaxpr')
        ):
            if hasattr(value, 'jaxpr'):
                found += primitives(value.jaxpr)
    return found


def test_every_convolution_of_a_mapped_gradient_has_the_fast_layout():
    x, w = operands((2, 6, 6, 4), (3, 3, 4, 4), (3,), (3,))
    fast, plain = both((1, 1), 'SAME')

    def convolutions(function):
        traced = jax.make_jaxpr(lambda x, w: value_and_gradients(jax.vmap(function), x, w))
        return primitives(traced(x, w).jaxpr)

    layout = lax.conv_dimension_numbers((1, 1, 1, 1), (1, 1, 1, 1), LAYOUT)
    assert len(convolutions(fast)) == 2 * 3  # value and dx for three kernels; dw is products
    for params in convolutions(fast):
        assert params['dimension_numbers'] == layout
        assert params['feature_group_count'] == params['batch_group_count'] == 1
    assert any(params['feature_group_count'] > 1 for params in convolutions(plain))


def test_the_weight_gradient_is_one_product_where_that_is_cheaper():
    # 8 rows and as many output as input channels: x and g both shifted; else a product a row.
    for shape, kernel, number in [((2, 8, 9, 4), (3, 3, 4, 4), 1), ((2, 8, 9, 1), (3, 3, 1, 8), 3)]:
        fast, plain = both((1, 1), 'SAME')
        x, w = operands(shape, kernel)
        assert_equal(fast, plain, x, w)
        traced = jax.make_jaxpr(jax.grad(lambda w, x=x, fast=fast: fast(x, w).sum()))(w)
        assert str(traced).count('dot_general') == number


# A thousand places at a time: two turns and a rest, or two turns, or one image a turn.
CHUNKED = [
    ((5, 23, 22, 2), (3, 3, 2, 3), (1, 1), 1),
    ((4, 23, 22, 2), (1, 1, 2, 3), (1, 1), 1),
    ((5, 46, 44, 2), (1, 1, 2, 3), (2, 2), 1),
    ((5, 46, 44, 2), (3, 3, 2, 3), (2, 2), 1),
    ((5, 23, 22, 3), (3, 3, 1, 3), (1, 1), 3),
    ((2, 32, 32, 3), (3, 3, 1, 3), (1, 1), 3),
]


@pytest.mark.parametrize(('shape', 'kernel', 'strides', 'groups'), CHUNKED)
def test_weight_gradient_of_many_places(shape, kernel, strides, groups):
    edge = (kernel[0] - 1) // 2
    options = {'dimension_numbers': LAYOUT, 'feature_group_count': groups}
    arguments = (strides, ((edge, edge), (edge, edge)))

    def fast(x, w):
        return conv_general_dilated(x, w, *arguments, **options, use='unrolled')

    def plain(x, w):
        return lax.conv_general_dilated(x, w, *arguments, **options)

    assert_equal(fast, plain, *operands(shape, kernel), atol=2e-3)


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
@pytest.mark.parametrize('batch', [1, 4, 5])
def test_chunks_equal_the_whole(batch, platform):
    x = np.random.default_rng(0).standard_normal((batch, 4), np.float32)
    y = np.arange(batch, dtype=np.float32)
    pixels = 512  # two examples at a time
    product = functools.partial(sum_over_chunks, lambda x, y: x.T @ y, pixels=pixels)
    with compiling_for(platform):
        total, loops = product(x, y), str(jax.make_jaxpr(product)(x, y))
    np.testing.assert_allclose(total, x.T @ y, rtol=1e-5, atol=1e-6)
    assert ('scan' in loops or 'while' in loops) == (batch > 1 and platform == 'cpu')


def test_chunks_of_bfloat16_are_added_up_in_float32():
    x = jnp.ones((600, 1), jnp.bfloat16)  # adding 1 to 256 changes nothing in bfloat16
    total = sum_over_chunks(lambda x: x.sum(0), x, pixels=1024)
    assert total.dtype == jnp.bfloat16
    np.testing.assert_array_equal(total, jnp.full(1, 600, jnp.bfloat16))


def test_lowering_by_platform_and_shape():
    cnn = [((32, 32), (5, 5, 3, 32)), ((16, 16), (5, 5, 32, 64))]
    assert [lowering(*shapes, pooled=True) for shapes in cnn] == [
        'blocks',
        'fourier',
    ]
    assert lowering((32, 32), (3, 3, 64, 64)) == 'unrolled'
    assert lowering((32, 32), (3, 3, 64, 128), (2, 2)) == 'unrolled'
    assert lowering((32, 32), (1, 1, 64, 256)) == 'patches'
    assert lowering((32, 32), (1, 1, 64, 128), (2, 2)) == 'patches'
    assert lowering((32, 32), (3, 3, 3, 16)) == 'unrolled'
    assert lowering((16, 16), (3, 3, 32, 32)) == 'fourier'
    assert lowering((8, 8), (3, 3, 128, 256)) == 'fourier'
    assert lowering((8, 8), (3, 3, 256, 256)) == 'unrolled'
    assert lowering((2, 2), (3, 3, 512, 512)) == 'patches'
    assert lowering((30, 30), (3, 3, 32, 64), batch=32, pooled=True) == 'fourier'
    assert lowering((30, 30), (3, 3, 32, 64), batch=31, pooled=True) == 'unrolled'
    with compiling_for('gpu'):
        assert [lowering(*shapes, pooled=True) for shapes in cnn] == ['blocks', 'blocks']
        assert lowering((28, 28), (5, 5, 6, 16), pooled=True) == 'blocks'
        assert lowering(*cnn[1]) == 'grouped'
        for kernel in ((3, 3), (5, 3), (3, 5), (7, 7)):  # not measured
            assert lowering((16, 16), (*kernel, 32, 64), pooled=True) == 'grouped'
    with compiling_for('tpu'):
        assert lowering(*cnn[0], pooled=True) == 'grouped'


def test_unknown_lowering_is_refused():
    x, w = operands(*GEOMETRIES[0][:2])
    with pytest.raises(ValueError, match=r"use must be .* got 'winograd'"):
        conv_general_dilated(x, w, (1, 1), 'SAME', dimension_numbers=LAYOUT, use='winograd')
    with pytest.raises(ValueError, match=r"use must be .* got 'winograd'"):
        conv_max_pool(x, w, 'SAME', use='winograd')


# input, kernel, padding: even and odd sides, kernels larger than the image, negative last pads
POOLED = [
    ((2, 8, 8, 3), (5, 5, 3, 4), 'SAME'),
    ((2, 9, 12, 3), (5, 5, 3, 4), 'VALID'),
    ((2, 7, 8, 2), (3, 3, 2, 3), ((1, 1), (0, 1))),
    ((2, 4, 4, 2), (5, 5, 2, 3), 'SAME'),
    ((1, 6, 9, 2), (2, 4, 2, 3), ((0, 2), (3, 1))),
    ((2, 8, 6, 5), (1, 1, 5, 2), 'VALID'),
    ((2, 9, 8, 1), (5, 5, 1, 3), 'SAME'),  # blocks of 2x2 pixels, like the next
    ((2, 7, 8, 2), (5, 5, 2, FEW + 1), 'VALID'),
]


def pooled(padding, use):
    def fast(x, w):
        return conv_max_pool(x, w, padding, use=use)

    def plain(x, w):
        return max_pool(lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=LAYOUT))

    return fast, plain


def test_blocks_of_no_example():
    assert_equal(*pooled('SAME', 'blocks'), *operands((0, 8, 8, 3), (5, 5, 3, 4)))


@pytest.mark.parametrize('use', LOWERINGS)
@pytest.mark.parametrize(('shape', 'kernel', 'padding'), POOLED)
def test_convolution_with_max_pool(shape, kernel, padding, use):
    assert_equal(*pooled(padding, use), *operands(shape, kernel))


@pytest.mark.parametrize('use', LOWERINGS)
def test_convolution_with_max_pool_mapped_over(use):
    shape, kernel, padding = POOLED[0]
    fast, plain = (jax.vmap(function) for function in pooled(padding, use))
    assert_equal(fast, plain, *operands(shape, kernel, (3,), (3,)))


@pytest.mark.slow
@pytest.mark.parametrize('use', LOWERINGS)
def test_the_first_of_equal_maxima_of_a_convolution_gets_the_gradient(use):
    # The kernel copies the only channel of the image, whose window maxima are equal on purpose.
    x = jnp.array([[0.0, 5.0, 2.0, 2.0], [5.0, 5.0, 2.0, 2.0]]).reshape(1, 2, 4, 1)
    w = jnp.ones((1, 1, 1, 1))
    if use == 'fourier':  # rounds each value on its own, so that only exact zeros are equal
        x = jnp.zeros_like(x)
    gradient = jax.grad(lambda x: conv_max_pool(x, w, 'VALID', use=use).sum())(x)
    expected = [[1, 0, 1, 0], [0, 0, 0, 0]] if use == 'fourier' else [[0, 1, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(gradient[0, :, :, 0], expected, atol=1e-6)


def test_blocks_and_the_gradient_of_their_maxima_pass_barriers():
    # Otherwise a GPU fuses them into slow kernels.
    x, w = operands((2, 8, 8, 3), (5, 5, 3, 16))
    gradient = jax.grad(lambda w: conv_max_pool(x, w, 'SAME', use='blocks').sum())
    text = str(jax.make_jaxpr(gradient)(w))
    shapes = re.findall(r'f32\[([\d,]+)\] = optimization_barrier', text)
    assert shapes.count('2,6,6,12') == shapes.count('2,4,4,16') == 1


def test_convolution_with_max_pool_of_less_than_a_window_is_refused():
    with pytest.raises(ValueError, match=r'1 x 4, which is smaller'):
        conv_max_pool(jnp.zeros((1, 3, 6, 2)), jnp.zeros((3, 3, 2, 2)), 'VALID')


def plain_max_pool(x, size):
    window = (1, size, size, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, 'VALID')


@pytest.mark.parametrize(
    ('shape', 'size'), [((2, 4, 6, 3), 2), ((1, 7, 5, 2), 2), ((2, 9, 8, 1), 3), ((1, 3, 3, 2), 1)]
)
def test_max_pool_value_and_gradient(shape, size):
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    g = np.random.default_rng(1).standard_normal(
        (shape[0], shape[1] // size, shape[2] // size, shape[3]), np.float32
    )

    def run(function):
        def value_and_gradient(x, g):
            y, vjp = jax.vjp(lambda x: function(x, size), x)
            return y, vjp(g)[0]

        return jax.jit(value_and_gradient)(x, g)

    for got, expected in zip(run(max_pool), run(plain_max_pool), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_max_pool_gives_the_gradient_of_equal_maxima_to_the_first():
    # PyTorch: max_pool2d of this input, backward of ones, gives this gradient.
    x = jnp.array([[0.0, 5.0, 2.0, 2.0], [5.0, 5.0, 2.0, 2.0]]).reshape(1, 2, 4, 1)
    gradient = jax.grad(lambda x: max_pool(x).sum())(x)
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 1, 1, 0], [0, 0, 0, 0]])


def test_max_pool_mapped_over_in_bfloat16():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, 5, 4, 2)), jnp.bfloat16)
    gradient = jax.jit(jax.vmap(jax.grad(lambda x: max_pool(x).sum())))(x)
    assert gradient.dtype == jnp.bfloat16
    plain = jax.jit(jax.vmap(jax.grad(lambda x: plain_max_pool(x, 2).sum())))
    expected = plain(x.astype(jnp.float32))
    np.testing.assert_array_equal(gradient.astype(jnp.float32), expected)


def test_max_pool_of_less_than_a_window_is_refused():
    with pytest.raises(ValueError, match=r'\(1, 1, 4, 2\).*size=2'):
        max_pool(jnp.zeros((1, 1, 4, 2)))
    with pytest.raises(ValueError, match=r'\(4, 4\)'):
        max_pool(jnp.zeros((4, 4)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ('shape', 'kernel', 'strides', 'padding'),
    [
        ((2, 8, 7, 6), (3, 3, 1, 6), (1, 1), ((1, 1), (1, 1))),
        ((2, 7, 8, 6), (3, 3, 1, 6), (2, 2), ((1, 1), (1, 1))),
        ((1, 2, 2, 4), (3, 3, 1, 4), (2, 2), 'SAME'),
        ((2, 9, 6, 3), (5, 2, 1, 3), (1, 3), 'VALID'),
    ],
)
def test_depthwise_convolution(shape, kernel, strides, padding):
    def function(convolve):
        return lambda x, w: convolve(
            x, w, strides, padding, dimension_numbers=LAYOUT, feature_group_count=shape[3]
        )

    fast, plain = function(conv_general_dilated), function(lax.conv_general_dilated)
    assert_equal(fast, plain, *operands(shape, kernel))
    mapped = operands(shape, kernel, (3,), (3,))
    assert_equal(jax.vmap(fast), jax.vmap(plain), *mapped)
    assert 'conv_general' not in str(jax.make_jaxpr(fast)(*operands(shape, kernel)))


def test_convolutions_of_signals_are_recorded():
    operations, lowerings = recording_convolution()
    x, w = np.ones((2, 16, 3), np.float32), np.ones((5, 3, 4), np.float32)
    y = operations.conv_general_dilated(x, w, (1,), 'SAME', dimension_numbers=('NHC', 'HIO', 'NHC'))
    assert y.shape == (2, 16, 4)
    assert lowerings == {'5, 3 to 4 on 16': 'grouped'}
