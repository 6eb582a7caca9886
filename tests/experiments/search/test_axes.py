"""The axes of a search."""

import pytest

from experiments.search.axes import Range, kinds_of, read_axes, read_range


@pytest.mark.parametrize(
    'text, axis, shown',
    [
        ('learning_rate:.001..0.3:log', Range(0.001, 0.3, True, False), '0.001..0.3:log'),
        ('beta:0..1', Range(0, 1, False, False), '0.0..1.0'),
        ('kd.beta:-1e-3..2', Range(-0.001, 2, False, False), '-0.001..2.0'),
        ('batch_size:8..128:log', Range(8, 128, True, True), '8..128:log'),
        ('switch_round:1..9', Range(1, 9, False, True), '1..9'),
    ],
)
def test_ranges_are_read(text, axis, shown):
    name, read = read_range(text, kinds_of('kd'))
    assert (name, read) == (text.partition(':')[0], axis)
    assert str(read) == shown
    assert read_range(f'{name}:{shown}', kinds_of('kd'))[1] == axis


def test_numbers_of_a_range_as_flags():
    assert Range(0, 1, False, False).text(0.123456789) == '0.123457'
    assert Range(1, 9, False, True).text(3.0) == '3'
    # Six digits would leave the range.
    assert Range(0.1234561, 1, False, False).text(0.12345612) == '0.12345612'


def test_axes_have_the_order_of_the_flags():
    axes = read_axes(['tau:1,3', 'momentum:0,.9'], ['beta:0..1'], 'kd')
    assert axes == {
        'tau': ('1', '3'), 'momentum': ('0', '.9'), 'beta': Range(0, 1, False, False),
    }  # fmt: skip


@pytest.mark.parametrize(
    'text, message',
    [
        ('bta:0..1', "'bta' must be one of"),
        ('beta', 'must be --range=beta:LOW..HIGH or --range=beta:LOW..HIGH:log'),
        ('beta:1', 'must be --range=beta:LOW..HIGH or'),
        ('beta:..1', 'must be --range=beta:LOW..HIGH or'),
        ('beta:0..1:', 'must be --range=beta:LOW..HIGH or'),
        ('beta:0..1:linear', 'must be --range=beta:LOW..HIGH or'),
        ('beta:0..x', 'x must be a number'),
        ('batch_size:1..1.5', '1.5 must be an integer'),
        ('beta:1..1', '1 must be below 1, and both finite'),
        ('beta:2..1', '2 must be below 1, and both finite'),
        ('beta:0..inf', '0 must be below inf, and both finite'),
        ('beta:nan..1', 'nan must be below 1, and both finite'),
        ('beta:0..1:log', '0 must be positive, because of :log'),
        ('aggregation:0..1', 'aggregation is not a number; write --grid=aggregation:VALUE,VALUE'),
    ],
)
def test_invalid_ranges_are_refused(text, message):
    with pytest.raises(ValueError, match=r'^--range=') as raised:
        read_axes([], [text], 'kd')
    assert message in str(raised.value)


def test_a_flag_has_one_axis():
    with pytest.raises(ValueError, match=r'--range=beta:0\.\.1: beta is named twice'):
        read_axes(['beta:1,2'], ['beta:0..1'], 'kd')
