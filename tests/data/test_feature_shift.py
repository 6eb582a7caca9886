"""The clients' shifts by hand, and against SciPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.ndimage import gaussian_filter1d

import jaxfed
from jaxfed.data.feature_shift import blur, check_feature_shift, make_shift, rotate

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 9, 9, 2)).astype(np.uint8)


def shifted(kind, client, strength=None, clients=5, images=IMAGES):
    return make_shift(kind, strength, clients)(jnp.asarray(images), jnp.int32(client))


def test_rotation_by_right_angles_is_exact():
    for quarter in range(4):
        turned = rotate(jnp.asarray(IMAGES, jnp.float32), jnp.deg2rad(90.0 * quarter))
        assert_allclose(turned, np.rot90(IMAGES, quarter, axes=(1, 2)), atol=1e-2)


def test_clients_are_rotated_from_minus_to_plus_the_strength():
    assert_allclose(shifted('rotation', 2), IMAGES, atol=1e-3)  # the middle one of five
    left, right = (shifted('rotation', client, 90.0) for client in (0, 4))
    assert_allclose(left, np.rot90(IMAGES, -1, axes=(1, 2)), atol=1e-2)
    assert_allclose(right, np.rot90(IMAGES, 1, axes=(1, 2)), atol=1e-2)
    assert not np.asarray(shifted('rotation', 4))[:, 0, 0].any()  # corners are empty
    assert_allclose(shifted('rotation', 0, clients=1), IMAGES, atol=1e-3)


def test_brightness_is_a_factor():
    assert_allclose(shifted('brightness', 0, 0.4), 0.6 * IMAGES.astype(float), rtol=1e-6)
    bright = np.minimum(1.2 * IMAGES.astype(float), 255)
    assert_allclose(shifted('brightness', 3, 0.4), bright, rtol=1e-6)
    floats = np.random.default_rng(1).normal(size=(2, 4, 4, 1)).astype(np.float32) * 300
    assert_allclose(shifted('brightness', 4, 0.5, images=floats), 1.5 * floats, rtol=1e-6)


@pytest.mark.parametrize(('client', 'deviation'), [(0, 0), (2, 0.5), (4, 1.0)])
def test_blur_is_gaussian(client, deviation):
    expected = IMAGES.astype(float)
    for axis in (1, 2) if deviation else ():
        expected = gaussian_filter1d(expected, deviation, axis=axis, mode='nearest', radius=3)
    assert_allclose(shifted('blur', client, 1.0), expected, atol=1e-3)
    flat = jnp.full((1, 5, 5, 1), 7.0)
    assert_allclose(blur(flat, jnp.float32(2.0), radius=4), flat, rtol=1e-6)


def test_no_shift():
    assert make_shift('none', None, 3) is None


def test_shifts_that_do_not_fit_are_refused():
    def simulate(**settings):
        jaxfed.simulate(jaxfed.Config(**settings))

    with pytest.raises(ValueError, match=r'--shift_strength=2\.0 has no effect; set --feature'):
        simulate(shift_strength=2.0)
    with pytest.raises(ValueError, match=r'=2\.0 must be above 0 and at most 1 \(of the value\)'):
        simulate(feature_shift='brightness', shift_strength=2.0)
    with pytest.raises(ValueError, match=r'=0\.0 must be above 0 and at most 180'):
        simulate(feature_shift='rotation', shift_strength=0.0)
    small = np.zeros((4, 4, 9, 1), np.uint8)
    for strength in (1.0, None):
        with pytest.raises(ValueError, match=r'=1\.0 must be above 0 and at most 0\.666667'):
            check_feature_shift('blur', strength, small, '--npz')
    with pytest.raises(ValueError, match='--feature_shift must be one of none, rotation'):
        simulate(feature_shift='rotate')
    vectors = jaxfed.Dataset.from_arrays(
        np.ones((40, 3)), np.arange(40) % 2, np.ones((4, 3)), [0, 1, 0, 1]
    )
    with pytest.raises(ValueError, match='--feature_shift=blur changes images; --dataset=arrays'):
        config = jaxfed.Config(
            feature_shift='blur', model='mlp', partition='iid', num_clients=2, clients_per_round=1
        )
        jaxfed.simulate(config, dataset=vectors)


def test_strength_of_zero_needs_no_shift():
    assert_array_equal(shifted('brightness', 2), IMAGES)  # the place of the middle client is 0
