"""The versions that records name, with the commit of a checkout."""

import re
import shutil
import subprocess

import jax
import pytest

from jaxfed.internal.versions import PACKAGES, recorded_versions, with_commit

needs_git = pytest.mark.skipif(shutil.which('git') is None, reason='Git is not installed')


@pytest.fixture
def checkout(tmp_path):
    """A repository with the package `mine` in its first commit."""
    for file in ('mine/code.py', 'notes.md'):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text('1\n')
    author = ('-c', 'user.name=A', '-c', 'user.email=a@example.org', '-c', 'commit.gpgsign=false')
    for words in (('init', '-q'), ('add', '.'), (*author, 'commit', '-q', '-m', 'Add code')):
        subprocess.run(['git', '-C', str(tmp_path), *words], check=True)
    return tmp_path


def test_records_name_all_packages():
    found = recorded_versions()
    assert found.keys() == {'python', *PACKAGES}
    assert found['jax'] == jax.__version__


@needs_git
def test_a_checkout_adds_its_commit(checkout):
    assert re.fullmatch(r'1\.2\+[0-9a-f]{12}', with_commit('1.2', checkout / 'mine'))


@needs_git
def test_only_files_of_the_package_make_it_modified(checkout):
    (checkout / 'notes.md').write_text('2\n')
    (checkout / 'new.py').write_text('2\n')
    assert not with_commit('1.2', checkout / 'mine').endswith('modified')
    (checkout / 'mine' / 'new.py').write_text('2\n')
    assert with_commit('1.2', checkout / 'mine').endswith('.modified')
    (checkout / 'mine' / 'new.py').unlink()
    (checkout / 'mine' / 'code.py').write_text('2\n')
    assert with_commit('1.2', checkout / 'mine').endswith('.modified')


@needs_git
def test_a_package_installed_in_a_folder_of_a_checkout_has_no_commit(checkout):
    installed = checkout / 'site-packages' / 'mine'
    installed.mkdir(parents=True)
    assert with_commit('1.2', installed) == '1.2'


@needs_git
def test_a_checkout_without_a_commit_adds_nothing(tmp_path):
    subprocess.run(['git', 'init', '-q', str(tmp_path)], check=True)
    assert with_commit('1.2', tmp_path / 'mine') == '1.2'


def test_without_git_the_version_has_no_commit(tmp_path, monkeypatch):
    (tmp_path / '.git').mkdir()
    monkeypatch.setenv('PATH', '')
    assert with_commit('1.2', tmp_path / 'mine') == '1.2'
