"""Any input gives a result, or a ValueError that names the fault.

The short form checks the same few hundred inputs of every target in each run. Many random ones:

    python -m pytest -m '' tests/experiments/test_fuzz.py --fuzz_inputs=60000 --fuzz_seed=1000 -rP
"""

import argparse
import io
import zipfile

import numpy as np
import pytest

from jaxfed import config
from jaxfed.data import load_npz
from jaxfed.runs import checks
from tests import conftest, fuzzing

pytestmark = pytest.mark.slow


# Checkpoints are closed while they are read in the background.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('name', fuzzing.TARGETS)
def test_invalid_input_is_accepted_or_refused(name, tmp_path, request):
    inputs, seed = (request.config.getoption(option) for option in ('fuzz_inputs', 'fuzz_seed'))
    outcomes = fuzzing.run(name, tmp_path, inputs, seed)
    print(f'{name}: {outcomes["accepted"]} accepted, {outcomes["refused"]} refused')
    # Some inputs pass, and damage is detected.
    assert inputs or (outcomes['accepted'] and outcomes['refused'])


@pytest.fixture
def npz(tmp_path):
    return tmp_path / 'given.npz'


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
def test_invalid_headers_are_refused(header, npz):
    body = io.BytesIO()
    text = header.encode() + b'\n'
    body.write(b'\x93NUMPY\x01\x00' + len(text).to_bytes(2, 'little') + text)
    with zipfile.ZipFile(npz, 'w') as made, zipfile.ZipFile(io.BytesIO(fuzzing.npz_of())) as whole:
        for name in whole.namelist():
            made.writestr(name, body.getvalue() if name == 'x_train.npy' else whole.read(name))
    with pytest.raises(ValueError, match=r'given\.npz'):
        load_npz(npz)


def test_a_single_array_is_refused(npz):
    np.save(npz, np.zeros(3))  # appends .npy
    path = npz.with_name(npz.name + '.npy')
    path.write_bytes(path.read_bytes() + fuzzing.npz_of())  # and so it looks like an archive
    with pytest.raises(ValueError, match='is a single array, not an archive'):
        load_npz(path)


@pytest.mark.parametrize(
    'values, message',
    [
        ({'num_clients': 10**400}, '--num_clients is an integer of 1329 bits'),
        ({'local_epochs': 2**31}, '--local_epochs is an integer of 32 bits'),
        ({'seed': 2**63}, '--seed is an integer of 64 bits'),
        ({'alpha': 10**400}, r'--alpha must be a finite number'),
        ({'workdir': 'a\0b'}, r'--workdir must have no NUL character'),
    ],
)
def test_values_beyond_every_type_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        checks.check(config.Config(**values))


def target(values, *, fails=False):
    """A target that accepts two of three numbers, or fails with one of three."""

    def make(folder):
        def check(value):
            values.append(value)
            with fuzzing.accepted_or_refused():
                if value % 3 == 0:
                    raise ValueError('refused')
            if fails and value % 3 == 1:
                raise RuntimeError('not for the user')

        return fuzzing.st.integers(0, 10**9), check

    return fuzzing.Target(make, 20)


def test_targets_share_the_inputs_and_the_seed_determines_them(tmp_path, monkeypatch):
    values = []
    targets = {'numbers': target(values), 'others': target([])._replace(examples=40)}
    monkeypatch.setattr(fuzzing, 'TARGETS', targets)
    runs = []
    for seed in (7, 7, 8):
        outcomes = dict(fuzzing.run('numbers', tmp_path, 4500, seed))
        assert 1400 < sum(outcomes.values()) == len(values) <= 1500  # a third, in two batches
        assert 300 < outcomes['refused'] < 700
        runs.append(values.copy())
        values.clear()
    assert runs[0] == runs[1] != runs[2]


def test_a_failed_check_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzing, 'TARGETS', {'numbers': target([], fails=True)})
    for inputs in (None, 1500):
        with pytest.raises(RuntimeError, match='not for the user'):
            fuzzing.run('numbers', tmp_path, inputs)


def test_the_number_of_inputs_is_positive():
    assert conftest.positive('3') == 3
    with pytest.raises(argparse.ArgumentTypeError, match='must be at least 1, got 0'):
        conftest.positive('0')
