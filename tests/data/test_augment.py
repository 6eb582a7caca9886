"""Augmentation on the device against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.data.augment import (
    check_augment,
    crop,
    cutout,
    flip,
    make_augment,
    normalise,
    parse_augment,
)

MEAN, STD = np.array([100.0, 50.0]), np.array([20.0, 10.0])


def images(batch=6, side=20):
    return np.random.default_rng(0).integers(0, 256, (batch, side, side, 2)).astype(np.uint8)


def test_normalise_by_hand():
    x = jnp.array([[[[120, 50]]]], jnp.uint8)
    assert normalise(x, MEAN, STD).tolist() == [[[[1.0, 0.0]]]]


def test_crop_equals_numpy():
    raw = images()
    row, column = np.array([0, 4, 8, 1, 7, 3]), np.array([8, 4, 0, 2, 5, 6])
    padded = np.pad(raw, ((0, 0), (4, 4), (4, 4), (0, 0)))
    want = [p[r : r + 20, c : c + 20] for p, r, c in zip(padded, row, column, strict=True)]
    got = crop(jnp.asarray(raw), jnp.asarray(row), jnp.asarray(column))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got[1], raw[1])  # an offset of 4 leaves the image in place


def test_flip_equals_numpy():
    raw = images()
    chosen = np.array([True, False, True, True, False, False])
    got = flip(jnp.asarray(raw), jnp.asarray(chosen))
    np.testing.assert_array_equal(got, np.where(chosen[:, None, None, None], raw[:, :, ::-1], raw))


def test_cutout_by_hand():
    x = jnp.ones((3, 20, 20, 1))
    got = np.asarray(cutout(x, jnp.array([10, 0, 19]), jnp.array([10, 0, 10])))
    # Centre 10: rows 2..17. Centre 0: rows 0..7. Centre 19: rows 11..19.
    assert [int((image == 0).sum()) for image in got] == [256, 64, 9 * 16]
    assert (got[1, :8, :8] == 0).all()
    assert (got[2, 11:, 2:18] == 0).all()


def test_no_augmentation_is_normalisation_only():
    raw = jnp.asarray(images())
    augment = make_augment((), mean=MEAN, std=STD)
    np.testing.assert_array_equal(augment(jax.random.key(0), raw), normalise(raw, MEAN, STD))


def test_black_is_padded_before_normalisation():
    raw = jnp.full((64, 8, 8, 2), 200, jnp.uint8)
    augment = make_augment(('crop',), mean=MEAN, std=STD)
    values = np.unique(np.asarray(augment(jax.random.key(0), raw))[..., 0])
    assert values.tolist() == [-5.0, 5.0]  # (0 - 100) / 20 and (200 - 100) / 20


def test_reflect_crop_mirrors_the_image():
    raw = np.arange(2 * 6 * 7).reshape(2, 6, 7, 1)
    row, column = np.array([0, 8]), np.array([3, 4])
    got = crop(jnp.asarray(raw), jnp.asarray(row), jnp.asarray(column), 'reflect')
    # Four rows above row 0 are rows 4, 3, 2, 1; below row 5 come rows 4, 3, 2, 1.
    rows, columns = [[4, 3, 2, 1, 0, 1], [4, 5, 4, 3, 2, 1]], [[1, 0, 1, 2, 3, 4, 5], range(7)]
    expected = [raw[i][np.ix_(rows[i], columns[i])] for i in (0, 1)]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize('name', ['crop', 'reflect_crop', 'flip', 'cutout'])
def test_examples_are_drawn_independently_and_by_key(name):
    raw = jnp.asarray(np.repeat(images(1), 64, axis=0))
    augment = jax.jit(make_augment((name,), mean=MEAN, std=STD))
    first = np.asarray(augment(jax.random.key(0), raw))
    np.testing.assert_array_equal(first, augment(jax.random.key(0), raw))
    assert (first != np.asarray(augment(jax.random.key(1), raw))).any()
    distinct = len({image.tobytes() for image in first})
    assert distinct == 2 if name == 'flip' else distinct > 30


def test_mapped_over_clients_equals_each_client():
    raw = jnp.asarray(images(6)).reshape(3, 2, 20, 20, 2)
    keys = jax.random.split(jax.random.key(0), 3)
    augment = jax.jit(make_augment(('crop', 'flip', 'cutout'), mean=MEAN, std=STD))
    augmented = jnp.stack([augment(k, x) for k, x in zip(keys, raw, strict=True)])
    np.testing.assert_allclose(jax.vmap(augment)(keys, raw), augmented, rtol=1e-6)


def test_parse():
    assert parse_augment('none') == ()
    assert parse_augment('crop, flip') == ('crop', 'flip')
    for text in ('', 'spin', 'crop,', 'crop,crop', 'none,crop', 'crop,reflect_crop'):
        with pytest.raises(ValueError, match='augment='):
            parse_augment(text)


def test_a_hole_as_large_as_the_image_is_refused():
    check_augment(('crop', 'cutout'), (17, 28, 1))
    check_augment(('crop',), (8, 8, 1))
    with pytest.raises(
        ValueError, match='reflect_crop mirrors 4 pixels, but the images have 4 x 8'
    ):
        check_augment(('reflect_crop',), (4, 8, 1))
    for shape in ((8, 8, 1), (28, 16, 3)):
        with pytest.raises(ValueError, match=f'cutout: .* 16 x 16 .* {shape[0]} x {shape[1]};'):
            check_augment(('cutout',), shape)
