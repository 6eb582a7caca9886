"""The states of all clients in host memory."""

import numpy as np
import pytest

from jaxfed.engine import client_states


@pytest.mark.parametrize('start', [0.0, 2.0])
def test_rows_of_a_checkpoint_replace_those_in_memory(start):
    first = {'w': np.full((2, 3), start, np.float32), 'n': np.float32(start)}
    states = client_states.create([first], 4)
    saved = {'w': np.zeros((4, 2, 3), np.float32), 'n': np.array([0, 5, 0, np.nan], np.float32)}
    saved['w'][2] = 7
    read = client_states.scatter(saved, states, 4)
    for name, leaf in saved.items():
        assert read[name] is states[name]  # no second set of states
        np.testing.assert_array_equal(read[name], leaf)
