"""Whatever is given, the answer is a ValueError that says what is wrong, or a result."""

import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from experiments.stress import fuzz
from jaxfed import config
from jaxfed.data import load_npz
from jaxfed.runs import checks
from tests import fuzzing


# Of checkpoints that are closed while they are read in the background.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('name', fuzzing.TARGETS)
def test_bad_input_is_taken_or_told(name, tmp_path):
    target = fuzzing.TARGETS[name]
    strategy, check = target.make(tmp_path)
    few = settings(
        max_examples=target.examples, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    fuzzing.outcomes.clear()
    few(given(strategy)(check))()
    # Neither is all of it refused at first sight, nor does damage pass unseen.
    assert fuzzing.outcomes['taken'] and fuzzing.outcomes['told']


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
def test_a_header_that_lies_is_told(header, npz):
    body = io.BytesIO()
    text = header.encode() + b'\n'
    body.write(b'\x93NUMPY\x01\x00' + len(text).to_bytes(2, 'little') + text)
    with zipfile.ZipFile(npz, 'w') as made, zipfile.ZipFile(io.BytesIO(fuzzing.npz_of())) as whole:
        for name in whole.namelist():
            made.writestr(name, body.getvalue() if name == 'x_train.npy' else whole.read(name))
    with pytest.raises(ValueError, match=r'given\.npz'):
        load_npz(npz)


def test_one_array_is_no_archive(npz):
    np.save(npz, np.zeros(3))  # appends .npy
    path = npz.with_name(npz.name + '.npy')
    path.write_bytes(path.read_bytes() + fuzzing.npz_of())  # and so it looks like an archive
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
        checks.check(config.Config(**settings_))


def test_failures_are_counted(tmp_path, monkeypatch, capsys):
    def make(folder):
        def check(value):
            with fuzzing.told():
                if value % 3 == 0:
                    raise ValueError('told')
            if value % 3 == 1:
                raise RuntimeError('not told')

        return fuzzing.st.integers(0, 10**9), check

    monkeypatch.setattr(fuzzing, 'TARGETS', {'numbers': fuzzing.Target(make, 1)})
    output = tmp_path / 'out.json'
    assert fuzz.main([f'--output={output}', '--inputs=1500']) == 1
    found = json.loads(output.read_text())
    (told,) = found['targets']
    assert found['inputs'] == told['inputs'] >= 1400
    assert 300 < told['failures'] < 700 and found['failures'] == told['failures']
    assert told['taken'] + told['told'] == told['inputs']
    (kind,) = told['kinds']
    assert kind['what'].startswith('RuntimeError: not told') and kind['times'] == told['failures']
    assert 'RuntimeError: not told' in capsys.readouterr().out
    assert fuzz.main(['--inputs=0']) == 2
    assert '--inputs=0 must be at least 1' in capsys.readouterr().err
