"""Files of a user, run before the flags are defined."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from experiments.grid import command as grid
from experiments.search import __main__ as search
from experiments.search import report
from jaxfed import methods
from jaxfed.internal import include
from jaxfed.runs import config_flags

MINE = """
from jaxfed import Method, methods
from beside import STRENGTH

def mine(*, strength: float = STRENGTH):
    return Method()

methods.METHODS['mine'] = mine
runs.append(1)
"""


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path):
    """Restores what an included file changes."""
    monkeypatch.setattr(include, '_included', {})
    monkeypatch.setattr(sys, 'path', [*sys.path])
    monkeypatch.chdir(tmp_path)
    before = {*sys.modules}
    yield
    methods.METHODS.pop('mine', None)
    for name in {'own_file', 'beside', 'broken'} & ({*sys.modules} - before):
        del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / 'own_file.py'
    path.write_text(MINE.replace('runs.append(1)', ''))
    (tmp_path / 'beside.py').write_text('STRENGTH = 0.25')
    return path


def test_a_file_registers_and_has_flags(file):
    include.include_first(['--rounds=2', '--include', file.name, '--include=own_file.py'])
    assert include.include_again() == ['--include=own_file.py']
    config = config_flags.parse(['--method=mine', '--strength=2'])
    assert config.hyperparameters == {'strength': 2.0}
    assert methods.resolve('mine', {})[0].hyperparameters == {'strength': 0.25}
    assert methods.METHODS['mine'].__module__ == 'own_file'
    first = methods.METHODS['mine']
    include.include(str(file))
    assert methods.METHODS['mine'] is first  # it ran once
    include.include_first(['--', '--include=none.py'])  # not for this command
    include.check_included('own_file.py')
    include.check_included(None)
    with pytest.raises(ValueError, match=r'--include=b.py must be on the command line, not in a'):
        include.check_included('own_file.py,b.py')


@pytest.mark.parametrize(
    'name, text, message',
    [
        (
            'none.py',
            None,
            r'--include=none.py must name a Python file, as mine.py; there is no such file\.',
        ),
        ('a.txt', 'x = 1', r'--include=a.txt must name a Python file'),
        ('a.b.py', 'x = 1', r'--include=a.b.py must name a Python file'),
        ('json.py', 'x = 1', r'--include=json.py: a module json exists; rename the file\.'),
        (
            'broken.py',
            'x = 1\ny = 1 / 0',
            r'broken.py \(broken.py, line 2\): ZeroDivisionError: div',
        ),
        ('broken.py', 'x = (', r'broken.py: SyntaxError: .* line 1'),
    ],
)
def test_files_that_cannot_run_are_refused(name, text, message, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        include.include(name)
    assert include.include_again() == [] and 'broken' not in sys.modules


@pytest.mark.slow
def test_commands_include_files(file):
    words = [sys.executable, '-m', 'jaxfed', f'--include={file}', '--method=list']
    shown = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert shown.returncode == 0 and re.search(r'mine .*--strength=0.25', shown.stdout)
    words[3] = '--include=none.py'
    shown = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert (shown.returncode, shown.stdout) == (2, '')
    assert (
        shown.stderr
        == 'error: --include=none.py must name a Python file, as mine.py; there is no such file.\n'
    )


def test_a_search_names_the_file_in_its_command(file):
    parsed = grid.parse(['--include=own_file.py', '--rounds=2'], search.define, '')
    assert parsed.values['include'] == 'own_file.py' and 'mine' in methods.METHODS
    found = SimpleNamespace(shown=('--method=mine',), run_flags=(), seeds=1)
    shown = report.command_of(found, SimpleNamespace(flags=('--strength=1',)))
    assert shown.startswith('python -m jaxfed.main --include=own_file.py --method=mine ')
