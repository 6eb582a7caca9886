"""Training that starts from a file of parameters."""

import json

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file, save_file

import jaxfed
from jaxfed.models import make_model
from jaxfed.runs.experiment import make_experiment
from jaxfed.runs.tensors import named, read_tensors
from tests import memory

QUICK = {'rounds': 1, 'local_epochs': 1, 'clients_per_round': 2, 'partition': 'iid'}
SHAPE = {'input_shape': (8, 8, 1), 'num_classes': 10}


def write(path, model='mlp', seed=5, change=lambda arrays: arrays):
    network = make_model(model, **SHAPE)
    arrays = named(network.init(jax.random.key(seed)), network.stats)
    save_file(change({name: np.asarray(array) for name, array in arrays.items()}), path)
    return load_file(path)


def start(path, **settings):
    experiment = make_experiment(jaxfed.Config(init_from=str(path), **{**QUICK, **settings}))
    return experiment.model.init(jax.random.key(0)), experiment.model.stats


def test_parameters_and_batch_statistics_of_a_file(tmp_path):
    path = tmp_path / 'start.safetensors'
    arrays = write(path, 'resnet8', change=lambda arrays: {n: a + 1 for n, a in arrays.items()})
    assert any(name.startswith('batch_stats.') for name in arrays)
    for name, array in named(*start(path, model='resnet8')).items():
        assert_array_equal(array, arrays[name], err_msg=name)


def test_both_models_of_ditto_start_from_the_file(tmp_path):
    arrays = write(path := tmp_path / 'start.safetensors')
    params, _ = start(path, model='mlp', method='ditto')
    for part in ('model', 'own'):
        for name, array in named(params[part], ()).items():
            assert_array_equal(array, arrays[name], err_msg=name)


@pytest.mark.parametrize('method', ['fedavg', 'ditto'])
def test_a_seed_of_initial_parameters_without_effect(tmp_path, method):
    write(path := tmp_path / 'start.safetensors')
    with pytest.raises(ValueError, match='--init_seed=3 has no effect with --init_from, which'):
        start(path, model='mlp', method=method, init_seed=3)


def test_the_seed_of_a_projection_that_the_file_lacks(tmp_path):
    in_file = write(path := tmp_path / 'start.safetensors')
    moon = {'method': 'moon', 'hyperparameters': {'projection': True}, 'model': 'mlp'}
    config = jaxfed.Config(init_from=str(path), init_seed=3, **{**QUICK, **moon})
    model = make_experiment(config).model
    one, other = (named(model.init(jax.random.key(seed)), ()) for seed in (0, 1))
    drawn = {name.partition('.')[0] for name in one if not np.array_equal(one[name], other[name])}
    assert drawn == {'project1', 'project2', 'classifier'}  # which reads the projection
    for name in ('hidden1.kernel', 'hidden2.bias'):
        assert_array_equal(one[name], in_file[name])


def test_float64_is_rounded(tmp_path):
    path = tmp_path / 'start.safetensors'
    write(path, change=lambda arrays: {n: a.astype(np.float64) for n, a in arrays.items()})
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(start(path, model='mlp')))


@pytest.mark.slow
def test_a_run_continues_from_the_model_of_another(tmp_path):
    common = {**QUICK, 'model': 'mlp', 'momentum': 0.0}
    first = jaxfed.simulate(
        jaxfed.Config(**common, workdir=str(tmp_path / 'a'), cohort_seed=1), quiet=True
    )
    # Rounds that hardly move the parameters show where they began.
    config = jaxfed.Config(
        **common, workdir=str(tmp_path / 'b'), learning_rate=1e-12,
        init_from=str(tmp_path / 'a' / 'model.safetensors'),
    )  # fmt: skip
    second = jaxfed.simulate(config, quiet=True)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-7), first.params, second.params)
    assert second.metrics[-1]['test_accuracy'] == first.metrics[-1]['test_accuracy']


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda a: {n: a[n] for n in sorted(a)[1:]}, 'is missing in the file, but'),
        (lambda a: a | {'extra': np.zeros(3, np.float32)}, r'extra is \(3,\) float32 in the file'),
        (lambda a: {n: v.T.copy() for n, v in a.items()}, r'is \(10, 200\) float32 in the file'),
        (lambda a: {n: v.astype(np.int32) for n, v in a.items()}, 'int32 in the file'),
        (lambda a: {n: v * np.nan for n, v in a.items()}, 'has values that are not finite'),
    ],
)
def test_files_that_do_not_fit(tmp_path, change, message):
    write(path := tmp_path / 'start.safetensors', change=change)
    with pytest.raises(ValueError, match=f'--init_from={path}.*{message}'):
        start(path, model='mlp')


def test_files_that_cannot_be_read(tmp_path):
    write(path := tmp_path / 'start.safetensors')
    with pytest.raises(ValueError, match='nonsuch is no file; name a'):
        start(tmp_path / 'nonsuch')
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=f'--init_from={path} cannot be read .* incomplete'):
        start(path)


def safetensors_of(header, data=b''):
    """A file with any header, given as JSON or as text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, 'little') + text + data


def tensor(shape, end, dtype='F32'):
    return {'w': {'dtype': dtype, 'shape': shape, 'data_offsets': [0, end]}}


@pytest.mark.parametrize(
    'content',
    [
        (1 << 60).to_bytes(8, 'little') + b'{}',
        safetensors_of(tensor([1 << 40], 1 << 42)),
        safetensors_of(tensor([1 << 62, 1 << 62], 4), b'1234'),
        safetensors_of(tensor([1 << 40], 4), b'1234'),
        safetensors_of(tensor([-1], 4), b'1234'),
        safetensors_of(tensor([1], 4, 'object'), b'1234'),
        safetensors_of(b'[' * 100_000),
        safetensors_of({'w': tensor([1], 4)['w'], 'v': tensor([1], 4)['w']}, b'1234'),
        b'\x80\x04\x95' + bytes(40),
    ],
    ids=['header', 'terabytes', 'overflow', 'short', 'negative', 'objects', 'nested', 'shared',
         'pickle'],
)  # fmt: skip
def test_hostile_files_are_refused_without_memory(content, tmp_path):
    path = tmp_path / 'model.safetensors'
    path.write_bytes(content)
    with (
        memory.at_most(mib=1),
        pytest.raises(ValueError, match=r'model\.safetensors cannot be read') as error,
    ):
        read_tensors(path)
    assert '\n' not in str(error.value)
