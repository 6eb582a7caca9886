"""Whatever is given, the answer is a ValueError that says what is wrong, or a result."""

import contextlib
import io
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from jaxfed import config, methods
from jaxfed.data import load_npz

FAST = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
FLAGS = (
    'method', 'dataset', 'augment', 'auxiliary_per_class', 'partition', 'alpha', 'min_size',
    'num_clients', 'clients_per_round', 'over_selection', 'dropout', 'sampling', 'validation',
    'model', 'norm', 'width', 'remat', 'rounds', 'learning_rate', 'seed', 'devices', 'lanes',
    'workdir', 'tau', 'fedlmd.beta', 'npz', 'target_accuracy', 'switch_round',
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([10**400, -(10**20), 2**31, 2**63, 0]),
    st.floats(),
    st.sampled_from(['nan', '-inf', '1e400', '1e-400', '0x10', '१२', '²', '1_000']),
)
VALUES = st.one_of(
    st.text(max_size=12),
    NUMBERS.map(str),
    st.sampled_from(
        ['list', 'fedlmd+fedprox', 'fedlmd,fedavg', '+', ',', '../../x', '/', 'a\0b', '\ud800']
    ),
)


@FAST
@given(st.dictionaries(st.sampled_from(FLAGS), VALUES, min_size=1, max_size=3))
def test_any_value_of_a_flag_is_taken_or_told(given_flags):
    with contextlib.suppress(ValueError):
        made = config.parse([f'--{name}={value}' for name, value in given_flags.items()])
        config.check(made)
        methods.build(
            methods.resolve(made.method, made.hyperparameters), switch_round=made.switch_round
        )


@FAST
@given(st.dictionaries(st.sampled_from(FLAGS), NUMBERS | VALUES | st.none(), max_size=3))
def test_any_value_of_a_setting_is_taken_or_told(values):
    fields = {f.name for f in config.dataclasses.fields(config.Config)}
    with contextlib.suppress(ValueError):
        made = config.Config(**{k: v for k, v in values.items() if k in fields})
        config.check(made)


def archive(**changes):
    arrays = {
        'x_train': np.arange(96, dtype=np.uint8).reshape(6, 4, 4, 1),
        'y_train': np.arange(6) % 3,
        'x_test': np.arange(48, dtype=np.uint8).reshape(3, 4, 4, 1),
        'y_test': np.arange(3),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, **changes})
    return buffer.getvalue()


WHOLE, PACKED = archive(), io.BytesIO()
with (
    zipfile.ZipFile(PACKED, 'w', zipfile.ZIP_DEFLATED) as _packed,
    zipfile.ZipFile(io.BytesIO(WHOLE)) as _whole,
):
    for _name in _whole.namelist():
        _packed.writestr(_name, _whole.read(_name))


@pytest.fixture(scope='module')
def npz(tmp_path_factory):
    return tmp_path_factory.mktemp('npz') / 'given.npz'


def read(path, content):
    path.write_bytes(content)
    try:
        dataset = load_npz(path)
    except (ValueError, OSError) as error:
        assert path.name in str(error)
    else:
        assert dataset.x_train.shape[0] == dataset.y_train.shape[0]


@FAST
@given(content=st.binary(max_size=200))
def test_random_bytes_are_no_dataset(content, npz):
    assume(not zipfile.is_zipfile(io.BytesIO(content)))
    npz.write_bytes(content)
    with pytest.raises(ValueError, match=r'given\.npz'):
        load_npz(npz)


@settings(FAST, max_examples=600)
@given(
    whole=st.sampled_from([WHOLE, PACKED.getvalue()]),
    changes=st.dictionaries(st.integers(0, 4000), st.integers(0, 255), min_size=1, max_size=4),
    cut=st.none() | st.integers(0, 4000),
)
def test_a_damaged_dataset_is_told(whole, changes, cut, npz):
    content = bytearray(whole)
    for place, byte in changes.items():
        content[place % len(content)] = byte
    read(npz, bytes(content[:cut]))


@pytest.mark.parametrize(
    'header',
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000, 9, 9, 9), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (6,), }",
        "{'descr': '" + '[' * 500 + "', 'fortran_order': False, 'shape': (6,), }",
        '(' * 3000,
        "__import__('os').abort()",
    ],
    ids=['huge', 'objects', 'descr', 'nested', 'code'],
)
def test_a_header_that_lies_is_told(header, npz):
    body = io.BytesIO()
    text = header.encode() + b'\n'
    body.write(b'\x93NUMPY\x01\x00' + len(text).to_bytes(2, 'little') + text)
    with zipfile.ZipFile(npz, 'w') as made, zipfile.ZipFile(io.BytesIO(WHOLE)) as whole:
        for name in whole.namelist():
            made.writestr(name, body.getvalue() if name == 'x_train.npy' else whole.read(name))
    with pytest.raises(ValueError, match=r'given\.npz'):
        load_npz(npz)


def test_one_array_is_no_archive(npz):
    np.save(npz, np.zeros(3))  # appends .npy
    path = npz.with_name(npz.name + '.npy')
    path.write_bytes(path.read_bytes() + WHOLE)  # and so it looks like an archive
    with pytest.raises(ValueError, match='is one array and no archive'):
        load_npz(path)


@pytest.mark.parametrize(
    'settings_, message',
    [
        ({'num_clients': 10**400}, '--num_clients is an integer of 1329 bits'),
        ({'seed': 2**63}, '--seed is an integer of 64 bits'),
        ({'alpha': 10**400}, r'--alpha=10{400} must be a finite number'),
        ({'workdir': 'a\0b'}, r"--workdir='a\\x00b' must have no NUL character"),
    ],
)
def test_what_nothing_can_hold_is_told(settings_, message):
    with pytest.raises(ValueError, match=message):
        config.check(config.Config(**settings_))
