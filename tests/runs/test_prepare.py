"""Programs that several seeds and partitions share."""

import jax
import numpy as np
import pytest

from jaxfed.config import Config
from jaxfed.engine.local import epoch_order
from jaxfed.runs.prepare import local_settings


@pytest.mark.parametrize(
    ('longest', 'compiled'), [(33, 33), (50, 50), (51, 64), (64, 64), (65, 128), (8456, 16384)]
)
def test_largest_clients_of_similar_size_share_a_program(longest, compiled):
    settings = local_settings(Config(batch_size=50), longest=longest, image_shape=(8, 8, 1))
    assert settings.longest == compiled


@pytest.mark.parametrize('size', [0, 1, 70, 100])
def test_the_order_of_an_epoch_does_not_depend_on_the_largest_client(size):
    key = jax.random.key(5)
    shorter, longer = epoch_order(key, size, 100), epoch_order(key, size, 128)
    np.testing.assert_array_equal(shorter[:size], longer[:size])
    assert sorted(longer[:size].tolist()) == list(range(size))
