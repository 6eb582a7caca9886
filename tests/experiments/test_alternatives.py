"""The work that jaxfed and its alternatives share."""

import json
import subprocess
import sys
import types

import numpy as np
import pytest
from absl import app

from experiments.benchmarks.alternatives import __main__ as alternatives
from experiments.benchmarks.alternatives import torch_work

TASK = alternatives.TASKS['blazefl']._replace(clients=10, examples_per_client=20, test_examples=30)


def test_synthetic_images_have_the_shape_and_all_classes():
    for task in alternatives.TASKS.values():
        small = task._replace(clients=3, examples_per_client=70, test_examples=62)
        data = alternatives.synthetic(small)
        assert data.x_train.shape == (210, *task.shape)
        assert data.x_test.dtype == np.uint8
        assert set(data.y_train) == set(data.y_test) == set(range(task.classes))


def pairs(data):
    return sorted(zip(data.y_train, data.x_train.reshape(200, -1).sum(1)))


def test_clients_get_shards_of_one_class():
    data = alternatives.synthetic(TASK)
    dealt = alternatives.deal(data, TASK)
    for labels in dealt.y_train.reshape(10, 2, 10):
        assert all(len(set(shard)) == 1 for shard in labels)
    assert pairs(dealt) == pairs(data)
    assert alternatives.deal(data, TASK._replace(shards=0)) is data


def test_clients_draw_their_classes_from_a_dirichlet_distribution():
    data = alternatives.synthetic(TASK)
    classes = {}
    for alpha in 0.01, 100.0:
        dealt = alternatives.deal(data, TASK._replace(shards=0, alpha=alpha))
        assert pairs(dealt) == pairs(data)
        clients = dealt.y_train.reshape(10, 20)
        classes[alpha] = np.mean([len(set(labels)) for labels in clients])
    assert classes[0.01] < 3 and classes[100.0] > 7  # 20 of 10 classes have 8.8 on average


def test_every_system_reads_the_same_clients(tmp_path):
    data = alternatives.deal(alternatives.synthetic(TASK), TASK)
    machine = {'cores': 2, 'device': 'cpu'}
    work = alternatives.prepare(data, TASK, str(tmp_path), machine)
    read = json.loads((tmp_path / 'work.json').read_text())
    assert torch_work.Task(**read['task'])._replace(shape=TASK.shape) == TASK
    assert work.cores == 2
    with np.load(tmp_path / 'data.npz') as arrays:
        for client in range(10):
            mine = arrays['users'] == client
            rows = slice(20 * client, 20 * (client + 1))
            np.testing.assert_array_equal(arrays['x_train'][mine], data.x_train[rows])
            x, y = torch_work.read_arrays(work, 'train', rows)
            np.testing.assert_allclose(x * work.std + work.mean, data.x_train[rows], atol=1e-3)
            np.testing.assert_array_equal(y, data.y_train[rows])
            assert x.dtype == np.float32


def test_evaluations_follow_every_few_rounds_and_the_last():
    task = TASK._replace(rounds=5, eval_every=2)
    assert [number for number in range(1, 6) if task.evaluates(number)] == [2, 4, 5]


@pytest.mark.parametrize('names', [['jaxfed', 'flow'], ['torch']])
def test_unknown_systems_are_refused(names):
    with pytest.raises(app.UsageError, match=r'must be jaxfed and others of jaxfed, torch'):
        alternatives.find_systems(names, {})


@pytest.mark.parametrize('free_threaded', [False, True])
def test_threads_need_a_python_without_the_global_interpreter_lock(free_threaded, monkeypatch):
    monkeypatch.setattr(
        alternatives.reporting, 'has', lambda module: module in {'blazefl', 'torch'}
    )
    monkeypatch.setattr(alternatives.reporting, 'free_threaded', lambda: free_threaded)
    names = ['jaxfed', 'blazefl', 'blazefl_threads']
    assert alternatives.find_systems(names, {}) == names[: 2 + free_threaded]


def test_systems_that_cannot_be_installed_need_their_checkout(monkeypatch):
    monkeypatch.setattr(alternatives.reporting, 'has', lambda module: True)
    names = ['jaxfed', 'flbench', 'flbench_parallel', 'pfllib']
    assert alternatives.find_systems(names, {'pfllib': 'PFLlib'}) == ['jaxfed', 'pfllib']
    assert alternatives.find_systems(names, {'flbench': 'FL-bench'}) == names[:3]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    checkouts = {'pfllib': str(tmp_path)}
    with pytest.raises(app.UsageError, match=r'--pfllib=.*, but has no folder system/flcore\.$'):
        alternatives.check_checkouts(checkouts)
    (tmp_path / 'system' / 'flcore').mkdir(parents=True)
    alternatives.check_checkouts(checkouts)
    with pytest.raises(app.UsageError, match=r'--flbench=.* must be a checkout of FL-bench'):
        alternatives.check_checkouts({**checkouts, 'flbench': str(tmp_path)})


@pytest.mark.parametrize('key', ['flbench', 'pfllib'])
def test_a_system_finds_the_package_of_its_checkout(key, tmp_path):
    system = alternatives.SYSTEMS[key]
    package = tmp_path / system.package
    package.mkdir(parents=True)
    (package / 'mine.py').touch()
    command = [sys.executable, '-c', f'import {package.name}.mine']
    for checkout, status in ((str(tmp_path), 0), (None, 1)):
        env = alternatives.environment(system, checkout)
        assert subprocess.run(command, env=env, stderr=subprocess.DEVNULL).returncode == status


def test_the_commit_of_a_checkout_is_known(tmp_path):
    subprocess.run(['git', 'init', '-q', tmp_path], check=True)
    who = ['-c', 'user.name=a', '-c', 'user.email=a@b']
    git = ['git', '-C', tmp_path, *who]
    subprocess.run([*git, 'commit', '-q', '--allow-empty', '-m', 'empty'], check=True)
    commit = subprocess.check_output([*git, 'log', '-1', '--format=%H'], text=True).strip()
    assert alternatives.reporting.commit_of(tmp_path) == commit
    (tmp_path / 'unpacked').mkdir()
    assert alternatives.reporting.commit_of(tmp_path / 'unpacked') == 'unknown'


def test_images_come_from_a_file(tmp_path):
    task = TASK._replace(shards=0)
    known = alternatives.synthetic(task)
    file = tmp_path / 'images.npz'
    np.savez(file, **{k: v for k, v in known._asdict().items() if k != 'name'})
    args = types.SimpleNamespace(dataset='npz', data_dir=None, npz=file)
    data = alternatives.sample(args, task)
    assert pairs(data) == pairs(known)
    assert data.x_test.shape == known.x_test.shape
