"""Models for other programs: the same logits in ONNX Runtime and in PyTorch."""

import json
import types

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors import safe_open
from safetensors.numpy import load_file

import jaxfed
from jaxfed import export
from jaxfed.export import main
from jaxfed.models import MODELS

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3)).astype(np.uint8)
LABELS = np.arange(40) % 10


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """Trains a network for one round, once, and returns its work directory and logits."""
    done = {}

    def of(model, **settings):
        key = (model, *settings.values())
        if key not in done:
            workdir = tmp_path_factory.mktemp('runs') / model
            config = jaxfed.Config(
                model=model, num_clients=2, clients_per_round=2, partition='iid', rounds=1,
                local_epochs=1, batch_size=20, workdir=str(workdir), **settings,
            )  # fmt: skip
            dataset = jaxfed.Dataset.from_arrays(IMAGES, LABELS, IMAGES, LABELS)
            jaxfed.simulate(config, dataset=dataset, quiet=True)
            done[key] = workdir, np.asarray(jaxfed.load(workdir).apply(IMAGES))
        return done[key]

    return of


def written(workdir, form, tmp_path):
    path = tmp_path / f'model{export.FORMATS[form][1]}'
    assert main([str(workdir), f'--format={form}', f'--output={path}']) == 0
    return path


def standardised(path):
    """Images as PyTorch takes them, with the statistics in the file."""
    with safe_open(path, framework='numpy') as file:
        mean, std = (json.loads(file.metadata()[name]) for name in ('mean', 'std'))
    return ((IMAGES - mean) / std).astype(np.float32).transpose(0, 3, 1, 2)


@pytest.mark.slow
def test_safetensors_has_the_arrays_and_the_description(run, tmp_path):
    workdir, _ = run('mlp')
    path = written(workdir, 'safetensors', tmp_path)
    ours, theirs = load_file(workdir / 'model.safetensors'), load_file(path)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert_array_equal(array, theirs[name])
    with safe_open(path, framework='numpy') as file:
        assert json.loads(file.metadata()['network'])['model'] == 'mlp'


@pytest.mark.parametrize('form', ['torch', 'safetensors'])
def test_the_model_of_the_run_is_kept(form, run, tmp_path, capsys):
    workdir, _ = run('mlp')
    (tmp_path / 'link').symlink_to(workdir)
    output = tmp_path / 'link' / 'model.safetensors'
    assert main([str(workdir), f'--format={form}', f'--output={output}']) == 2
    assert f'--output={output} is the model of the run; name another' in capsys.readouterr().err
    jaxfed.load(workdir)


def test_each_format_has_a_file_of_its_own_by_default(run):
    workdir, _ = run('mlp')
    assert main([str(workdir), '--format=torch']) == 0
    assert main([str(workdir), '--format=safetensors']) == 0
    theirs = load_file(workdir / 'exported_torch.safetensors')
    assert load_file(workdir / 'exported.safetensors').keys() != theirs.keys()


@pytest.mark.slow
@pytest.mark.parametrize('model', ['mlp', 'lenet', 'cnn', 'cnn_dropout', 'resnet8'])
def test_onnx_runtime_gives_the_same_logits(model, run, tmp_path):
    pytest.importorskip('jax2onnx')
    runtime = pytest.importorskip('onnxruntime')
    workdir, want = run(model)
    session = runtime.InferenceSession(written(workdir, 'onnx', tmp_path))
    (entry,) = session.get_inputs()
    for number in (1, len(IMAGES)):
        (got,) = session.run(None, {entry.name: IMAGES[:number].astype(np.float32)})
        assert_allclose(got, want[:number], atol=1e-5)


def plain_torch(model):
    nn = pytest.importorskip('torch').nn

    class Plain(nn.Module):
        """The layers by jaxfed's names, in the order in which they are used."""

        def __init__(self, convolutions, dense, unpooled=()):
            super().__init__()
            self.unpooled = unpooled
            self.names = [name for name, _ in (*convolutions, *dense)]
            for name, layer in (*convolutions, *dense):
                setattr(self, name, layer)
            self.depth = len(convolutions)

        def forward(self, x):
            for i, name in enumerate(self.names):
                if i == self.depth:
                    x = x.flatten(1)
                x = getattr(self, name)(x)
                x = x.relu() if i < len(self.names) - 1 else x
                if i < self.depth and name not in self.unpooled:
                    x = nn.functional.max_pool2d(x, 2)
            return x

    def dense(**sizes):
        return [(name, nn.Linear(*size)) for name, size in sizes.items()]

    conv = nn.Conv2d
    layers = {
        'mlp': ([], dense(hidden1=(3072, 200), hidden2=(200, 200), classifier=(200, 10))),
        'cnn': (
            [('conv1', conv(3, 32, 5, padding=2)), ('conv2', conv(32, 64, 5, padding=2))],
            dense(hidden=(4096, 512), classifier=(512, 10)),
        ),
        'lenet': (
            [('conv1', conv(3, 6, 5)), ('conv2', conv(6, 16, 5))],
            dense(hidden1=(400, 120), hidden2=(120, 84), classifier=(84, 10)),
        ),
    }
    layers['cnn_dropout'] = (
        [('conv1', conv(3, 32, 3)), ('conv2', conv(32, 64, 3))],
        dense(hidden=(12544, 128), classifier=(128, 10)),
        ['conv1'],
    )
    return Plain(*layers[model])


@pytest.mark.parametrize('model', ['mlp', 'lenet', 'cnn', 'cnn_dropout'])
def test_pytorch_gives_the_same_logits(model, run, tmp_path):
    torch = pytest.importorskip('torch')
    workdir, want = run(model)
    path = written(workdir, 'torch', tmp_path)
    module = plain_torch(model)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in load_file(path).items()})
    with torch.no_grad():
        got = module(torch.from_numpy(standardised(path))).numpy()
    assert_allclose(got, want, atol=1e-5)


def test_rows_of_vgg_follow_the_channels_first(tmp_path):
    # Of images of 64 x 64, the classifier reads a flattened map of 2 x 2 x 512.
    kernel = np.arange(2048 * 3, dtype=np.float32).reshape(2048, 3)
    arrays = {
        'stages.4.convs.1.kernel': np.zeros((3, 3, 512, 512), np.float32),
        'classifier.kernel': kernel,
    }
    facts = {'network': {'model': 'vgg11'}, 'adapted': False, 'mean': [0.0], 'std': [1.0]}
    network = types.SimpleNamespace(
        metadata=types.SimpleNamespace(**facts, input_shape=(64, 64, 3)), arrays=arrays, stats=()
    )
    export.to_torch(network, tmp_path / 'x.safetensors')
    found = load_file(tmp_path / 'x.safetensors')['classifier.weight']
    wanted = kernel.reshape(2, 2, 512, 3).transpose(3, 2, 0, 1).reshape(3, 2048)
    assert_array_equal(found, wanted)


@pytest.mark.slow
def test_torchvision_loads_a_resnet(run, tmp_path):
    torch = pytest.importorskip('torch')
    models = pytest.importorskip('torchvision.models')
    workdir, want = run('resnet18', stem='imagenet')
    path = written(workdir, 'torch', tmp_path)
    module = models.resnet18(num_classes=10).eval()
    module.load_state_dict({k: torch.from_numpy(v) for k, v in load_file(path).items()})
    with torch.no_grad():
        got = module(torch.from_numpy(standardised(path))).numpy()
    assert_allclose(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_names_and_layouts_of_a_residual_network(run, tmp_path):
    workdir, _ = run('resnet8')
    ours = load_file(workdir / 'model.safetensors')
    theirs = load_file(written(workdir, 'torch', tmp_path))
    pairs = {
        'stem.conv.kernel': 'conv1.weight',
        'stem.norm.scale': 'bn1.weight',
        'blocks.1.conv2.conv.kernel': 'layer2.0.conv2.weight',
        'blocks.2.shortcut.conv.kernel': 'layer3.0.downsample.0.weight',
        'batch_stats.blocks.2.shortcut.norm.var': 'layer3.0.downsample.1.running_var',
    }
    for name, other in pairs.items():
        array = ours[name]
        want = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
        assert_array_equal(theirs[other], want)
    assert_array_equal(theirs['fc.weight'], ours['classifier.kernel'].T)
    normalisations = sum(name.endswith('.mean') for name in ours)
    assert len(theirs) == len(ours) + normalisations  # num_batches_tracked


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['none'], 'the following arguments are required: --format; --help lists the flags'),
        (['none', '--format=tflite'], "invalid choice: 'tflite'"),
        (['none', '--format=torch', '--output=x.safetensors'], 'workdir=none is not a run'),
        (['none', '--format=torch', '--output=x.onnx'], '--output=x.onnx must end in .safetensors'),
        (['none', '--format=torch', '--output=no/x.safetensors'], 'workdir=none is not a run'),
    ],
)
def test_bad_arguments(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = ' '.join(capsys.readouterr().err.split())
    assert message in shown and shown.startswith('error: ')
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_network_that_diverged_is_refused(run, tmp_path, capsys):
    workdir, _ = run('mlp', learning_rate=1e38, weight_decay=1e5, on_divergence='record')
    path = tmp_path / 'x.safetensors'
    assert main([str(workdir), '--format=safetensors', f'--output={path}']) == 2
    assert 'values that are not finite, because' in ' '.join(capsys.readouterr().err.split())
    assert not path.exists()


def test_the_folder_of_the_output_must_exist(run, tmp_path, capsys):
    workdir, _ = run('mlp')
    path = tmp_path / 'no' / 'x.safetensors'
    assert main([str(workdir), '--format=torch', f'--output={path}']) == 2
    assert f'there is no folder {path.parent}; make it' in ' '.join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_program_exports_the_network_that_it_registers(run, tmp_path, monkeypatch):
    def linear(input_shape, num_classes):
        def apply(params, x):
            return x.reshape(-1, 3072) @ params['w']

        return lambda key: {'w': jnp.ones((3072, num_classes))}, apply

    monkeypatch.setitem(MODELS, 'linear', linear)
    workdir, _ = run('linear')
    theirs = load_file(written(workdir, 'safetensors', tmp_path))
    assert theirs.keys() == {'w'} and not np.all(theirs['w'] == 1)


@pytest.mark.slow
def test_an_adapted_network_is_refused(run, tmp_path, capsys):
    workdir, _ = run('mlp', method='ditto')
    assert main([str(workdir), '--format=torch', f'--output={tmp_path / "x.safetensors"}']) == 2
    assert 'knows the built-in networks as they are' in ' '.join(capsys.readouterr().err.split())


TOKENS = np.where(np.arange(9) < 4 + LABELS[:, None] % 5, 1 + (IMAGES[:, 0, :9, 0] % 50), 0).astype(
    int
)
SIGNALS = IMAGES[:, :1, :, :].astype(np.float32)
OTHERS = {
    'text': (TOKENS, {'model': 'text'}),
    'transformer': (TOKENS, {'model': 'text', 'encoder': 'transformer'}),
    'cnn1d': (SIGNALS, {'model': 'cnn1d'}),
}


@pytest.fixture(scope='module')
def run_on(tmp_path_factory):
    """Trains a network on other inputs than images; returns its work directory and logits."""

    def of(name):
        x, settings = OTHERS[name]
        workdir = tmp_path_factory.mktemp('runs') / name
        config = jaxfed.Config(
            num_clients=2, clients_per_round=2, partition='iid', rounds=1, local_epochs=1,
            batch_size=20, workdir=str(workdir), **settings,
        )  # fmt: skip
        dataset = jaxfed.Dataset.from_arrays(x, LABELS, x, LABELS)
        jaxfed.simulate(config, dataset=dataset, quiet=True)
        return workdir, np.asarray(jaxfed.load(workdir).apply(x))

    return of


@pytest.mark.slow
@pytest.mark.parametrize('name', OTHERS)
def test_onnx_runtime_takes_signals_and_token_ids(name, run_on, tmp_path):
    pytest.importorskip('jax2onnx')
    runtime = pytest.importorskip('onnxruntime')
    workdir, want = run_on(name)
    session = runtime.InferenceSession(written(workdir, 'onnx', tmp_path))
    (entry,) = session.get_inputs()
    x = TOKENS[:, None, :, None].astype(np.int32) if name != 'cnn1d' else SIGNALS
    (got,) = session.run(None, {entry.name: x})
    assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_pytorch_takes_the_embeddings(run_on, tmp_path):
    torch = pytest.importorskip('torch')
    workdir, want = run_on('text')
    arrays = {
        name: torch.tensor(array)
        for name, array in load_file(written(workdir, 'torch', tmp_path)).items()
    }
    embedding = torch.nn.Embedding(*arrays['embedding.weight'].shape, padding_idx=0)
    embedding.load_state_dict({'weight': arrays['embedding.weight']})
    classifier = torch.nn.Linear(128, 10)
    classifier.load_state_dict({name: arrays[f'classifier.{name}'] for name in ('weight', 'bias')})
    tokens = torch.tensor(TOKENS)
    real = (tokens > 0).float()[..., None]
    means = (embedding(tokens) * real).sum(1) / real.sum(1)
    assert_allclose(classifier(means).detach().numpy(), want, atol=1e-5)
