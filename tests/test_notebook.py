"""The notebook runs from the first cell to the last, with small settings."""

import importlib.metadata
import os
import shutil
import sys
import types
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from jaxfed.config import DEFAULTS

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parent.parent / 'experiments' / 'colab.ipynb'


@pytest.fixture(scope='module')
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def cell_of(notebook, tag):
    (cell,) = [cell for cell in notebook.cells if tag in cell.metadata.get('tags', [])]
    return cell


def test_the_notebook_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')  # compiles in half the time
    monkeypatch.setenv('PYTHONPATH', str(NOTEBOOK.parent.parent))
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))
    small = nbformat.from_dict(notebook)
    for cell in small.cells:
        cell['outputs'] = []
    cell_of(small, 'parameters')['source'] = (
        "METHODS = ['fedavg']\nSEED = 1\nROUNDS = 2\nMODEL = 'mlp'"
    )
    (settings,) = [cell for cell in small.cells if 'base = jaxfed.Config' in cell.source]
    settings['source'] += '\nbase = dataclasses.replace(base, clients_per_round=2, local_epochs=1)'
    client = NotebookClient(
        small, timeout=3600, kernel_name='python3', resources={'metadata': {'path': str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in small.cells for output in cell.get('outputs', [])]
    assert not [output for output in outputs if output.get('name') == 'stderr']
    pictures = [output for output in outputs if 'image/png' in output.get('data', {})]
    assert len(pictures) == 5
    assert len(list((tmp_path / 'runs').glob('*/summary.json'))) == 4
    text = ''.join(output.get('text', '') for output in outputs)
    assert 'precision: float32' in text and 'fedavg: compiling, then 2 rounds' in text
    shown = ''.join(output.get('data', {}).get('text/plain', '') for output in outputs)
    assert 'round    2/2' in shown and 'ipywidgets' not in shown


@pytest.fixture
def install(notebook, tmp_path, monkeypatch):
    """Run the install cell in an empty folder without jaxfed, and return what pip would install."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('JAXFED_SOURCE', raising=False)
    monkeypatch.setattr(importlib.metadata, 'distributions', lambda name: [])
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    source = cell_of(notebook, 'install').source
    assert '%pip install -q "{package}"' in source

    def run():
        names = {}
        exec(source.replace('%pip', 'pass  #'), names)
        return names['package']

    return run


def test_the_install_cell_takes_the_clone_around_it(install, tmp_path, monkeypatch):
    (tmp_path / 'jaxfed').mkdir()
    (tmp_path / 'jaxfed' / 'config.py').touch()
    (tmp_path / 'experiments').mkdir()
    monkeypatch.chdir(tmp_path / 'experiments')
    assert install() == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert install() == str(tmp_path)


def test_the_install_cell_takes_a_clone_in_its_folder(install, tmp_path, monkeypatch):
    clone = tmp_path / 'jaxfed'
    (clone / 'jaxfed').mkdir(parents=True)
    (clone / 'jaxfed' / 'config.py').touch()
    assert install() == str(clone)
    exists = os.path.exists
    monkeypatch.setattr(os.path, 'exists', lambda path: path == '/dev/vfio/0' or exists(path))
    assert install() == f'{clone}[tpu,prepare]'


def test_the_install_cell_takes_the_named_source(install, tmp_path, monkeypatch):
    (tmp_path / 'jaxfed.zip').touch()
    monkeypatch.setenv('JAXFED_SOURCE', '/')
    assert install() == '/'
    monkeypatch.setenv('JAXFED_SOURCE', 'https://host/jaxfed.git')
    assert install() == 'jaxfed @ git+https://host/jaxfed.git'


def test_the_install_cell_takes_an_archive_of_its_folder(install, tmp_path):
    (tmp_path / 'jaxfed-main.zip').touch()
    assert install() == str(tmp_path / 'jaxfed-main.zip')
    (tmp_path / 'jaxfed-0.1.0-py3-none-any.whl').touch()
    assert install() == str(tmp_path / 'jaxfed-0.1.0-py3-none-any.whl')


def test_the_install_cell_asks_for_an_archive_in_colab(install, tmp_path, monkeypatch):
    def upload():
        Path('any.zip').touch()
        return {'any.zip': b''}

    colab = types.ModuleType('google.colab')
    colab.files = types.SimpleNamespace(upload=upload)
    monkeypatch.setitem(sys.modules, 'google', types.ModuleType('google'))
    monkeypatch.setitem(sys.modules, 'google.colab', colab)
    monkeypatch.setattr(shutil, 'which', lambda name: f'/usr/bin/{name}')
    assert install() == f'{tmp_path}/any.zip[cuda12,prepare]'
    colab.files.upload = dict  # the dialog was cancelled
    with pytest.raises(SystemExit, match='JAXFED_SOURCE must name the repository'):
        install()


def test_the_install_cell_names_the_missing_source(install):
    with pytest.raises(SystemExit, match='JAXFED_SOURCE must name the repository'):
        install()


def test_the_first_run_needs_no_download(notebook):
    install, first, *_ = [cell for cell in notebook.cells if cell.cell_type == 'code']
    assert install is cell_of(notebook, 'install')
    assert 'jaxfed.simulate' in first.source and 'dataset' not in first.source
    assert DEFAULTS['dataset'] == 'digits'


def test_the_committed_outputs_are_complete(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == 'code']
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == 'error']
    assert len([output for output in outputs if 'image/png' in output.get('data', {})]) == 5
    text = ''.join(output.get('text', '') for output in outputs)
    for method in ('fedavg', 'fedntd', 'fedlmd'):
        assert method in text
    assert NOTEBOOK.stat().st_size < 500_000


def test_the_settings_for_an_accelerator_are_valid(notebook):
    import jaxfed
    from jaxfed.runs import checks

    (source,) = [cell.source for cell in notebook.cells if 'base = jaxfed.Config' in cell.source]
    _, _, accelerator = source.partition('else:')
    names = {'jaxfed': jaxfed, 'MODEL': 'cnn', 'ROUNDS': None, 'SEED': 0}
    exec(f'if True:{accelerator}', names)
    checks.check(names['base'])
    assert names['base'].dataset == 'cifar10'
