"""Methods that follow each other, heads, costs, divergence, and the method of the README."""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxfed
from jaxfed import losses, methods
from jaxfed.engine.cohorts import everyone
from jaxfed.methods._steps import effective_steps
from jaxfed.methods.chain import chain
from jaxfed.methods.costs import method_cost, size_of
from jaxfed.methods.switch import switch
from jaxfed.models import as_model, make_model
from jaxfed.models.heads import with_projection, without_bias
from jaxfed.recording import display
from jaxfed.types import Model, Outputs
from tests.engine import test_round
from tests.marks import only_fast
from tests.rounds import run_round


class ModelContrastive(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_by_hand(self):
        # cos = 1 towards the global model and 0 away from the previous one: log(1 + e^(-1/tau)).
        loss = self.variant(losses.model_contrastive)
        f, other = jnp.array([[2.0, 0.0], [0.0, 3.0]]), jnp.array([[0.0, 5.0], [0.0, 1.0]])
        got = loss(f, f, other, temperature=0.5)
        np.testing.assert_allclose(got, [np.log1p(np.exp(-2.0)), np.log(2.0)], rtol=1e-6)

    @chex.variants(with_jit=True, without_jit=True)
    def test_gradient_by_hand(self):
        # f = (1, 0), f_g = (1, 1) / sqrt 2, f_p = (0, 1): d cos / df = (0, 1 / sqrt 2) and (0, 1).
        def loss(f, f_g, f_p):
            return losses.model_contrastive(f, f_g, f_p, temperature=1.0).sum()

        f, f_g, f_p = jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 1.0]]), jnp.array([[0.0, 1.0]])
        got = self.variant(jax.grad(loss, argnums=(0, 1, 2)))(f, f_g, f_p)
        share = 1 / (1 + np.exp(0.5**0.5))
        np.testing.assert_allclose(got[0], [[0, share * (1 - 0.5**0.5)]], atol=1e-6)
        assert not np.any(got[1]) and not np.any(got[2])

    def test_zeros_and_large_features_are_finite(self):
        for scale in (0.0, 1e4):
            f = jnp.full((2, 3), scale)
            value, gradient = jax.value_and_grad(
                lambda f: losses.model_contrastive(f, -f, f, temperature=0.1).sum()
            )(f)
            chex.assert_tree_all_finite((value, gradient))


@pytest.mark.parametrize('momentum', [0.0, 0.5, 0.9, 0.99, 0.9999, 0.999999, 1 - 2**-24])
def test_effective_steps_are_the_weights_of_the_gradients(momentum):
    momentum = float(np.float32(momentum))
    for steps in (1, 2, 7, 50, 2000):
        moved, velocity = 0.0, 0.0
        for _ in range(steps):  # every gradient is 1, the learning rate too
            velocity = momentum * velocity + 1.0
            moved += velocity
        assert float(effective_steps(steps, momentum)) == pytest.approx(moved, rel=1e-6)


@pytest.mark.slow
def test_switch_is_the_first_method_and_then_the_second():
    first, second = methods.METHODS['fedavg'](), test_round.drifting()
    both = switch(first, second, rounds=2)
    data = test_round.training_data()
    cohorts = [[0, 1, 2], [3, 4, 5], [1, 3, 5], [0, 1, 4]]

    def run(method, cohorts):
        _, settings, server, states, programs = test_round.set_up(method)
        return test_round.rounds(programs, settings, server, states, cohorts, 2, data)[0]

    before = run(first, cohorts[:2])
    chex.assert_trees_all_close(run(both, cohorts[:2]).params, before.params, rtol=1e-6)
    # The second method's state changes only in its rounds.
    assert float(run(both, cohorts[:2]).method[1]['rounds']) == 0
    after = run(both, cohorts[:3])
    assert float(after.method[1]['rounds']) == 1
    _, settings, server, states, (programs, mesh) = test_round.set_up(second)
    alone = run_round(
        programs,
        mesh,
        server._replace(params=before.params, round=before.round),
        states,
        everyone(cohorts[2], settings.local_epochs),
        test_round.plan(settings, cohorts[2], 2, 1),
        0.03 * 0.9**2,
        jax.random.key(5),
        data,
    )[0]
    chex.assert_trees_all_close(after.params, alone.params, rtol=1e-5, atol=1e-6)
    moved = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), after.params, before.params)
    assert max(jax.tree.leaves(moved)) > 1e-3
    assert float(run(both, cohorts).method[1]['rounds']) == 2


@pytest.mark.slow
def test_only_the_method_of_a_round_computes():
    calls = []

    def share(server):
        jax.debug.callback(lambda: calls.append('share'))
        return jnp.ones(())

    def begin(client):
        jax.debug.callback(lambda: calls.append('begin'))
        return client.shared

    second = methods.Method(share=share, begin=begin, penalty=lambda view: 0 * view.begun)
    both = switch(methods.METHODS['fedavg'](), second, rounds=1)
    data = test_round.training_data()
    for cohorts, expected in (([[0, 1]], set()), ([[0, 1], [2, 3]], {'share', 'begin'})):
        _, settings, server, states, programs = test_round.set_up(both)
        test_round.rounds(programs, settings, server, states, cohorts, 2, data)
        jax.effects_barrier()
        assert set(calls) == expected


def test_switch_on_the_command_line():
    parts = methods.resolve('fedlmd_tf+fedprox,fedlmd+fedprox', {'mu': 0.2, 'fedlmd.beta': 2.0})
    assert [(part.name, part.phase) for part in parts] == [
        ('fedlmd_tf', 0),
        ('fedprox', 0),
        ('fedlmd', 1),
        ('fedprox', 1),
    ]
    assert parts[1].hyperparameters == parts[3].hyperparameters == {'mu': 0.2}
    assert parts[2].hyperparameters['beta'] == 2.0
    methods.build(parts, switch_round=3)
    with pytest.raises(ValueError, match='need --switch_round, the last round of the first'):
        methods.build(parts)
    with pytest.raises(ValueError, match=r'--switch_round=3 needs two methods'):
        methods.build(methods.resolve('fedlmd', {}), switch_round=3)
    with pytest.raises(ValueError, match='switch_round must be at least 1, got 0'):
        methods.build(parts, switch_round=0)
    with pytest.raises(ValueError, match='at most two methods'):
        methods.resolve('fedavg,fedlmd,fedntd', {})


@pytest.mark.parametrize(
    'both, alone',
    [
        ('scaffold+fedavg,scaffold', 'scaffold'),
        ('fedavg+fedavgm,fedavgm', 'fedavgm'),
        pytest.param(
            'fedlmd+fedavg+fedavgm,fedlmd+fedavgm', 'fedlmd+fedavgm', marks=pytest.mark.slow
        ),
        pytest.param('fedlmd,fedlmd', 'fedlmd', marks=pytest.mark.slow),
        # Its momentum begins at 0 in the second round.
        ('fedavg+fedavgm+kd,fedprox+fedavgm+fedavg', None),
    ],
)
def test_parts_that_begin_or_end_both_methods_go_on(both, alone):
    data, cohorts = test_round.training_data(), [[0, 1, 2], [3, 4, 5], [1, 3, 5]]

    def trained(specification):
        settings = {'kd.beta': 0.0} if 'kd' in specification else {}
        settings |= {'mu': 0.0} if 'fedprox' in specification else {}
        rounds = 1 if ',' in specification else None
        method = methods.build(methods.resolve(specification, settings), switch_round=rounds)
        _, settings, server, states, programs = test_round.set_up(method)
        return test_round.rounds(programs, settings, server, states, cohorts, 2, data)[0].params

    if alone:
        chex.assert_trees_all_close(trained(both), trained(alone), rtol=1e-5, atol=1e-6)
    else:
        differences = jax.tree.map(
            lambda a, b: jnp.abs(a - b).max(), trained(both), trained('fedavgm')
        )
        assert max(jax.tree.leaves(differences)) > 1e-3


@pytest.mark.parametrize(
    'specification, alone',
    [
        ('kd+dp,fedlmd+dp', 'dp'),
        ('fedper+kd,fedper+fedlmd', 'fedper'),
        ('ditto,ditto+fedlmd', 'ditto'),
        ('fedbuff,fedlmd+fedbuff', 'fedbuff'),
    ],
)
def test_noise_delays_and_kept_parameters_of_both_methods(specification, alone):
    both = methods.build(methods.resolve(specification, {}), switch_round=1)
    part = methods.METHODS[alone]()
    assert (both.privacy, both.delays) == (part.privacy, part.delays)
    assert bool(both.receive) == bool(part.receive)


@pytest.mark.parametrize(
    'specification, error',
    [
        ('dp,fedlmd', r'--method=dp,fedlmd: dp and .* as in kd\+dp,fedlmd\+dp'),
        ('kd+fedbuff,fedlmd', 'delayed updates would be lost'),
        ('kd,fedper+kd', r'name them first in both, as in fedper\+kd,fedper\+fedlmd'),
    ],
)
def test_noise_delays_and_kept_parameters_need_both_methods(specification, error):
    parts = methods.resolve(specification, {})
    with pytest.raises(ValueError, match=error):
        methods.build(parts, switch_round=1)


@pytest.mark.parametrize(
    'specification', ['moon+fedavgm,moon+fedprox', 'kd+moon+fedavgm,fedlmd+moon+fedprox']
)
def test_a_part_of_both_phases_adapts_the_network_once(specification):
    parts = methods.resolve(specification, {'projection': True})
    both, one = methods.build(parts, switch_round=1), methods.METHODS['moon'](projection=True)
    network = make_model('mlp', input_shape=(4, 4, 1), num_classes=3)
    params = [jax.eval_shape(m.adapt(network).init, jax.random.key(0)) for m in (both, one)]
    chex.assert_trees_all_equal(*params)
    assert 'project1' in params[0]


def test_without_bias():
    model = make_model('mlp', input_shape=(4, 4, 1), num_classes=3)
    bare = without_bias(model)
    params = bare.init(jax.random.key(0))
    assert set(params['classifier']) == {'kernel'}
    outputs = bare.apply(params, jnp.ones((2, 4, 4, 1)))
    want = outputs.features @ params['classifier']['kernel']
    np.testing.assert_allclose(outputs.logits, want, rtol=1e-5)
    assert without_bias(bare) is bare
    for other in (
        {'last': jnp.zeros((2, 3))},
        {'classifier': jnp.zeros((2, 3))},
        {'classifier': {'kernel': jnp.zeros(3)}},
    ):
        with pytest.raises(ValueError, match='last layer cannot be changed'):
            without_bias(Model(lambda key, other=other: other, model.apply))


def test_with_projection():
    model = make_model('mlp', input_shape=(4, 4, 1), num_classes=3)
    wide = with_projection(model)
    params, x = wide.init(jax.random.key(0)), jnp.ones((2, 4, 4, 1))
    assert params['classifier']['kernel'].shape == (256, 3)
    for name, layer in model.init(jax.random.key(0)).items():  # the body is that of the seed
        if name != 'classifier':
            chex.assert_trees_all_equal(params[name], layer)
    outputs = wide.apply(params, x)
    body = {**params, 'classifier': model.init(jax.random.key(1))['classifier']}
    hidden = model.apply({k: v for k, v in body.items() if 'project' not in k}, x).features
    for name in ('project1', 'project2'):
        inputs, layer = hidden, params[name]
        hidden = inputs @ layer['kernel'] + layer['bias']
        hidden = jax.nn.relu(hidden) if name == 'project1' else hidden
    np.testing.assert_allclose(outputs.features, hidden, rtol=1e-5)
    classifier = params['classifier']
    logits = hidden @ classifier['kernel'] + classifier['bias']
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-5)
    bound = 1 / np.sqrt(256)
    assert jnp.abs(classifier['kernel']).max() <= bound
    for both in (with_projection(without_bias(model)), without_bias(with_projection(model))):
        params = both.init(jax.random.key(0))
        assert set(params['classifier']) == {'kernel'}
        outputs = both.apply(params, x)
        want = outputs.features @ params['classifier']['kernel']
        np.testing.assert_allclose(outputs.logits, want, rtol=1e-5)


def test_a_projection_beside_layers_of_a_similar_name():
    class Network(nnx.Module):
        def __init__(self, first, rngs):
            setattr(self, first, nnx.Linear(4, 6, rngs=rngs))
            self.first, self.classifier = first, nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x):
            features = nnx.relu(getattr(self, self.first)(x.reshape(-1, 4)))
            return Outputs(self.classifier(features), features)

    x = jnp.ones((2, 2, 2, 1))
    model = as_model(functools.partial(Network, 'projection'))
    wide = with_projection(model)
    params = wide.init(jax.random.key(0))
    assert params.keys() == {'projection', 'project1', 'project2', 'classifier'}
    kept = {**params, 'classifier': model.init(jax.random.key(1))['classifier']}
    hidden = model.apply({name: kept[name] for name in ('projection', 'classifier')}, x).features
    one, two = (params[f'project{i}'] for i in (1, 2))
    inner = jax.nn.relu(hidden @ one['kernel'] + one['bias'])
    projected = inner @ two['kernel'] + two['bias']
    np.testing.assert_allclose(wide.apply(params, x).features, projected, rtol=1e-5)
    with pytest.raises(ValueError, match='the network has project1, too: rename it'):
        with_projection(as_model(functools.partial(Network, 'project1')))


def cost(name, **hyper):
    method = methods.METHODS[name](**hyper) if isinstance(name, str) else name
    model = make_model('mlp', input_shape=(8, 8, 1), num_classes=10)
    return method_cost(method, model, input_shape=(8, 8, 1), num_classes=10)


@pytest.mark.parametrize(
    'name, upload, download, client, server, forward, passes',
    [
        ('fedavg', 1, 1, 0, 0, 0, 0),
        ('scaffold', 2, 2, 1, 1, 0, 0),
        ('fedcurv', 2, 3, 2, 2, 0, 1),
        ('feddyn', 1, 1, 1, 1, 0, 0),
        ('moon', 1, 1, 1, 0, 2, 0),
        ('kd', 1, 1, 0, 0, 1, 0),
        ('fedgkd', 1, 2, 0, 4, 1, 0),
        ('fedlmd_tf', 1, 1, 0, 0, 0, 0),
        ('fedavgm', 1, 1, 0, 1, 0, 0),
        ('fedadam', 1, 1, 0, 2, 0, 0),
        ('ditto', 1, 1, 1, 0, 1, 0),
        ('apfl', 1, 1, 1, 0, 1, 0),
        ('fedbuff', 1, 1, 0, 3, 0, 0),
    ],
)
def test_costs(name, upload, download, client, server, forward, passes):
    got = cost(name)
    size = got.parameter_bytes
    assert size == 4 * (64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10)
    # FedCurv and FedGKD send a number or a bool of the last round, too.
    assert (got.upload, got.download) == (upload, pytest.approx(download, abs=1e-4))
    assert got.client_state_bytes == pytest.approx(client * size, abs=8)
    assert got.server_state_bytes == pytest.approx(server * size, abs=12)
    assert (got.forward_passes, got.data_passes) == (forward, passes)


@pytest.mark.slow
def test_costs_of_combinations_and_small_messages():
    matrix = cost('fedssd')
    assert matrix.download_bytes - matrix.parameter_bytes == 4 * 10 * 10
    assert matrix.auxiliary == 64
    # Two parts with one teacher evaluate it once.
    both = chain(methods.METHODS['fedlmd'](), methods.METHODS['kd'](), methods.METHODS['moon']())
    assert cost(both).forward_passes == 2
    assert cost('fedcad', source='client').data_passes == 1
    # The classifier of fedrs has no bias: ten numbers less.
    assert display.cost_in_words(cost('fedrs')._asdict()) == 'upload -40 B, download -40 B'
    # One method after another has the larger message, and the passes of both.
    fedavg, curv, top = (methods.METHODS[name]() for name in ('fedavg', 'fedcurv', 'topk'))
    assert cost(switch(top, fedavg, rounds=1)).upload == 1
    assert cost(switch(fedavg, top, rounds=1)).upload == 1
    assert cost(switch(top, top, rounds=1)).upload == cost(top).upload < 1
    assert cost(switch(fedavg, curv, rounds=1)).data_passes == 1
    with pytest.raises(ValueError, match=r'so quantize must come after it, as in topk\+quantize'):
        cost(chain(methods.METHODS['quantize'](), top))


def test_costs_of_parameters_that_stay():
    head, body = 4 * (200 * 10 + 10), 4 * (64 * 200 + 200 + 200 * 200 + 200)
    got = cost('fedper')
    assert (got.upload_bytes, got.download_bytes, got.client_state_bytes) == (body, body, head)
    names = 'fedper', 'topk', 'quantize'
    got = cost(chain(*(methods.METHODS[name]() for name in names)))
    # A tenth of the entries, each of 8 bits with its place in 32; a norm for each array.
    assert got.upload_bytes == body // 4 // 10 * 5 + 4 * 4
    assert got.download_bytes == body
    network = make_model('resnet8', input_shape=(8, 8, 1), num_classes=10)
    method = methods.METHODS['fedbn']()
    got = method_cost(method, network, input_shape=(8, 8, 1), num_classes=10)
    stays = got.client_state_bytes
    assert got.upload_bytes == got.download_bytes == got.parameter_bytes - stays
    assert stays == 2 * size_of(network.stats)  # scale and bias beside mean and variance


def test_every_teacher_of_a_method_counts_as_one_forward_pass():
    def penalty(view):
        def value(teacher):
            return view.mean(view.apply(teacher, view.batch.x).logits.sum(-1))

        # Each scaled tree is freed before the next one, which may then have its id.
        scaled = (jax.tree.map(lambda w, s=s: s * w, view.global_params) for s in range(5))
        return sum(map(value, scaled)) + value(view.global_params) + value(view.global_params)

    assert cost(methods.Method(penalty=penalty)).forward_passes == 6


@pytest.mark.slow
def test_a_run_that_diverges_can_be_recorded(cheap_runs, tmp_path):
    settings = jaxfed.Config(
        learning_rate=1e12, rounds=3, model='mlp', devices='1', lanes=1, workdir=str(tmp_path / 'a')
    )
    with pytest.raises(jaxfed.Diverged, match='--on_divergence=record'):
        jaxfed.simulate(settings)
    recorded = {'workdir': str(tmp_path / 'b'), 'on_divergence': 'record'}
    result = jaxfed.simulate(dataclasses.replace(settings, **recorded))
    assert result.summary['failed']
    evaluated = {'best_round': 1, 'best_accuracy': 0.5, 'final_accuracy': 0.5}
    shown = display._summary_rows({**result.summary, **evaluated})
    assert shown['final accuracy'] == '50.00% when last evaluated'
    last = json.loads((tmp_path / 'b' / 'metrics.jsonl').read_text().splitlines()[-1])
    assert last['failed'] and last['train_loss'] is last['test_accuracy'] is None
    assert result.summary['rounds'] == last['round']


@pytest.mark.parametrize('personal', only_fast(['ditto', 'apfl']))
def test_clipping_a_pair_of_models_clips_the_one_that_is_sent(personal, cheap_runs, tmp_path):
    def common(method):
        settings = jaxfed.Config(
            method=method,
            hyperparameters={'noise': 0.0, 'clip': 0.05},
            rounds=2,
            model='mlp',
            devices='1',
            lanes=1,
            workdir=str(tmp_path / method),
        )
        return jaxfed.simulate(settings).params

    chex.assert_trees_all_close(common(f'{personal}+dp')['model'], common('dp'), rtol=1e-5)


@pytest.mark.slow
def test_the_method_of_the_readme_runs(tmp_path):
    readme = (Path(__file__).parents[2] / 'README.md').read_text()
    code = re.search(r'```python\n(# mine\.py.*?)```', readme, re.DOTALL)
    assert code
    assert len(code[1].splitlines()) <= 30
    (tmp_path / 'mine.py').write_text(code[1])
    flags = '--method=confidence+fedlmd --strength=0.1 --model=mlp --rounds=1 --lanes=1 '
    flags += '--workdir=out'
    done = subprocess.run(
        [sys.executable, 'mine.py', *flags.split()],
        cwd=tmp_path,
        env={
            **os.environ,
            'JAXFED_CACHE_DIR': str(tmp_path),
            'JAX_DISABLE_MOST_OPTIMIZATIONS': 'true',  # compiles in half the time
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    parts = json.loads((tmp_path / 'out' / 'config.json').read_text())['method_parts']
    assert parts[0]['name'] == 'confidence'
    assert parts[0]['hyperparameters'] == {'strength': 0.1}
