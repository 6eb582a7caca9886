"""Programs that several seeds and partitions share."""

import jax
import numpy as np
import pytest

from jaxfed.config import Config
from jaxfed.engine.devices import make_mesh
from jaxfed.engine.local import epoch_order
from jaxfed.runs import memory, prepare, simulate
from jaxfed.runs.experiment import set_up
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.prepare import local_settings
from jaxfed.types import Dataset
from tests.marks import slow


@pytest.mark.parametrize(
    ('longest', 'compiled'), [(33, 33), (50, 50), (51, 64), (64, 64), (65, 128), (8456, 16384)]
)
def test_largest_clients_of_similar_size_share_a_program(longest, compiled):
    settings = local_settings(Config(batch_size=50), longest=longest, image_shape=(8, 8, 1))
    assert settings.longest == compiled


@pytest.mark.parametrize('size', [0, 1, 70, 100])
def test_the_order_of_an_epoch_does_not_depend_on_the_largest_client(size):
    key = jax.random.key(5)
    shorter, longer = epoch_order(key, size, 100), epoch_order(key, size, 128)
    np.testing.assert_array_equal(shorter[:size], longer[:size])
    assert sorted(longer[:size].tolist()) == list(range(size))


@pytest.mark.parametrize(('lanes', 'tried'), [(0, [5, 2]), (5, [5])])
def test_a_compiler_without_memory_halves_the_lanes(lanes, tried, monkeypatch, tmp_path):
    compile_all, lower_round, asked = prepare.compile_all, prepare.lower_round, []

    def lower(functions, mesh, server, states, cohort, plan, *others):
        asked.append(plan.first.shape[-1])
        return lower_round(functions, mesh, server, states, cohort, plan, *others)

    def compile_if_small(programs):
        if asked[-1] > 2:
            raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Ran out of memory on HBM.')
        return compile_all(programs)

    monkeypatch.setattr(prepare, 'lower_round', lower)
    monkeypatch.setattr(prepare, 'compile_all', compile_if_small)
    monkeypatch.setattr(prepare, 'choose_lanes', lambda *_, **__: 5)
    workdir = str(tmp_path / 'run')
    experiment = set_up(
        Config(model='mlp', clients_per_round=5, devices='1', lanes=lanes, workdir=workdir)
    )
    if lanes:
        with pytest.raises(TooLarge, match='out of memory'):
            prepare.prepare([experiment], make_mesh('1'))
    else:
        assert prepare.prepare([experiment], make_mesh('1')).lanes == 2
    assert asked == tried


@pytest.mark.slow
def test_the_memory_of_a_cpu_includes_arrays_beside_their_copies(cheap_runs, tmp_path):
    x, y = np.zeros((512, 4, 4, 1), np.uint8), np.arange(512) % 10
    np.save(tmp_path / 'x.npy', x)
    mapped = np.asarray(np.load(tmp_path / 'x.npy', mmap_mode='r'))
    settings = {'rounds': 1, 'devices': '1', 'model': 'mlp', 'partition': 'iid', 'num_clients': 8}
    needed = {}
    for name, images in {'array': x, 'mapped': mapped}.items():
        dataset = Dataset(name, images, y.astype(np.int32), x[:20], y[:20].astype(np.int32), 10)
        config = Config(**settings, workdir=str(tmp_path / name))
        needed[name] = simulate.simulate(config, dataset=dataset, quiet=True).summary
    difference = needed['array']['memory_bytes'] - needed['mapped']['memory_bytes']
    assert difference == x.nbytes


@pytest.mark.parametrize('method, share', [slow('moon', 1.0), ('scaffold', 0.5)])
def test_the_memory_of_a_cpu_includes_states_that_are_written(method, share, cheap_runs, tmp_path):
    config = Config(
        method=method, model='mlp', partition='iid', num_clients=300, clients_per_round=2,
        rounds=75, devices='1', checkpoint_every=0, workdir=str(tmp_path / 'out'),
    )  # fmt: skip
    prepared = prepare.prepare([set_up(config)])
    states = sum(leaf.nbytes for leaf in jax.tree.leaves(prepared.client_states))
    rest = prepared.needed - share * states
    assert 0 < rest < states / 2


@pytest.mark.slow
def test_the_memory_of_a_cpu_includes_its_kernels(cheap_runs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    needed = {}
    for scratch in (0, 1000, 2**60):
        monkeypatch.setattr(memory, 'SCRATCH', scratch)
        settings = {'model': 'mlp', 'rounds': 1, 'devices': '1', 'workdir': f'run{scratch}'}
        needed[scratch] = simulate.simulate(Config(**settings), quiet=True).summary['memory_bytes']
    assert needed[1000] == needed[0] + 1000
    assert needed[1000] < needed[2**60] < 2 * needed[0]  # at most the program's own size
