"""The texts of messages about a user's functions."""

import pytest

from jaxfed.internal.messages import locate_errors, located, suggestion


@pytest.mark.parametrize(
    'error, message',
    [
        (ValueError('the size is 3'), 'METHODS[x]: the size is 3.'),
        (ValueError('the size is 3.'), 'METHODS[x]: the size is 3.'),
        (KeyError('size'), "METHODS[x]: KeyError: 'size'."),
        # As newer versions of Python suggest.
        (
            AttributeError("no attribute 'siz'. Did you mean: 'size'?"),
            "METHODS[x]: AttributeError: no attribute 'siz'. Did you mean: 'size'?",
        ),
    ],
)
def test_an_error_of_a_users_function_ends_in_one_mark(error, message):
    assert str(located('METHODS[x]', error)) == message


def test_an_error_of_a_users_function_names_its_line():
    line = r'^mine \(test_messages\.py, line \d+\): ZeroDivisionError: division by zero\.$'
    with pytest.raises(ValueError, match=line), locate_errors('mine'):
        _ = 1 / 0


def test_a_similar_name_is_suggested():
    assert suggestion('Fedavg', ['fedavg', 'moon']) == '; did you mean fedavg?'
    assert suggestion('lamda', ['mu', 'lambda'], '--') == '; did you mean --lambda?'
    assert suggestion('xyz', ['mu', 'lambda']) == '.'
