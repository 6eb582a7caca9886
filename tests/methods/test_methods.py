"""The registry of methods, and how methods combine."""

import functools
import re
import subprocess
import sys
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed import Config, methods, simulate
from jaxfed.methods import (
    Method,
    Part,
    build,
    chain,
    check_method,
    describe,
    hyperparameters,
    resolve,
    switch,
)
from jaxfed.methods.method import LocalView, MergeView
from jaxfed.runs import config_flags
from jaxfed.types import Batch, Outputs


def test_resolve_fills_in_defaults():
    assert resolve('fedlmd+fedprox', {'beta': 2.0}) == [
        Part('fedlmd', {'beta': 2.0, 'tau': 1.0}),
        Part('fedprox', {'mu': 0.1}),
    ]


def test_each_part_has_its_own_hyperparameters():
    hyperparameters = {'fedlmd.tau': 3.0, 'kd.tau': 5.0, 'kd.beta': 0.5}
    assert resolve('fedlmd+kd', hyperparameters) == [
        Part('fedlmd', {'beta': 1.0, 'tau': 3.0}),
        Part('kd', {'beta': 0.5, 'tau': 5.0}),
    ]


@pytest.mark.parametrize(
    'specification, hyperparameters, message',
    [
        ('fedlmb', {}, "unknown method 'fedlmb'; did you mean .*fedlmd"),
        ('', {}, "unknown method ''"),
        ('fedlmd+', {}, "unknown method ''"),
        ('fedprox+fedprox', {}, 'named twice'),
        ('fedavg', {'mu': 1.0}, '--mu=1.0: --method=fedavg takes no such .* takes none'),
        ('fedlmd', {'mu': 1.0}, 'it takes --fedlmd.beta, --fedlmd.tau'),
        ('fedlmd', {'fedprox.mu': 1.0}, '--fedprox.mu=1.0'),
        ('fedlmd+kd', {'tau': 3.0}, '--fedlmd.tau or --kd.tau'),
        (
            'fedlmd',
            {'fedlmd.beta': 1.0, 'beta': 2.0},
            '--fedlmd.beta=1.0 and --beta=2.0 are both',
        ),
    ],
)
def test_resolve_refuses(specification, hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        resolve(specification, hyperparameters)


@pytest.mark.parametrize(
    'name, hyperparameters',
    [
        ('fedprox', {'mu': -1.0}),
        ('kd', {'beta': -1.0}),
        ('kd', {'tau': 0.0}),
        ('mse', {'alpha': -0.1}),
        ('label_smoothing', {'smoothing': 1.5}),
        ('fedlsd', {'alpha': 1.1}),
        ('fedlsd', {'tau': -1.0}),
        ('fedntd', {'tau': 0.0}),
        ('fedntd_tf', {'beta': float('nan')}),
        ('fedcad', {'beta': 0.6, 'gamma': 0.5}),
        ('fedcad', {'source': 'nobody'}),
        ('fedcad', {'auxiliary': 0}),
        ('fedssd', {'max_weight': -1.0}),
        ('fedssd', {'auxiliary': 0}),
        ('fedssd', {'form': 'literal'}),
        ('fedlmd', {'beta': -1.0}),
        ('fedlmd_tf', {'tau': 0.0}),
        ('kd', {'beta': float('inf')}),
        ('fedssd', {'max_weight': float('inf')}),
        ('mse', {'alpha': -float('inf')}),
        ('fedprox', {'mu': True}),
        ('fedprox', {'mu': 'much'}),
        ('fedssd', {'auxiliary': 2.5}),
        ('fedcurv', {'lam': -1.0}),
        ('feddyn', {'alpha': -0.1}),
        ('moon', {'mu': -1.0}),
        ('moon', {'projection': 1}),
        ('fedrs', {'alpha': 1.5}),
        ('fedlc', {'tau': -0.1}),
        ('logit_adjustment', {'tau': float('inf')}),
        ('feddecorr', {'beta': -1.0}),
        ('feddecorr', {'form': 'code'}),
        ('fedgkd', {'models': 0}),
        ('fedavgm', {'beta': 1.0}),
        ('fedavgm', {'form': 'polyak'}),
        ('fedadam', {'b2': 0.99999999}),  # 1 in float32
        ('fedyogi', {'b1': 1.0}),
        ('fedyogi', {'eps': 1e-50}),  # 0 in float32
        ('dp', {'noise': 1e-50}),
        ('fedadagrad', {'server_lr': 0.0}),
    ],
)
def test_build_refuses_values_out_of_range(name, hyperparameters):
    key, value = next(iter(hyperparameters.items()))
    with pytest.raises(ValueError, match=rf'--method={name}: .*{key}.* must be .*{value}'):
        build(resolve(name, hyperparameters))


WITH_TEMPERATURE = [
    name
    for name in methods.METHODS
    if 'tau' in hyperparameters(name) and name not in ('fedlc', 'logit_adjustment')
]


@pytest.mark.parametrize('name', WITH_TEMPERATURE)
@pytest.mark.parametrize('tau', ['inf', 'nan', '1e+200', '10000.0', '1e-05', '1e-320'])
def test_build_refuses_temperatures_out_of_range(name, tau):
    with pytest.raises(ValueError, match=rf'--method={name}: tau must be .*, got {re.escape(tau)}'):
        build(resolve(name, {'tau': float(tau)}))


def test_an_int_is_a_float_where_one_is_expected(monkeypatch):
    def mine(*, weight: float = 1, rounds: int = 2, limit: float | None = None):
        assert (type(weight), type(rounds)) == (float, int) and type(limit) is not int
        return methods.METHODS['fedprox'](mu=weight)

    monkeypatch.setitem(methods.METHODS, 'mine', mine)
    build(resolve('mine', {'weight': 2**33}))
    build(resolve('mine', {'rounds': 3, 'limit': 4}))


def test_two_supervised_losses_do_not_combine():
    with pytest.raises(ValueError, match='2 of the combined methods replace the cross-entropy'):
        build(resolve('fedcad+label_smoothing', {}))


@pytest.mark.parametrize('text', ['fednova+feddyn', 'fednova+kd+feddyn'])
def test_weights_are_not_dropped_by_a_later_part(text):
    with pytest.raises(
        ValueError, match=f'^--method={re.escape(text)}: .*weights of fednova would have no effect'
    ):
        build(resolve(text, {}))
    build(resolve('feddyn+fednova', {}))  # normalises equal weights
    kd, feddyn = (build(resolve(name, {})) for name in ('kd+fedprox', 'feddyn'))
    chain(kd, feddyn)  # a combination that leaves the weights alone


def test_chain_without_parts():
    with pytest.raises(ValueError, match='at least one'):
        chain()


@pytest.mark.slow
def test_building_methods_starts_no_device():
    # `jaxfed.use_every_core()` comes after the settings are checked, and before JAX starts.
    code = (
        'import jax; from jaxfed import methods; '
        '[build() for build in methods.METHODS.values()]; '
        "jax.config.update('jax_num_cpu_devices', 3); "  # refused once JAX has started
        'print(jax.device_count())'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout == '3\n', done.stderr


@pytest.mark.parametrize('name', methods.METHODS)
def test_every_method_documents_itself(name):
    sentence, paper = describe(name)
    assert sentence.endswith('.')
    assert '20' in paper  # the year
    document = methods.METHODS[name].__doc__
    for key, parameter in hyperparameters(name).items():
        assert f'{key}: ' in document
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.default is not parameter.empty


def test_chain_threads_the_update_and_keeps_states_apart():
    def scale(factor):
        return Method(
            init=lambda params, stats: (jnp.float32(factor), ()),
            merge=lambda m: (m.update * m.state + m.uploads, m.state + 1),
        )

    both = chain(scale(2), scale(3))
    server, client = both.init(jnp.zeros(()), ())
    assert client == ((), ())
    uploads = jnp.float32(10), jnp.float32(20)
    update, key = jnp.float32(1), jax.random.key(0)
    view = MergeView(update, jnp.zeros(()), (), server, uploads, key, ())
    update, state = both.merge(view)
    assert float(update) == (1 * 2 + 10) * 3 + 20
    assert [float(s) for s in state] == [3, 4]


def test_chain_adds_penalties_and_keeps_the_one_supervised_loss():
    first = Method(penalty=lambda view: view.static)
    second = Method(penalty=lambda view: 10 * view.static, supervised=lambda view: view.static)
    both = chain(first, second)
    view = LocalView(*[None] * len(LocalView._fields))
    view = view._replace(
        static=(jnp.float32(1), jnp.float32(2)),
        batch=Batch(None, jnp.int32(0), None),
        **{name: ((), ()) for name in ('state', 'shared', 'begun')},
    )
    assert float(both.penalty(view)) == 1 + 20
    assert float(both.supervised(view)) == 2


def test_the_mean_of_a_batch_is_of_one_value_for_each_real_example():
    batch = Batch(jnp.zeros((3, 1)), jnp.zeros(3, int), jnp.array([True, True, False]))
    view = LocalView(*[None] * len(LocalView._fields))._replace(batch=batch)
    assert view.mean(jnp.array([1.0, 3.0, 9.0])) == 2
    for values in (jnp.ones((3, 1)), jnp.ones(()), jnp.ones(2)):
        with pytest.raises(ValueError, match=r'one value for each example, shape \[3\], got'):
            view.mean(values)


@pytest.mark.parametrize('form, factor', [('linear', 0.01), ('squared', 0.01**2)])
def test_fedssd_squares_the_weights_of_classes_and_max_weight_by_its_form(form, factor):
    # p^g = (1/4, 3/4): M_sample = 1 - sqrt(1/4); M_class = 1, as the global model makes no mistake.
    teacher = jnp.array([[0.0, jnp.log(3.0)]])
    view = LocalView(*[None] * len(LocalView._fields))._replace(
        outputs=Outputs(teacher + jnp.array([1.0, 2.0]), jnp.zeros((1, 1))),
        evaluate=lambda params, x, *stats: Outputs(teacher, jnp.zeros((1, 1))),
        batch=Batch(jnp.zeros((1, 1)), jnp.array([1]), jnp.array([True])),
        shared=jnp.eye(2),
    )
    penalty = methods.METHODS['fedssd'](max_weight=0.01, form=form).penalty(view)
    np.testing.assert_allclose(penalty, factor * 0.4**2 * (1 + 4), rtol=1e-6)


@pytest.mark.parametrize(
    'method, message',
    [
        (Method(penalty=0.5), 'penalty must be a function penalty(view), got 0.5.'),
        (Method(merge=None), 'merge must be a function merge(view), got None.'),
        (Method(share=('a',)), "share must be a function share(server), got ('a',)."),
        (
            Method(penalty=lambda params, batch: 0.0),
            'penalty must be a function penalty(view), not penalty(params, batch).',
        ),
        (
            Method(init=lambda params: ((), ())),
            'init must be a function init(params, stats), not init(params).',
        ),
        (Method(auxiliary=2.5), 'auxiliary must be an integer of at least 0, got 2.5.'),
        (Method(auxiliary=-1), 'auxiliary must be an integer of at least 0, got -1.'),
        (Method(auxiliary=True), 'auxiliary must be an integer of at least 0, got True.'),
        (
            'fedlmd',
            "method must be a jaxfed.Method, got 'fedlmd'; the name of a method belongs in "
            'Config(method=...).',
        ),
        (
            methods.METHODS['fedlmd'],
            'method must be a jaxfed.Method, got fedlmd; call the function.',
        ),
        ({'penalty': 1}, "method must be a jaxfed.Method, got {'penalty': 1}."),
    ],
)
def test_a_value_that_is_not_a_method(method, message):
    with pytest.raises(ValueError) as refused:
        check_method(method)
    assert str(refused.value) == message


def test_a_failed_start_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ('fedlmd', Method(penalty=0.5)):
        with pytest.raises(ValueError, match='must be a'):
            simulate(Config(), method=method)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('name', methods.METHODS)
def test_every_method_passes_the_check(name):
    check_method(methods.METHODS[name]())


def test_hooks_may_be_any_callables():
    check_method(
        Method(
            share=dict,
            penalty=functools.partial(lambda weight, view: weight, 1.0),
            prepare=lambda *arguments: (),
            adapt=lambda model, width=3: model,
        )
    )


def test_a_combination_names_the_part_that_is_not_a_method():
    with pytest.raises(ValueError, match=r'each argument of chain\(\) must be .* got fedlmd; call'):
        chain(Method(), methods.METHODS['fedlmd'])
    with pytest.raises(ValueError, match='penalty must be a function'):
        chain(Method(), Method(penalty=1.0))
    with pytest.raises(ValueError, match=r"both methods of switch\(\) must be .* got 'fedavg'"):
        switch(Method(), 'fedavg', rounds=1)


def _without_default(*, beta: float) -> Method:
    return Method()


def _of_unknown_type(*, beta: 'Nowhere' = 1.0) -> Method:  # noqa: F821
    return Method()


def _of_other_choices(*, beta: Literal[1, 2] = 1) -> Method:
    return Method()


def _of_a_list(*, beta: list[float] = ()):
    return Method()


def _of_types_as_text(*, beta: 'float | None' = None, kind: "Literal['a', 'b']" = 'a') -> 'Nowhere':  # noqa: F821
    return Method()


@pytest.mark.parametrize(
    'factory, message',
    [
        (lambda: None, '--method=mine: its function must return a jaxfed.Method, got None.'),
        (
            lambda: Method(merge=lambda: ()),
            '--method=mine: merge must be a function merge(view), not merge().',
        ),
        (
            Method(),
            "METHODS['mine'] must be a function that returns a jaxfed.Method, got a Method;",
        ),
        (
            _without_default,
            "METHODS['mine']: its parameter beta must have a default value.",
        ),
        (
            lambda *, beta=1.0: Method(),
            "METHODS['mine']: its parameter beta must have the type bool, int, float, str, a "
            'Literal of texts, or one of them or None, as in beta: float = 1.0.',
        ),
        (
            _of_other_choices,
            "METHODS['mine']: its parameter beta must have the type bool, int, float, str, a",
        ),
        (
            _of_a_list,
            "METHODS['mine']: its parameter beta must have the type bool, int, float, str, a",
        ),
        (
            _of_unknown_type,
            "METHODS['mine']: the types of its parameters are unknown: name 'Nowhere' is not",
        ),
    ],
)
def test_a_registered_function_that_does_not_return_a_method(factory, message, monkeypatch):
    monkeypatch.setitem(methods.METHODS, 'mine', factory)
    with pytest.raises(ValueError, match=re.escape(message)):
        build(resolve('mine', {}))


@pytest.mark.parametrize('value', [jnp.float32(1), jnp.ones(3), np.ones(3)])
def test_a_hyperparameter_is_no_array(value):
    with pytest.raises(ValueError, match=r'mu must be a number, got .*: pass a plain Python'):
        build(resolve('fedprox', {'mu': value}))


def test_an_error_in_a_registered_function_names_its_line(monkeypatch):
    def misspelt():
        return Method(penality=lambda view: 0.0)

    def broken():
        raise RuntimeError('no table\nof classes')

    place = r"METHODS\['mine'\] \(test_methods\.py, line \d+\): "
    for factory, reason in (
        (misspelt, r"TypeError: .* argument 'penality'.*[Dd]id you mean '?penalty.*\?"),
        (broken, r'RuntimeError: no table\.'),
    ):
        monkeypatch.setitem(methods.METHODS, 'mine', factory)
        with pytest.raises(ValueError) as error:
            build(resolve('mine', {}))
        assert re.fullmatch(place + reason, str(error.value))


@pytest.mark.parametrize('name', ['my+method', 'my,method'])
def test_the_name_of_a_method_does_not_combine(name, monkeypatch):
    monkeypatch.setitem(methods.METHODS, name, Method)
    with pytest.raises(ValueError, match=rf"METHODS\['{re.escape(name)}'\]: its name must have no"):
        resolve(f'fedprox+{name}', {})
    assert resolve('fedprox', {})


def test_types_as_text_are_types(monkeypatch):
    monkeypatch.setitem(methods.METHODS, 'mine', _of_types_as_text)
    assert resolve('mine', {}) == [Part('mine', {'beta': None, 'kind': 'a'})]
    assert config_flags.parse(['--method=mine', '--mine.kind=b']).hyperparameters == {
        'mine.kind': 'b'
    }
    with pytest.raises(ValueError, match=r'--mine\.beta must be a number, got x'):
        config_flags.parse(['--method=mine', '--mine.beta=x'])
    with pytest.raises(ValueError, match='--method=mine: kind must be one of a, b, got c'):
        build(resolve('mine', {'kind': 'c'}))


def test_a_program_with_an_invalid_method_ends_with_one_line(tmp_path):
    (tmp_path / 'mine.py').write_text(
        'from jaxfed import main, methods\n'
        "methods.METHODS['mine'] = lambda *, beta=1.0: methods.METHODS['fedavg']()\n"
        'main.run()\n'
    )
    done = subprocess.run(
        [sys.executable, 'mine.py', '--help'], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count('\n') == 1
    assert done.stderr.startswith("error: METHODS['mine']: its parameter beta must have the type")
