import numpy as np
import pytest

from jaxfed.internal.digest import digest


def arrays():
    return {'x': np.arange(24, dtype=np.uint8).reshape(8, 3), 'y': np.float32(2)}


@pytest.mark.parametrize('most', [1 << 62, 24, 12])
def test_names_shapes_types_and_values_count(most):
    known = digest(arrays(), most=most)
    assert digest(arrays(), most=most) == known
    others = [
        {'z': arrays()['x'], 'y': arrays()['y']},
        arrays() | {'x': arrays()['x'].reshape(8, 3, 1)},
        arrays() | {'x': arrays()['x'].astype(np.int8)},
        arrays() | {'x': arrays()['x'] + (arrays()['x'] < 1)},
    ]
    assert len({known, *(digest(other, most=most) for other in others)}) == 5


def test_of_a_large_array_every_second_row_counts():
    one, other = arrays(), arrays()
    other['x'][1] += 1
    assert digest(one) != digest(other)
    assert digest(one, most=12) == digest(other, most=12)
    other['x'][2] += 1
    assert digest(one, most=12) != digest(other, most=12)
