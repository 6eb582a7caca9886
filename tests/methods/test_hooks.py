"""The form of the values that the hooks of a method return."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfed
from jaxfed import losses
from jaxfed.methods import METHODS, Method, chain, switch
from jaxfed.methods.hooks import check_hooks
from jaxfed.types import Outputs
from tests.engine.test_round import network, rounds, set_up, training_data

PARAMS = {'w': np.zeros((3, 2), np.float32), 'b': np.zeros(2, np.float32)}
# Views with the fields that the hooks of these tests read: three clients, batches of five.
VIEWS = {
    'weigh': SimpleNamespace(weights=np.ones(3, np.float32)),
    'supervised': SimpleNamespace(batch=SimpleNamespace(y=np.zeros(5, np.int32))),
    'finish': SimpleNamespace(state={'n': np.int32(0), 'h': np.zeros(2, np.float32)}),
    'merge': SimpleNamespace(params=PARAMS, update=PARAMS, state=np.zeros(2, np.float32)),
}
STATE = VIEWS['finish'].state


@pytest.mark.parametrize(
    'hook, value, message',
    [
        ('penalty', np.zeros(5, np.float32), 'one number, for instance view.mean(values), got '
         'float32[5]'),
        ('penalty', None, 'one number, for instance view.mean(values), got None'),
        ('supervised', np.float32(1), 'one loss for each example, shape [5], got float32[]'),
        ('supervised', np.ones((5, 1), np.float32), 'shape [5], got float32[5, 1]'),
        ('weigh', np.ones(2, np.float32), 'one weight for each client, shape [3], got float32[2]'),
        ('prepare', 'x', 'arrays in tuples, lists or dicts, got a str'),
        ('share', {'f': print}, 'arrays in tuples, lists or dicts, got a builtin_function'),
        ('begin', object(), 'arrays in tuples, lists or dicts, got an object'),
        ('finish', STATE, 'a tuple (client state, upload), got a dict'),
        ('finish', (STATE, (), ()), 'a tuple (client state, upload), got a tuple of length 3'),
        ('finish', (STATE, 'x'), 'arrays in tuples, lists or dicts, got a str'),
        ('finish', (STATE | {'h': np.zeros(3, np.float32)}, ()),
         "the client state in the form of init: float32[2] at ['h'], got float32[3]"),
        ('finish', (STATE | {'n': np.float32(0)}, ()),
         "the client state in the form of init: int32[] at ['n'], got float32[]"),
        ('finish', ({'n': np.int32(0)}, ()),
         "the client state in the form of init: float32[2] at ['h'], got nothing"),
        ('finish', (STATE | {'m': 1}, ()),
         "the client state in the form of init: nothing at ['m'], got int32[]"),
        ('finish', (STATE, [1.0]),
         'no upload, (), unless Method has uploads=True, got a list of length 1'),
        ('merge', PARAMS, 'a tuple (update, server state), got a dict'),
        ('merge', np.zeros(2), 'a tuple (update, server state), got float32[2]'),
        ('merge', (PARAMS['w'], np.zeros(2)),
         "the update in the form of the parameters: float32[2] at ['b'], got nothing"),
        ('merge', (PARAMS, np.zeros(3)),
         'the server state in the form of init: float32[2], got float32[3]'),
        ('merge', (PARAMS, None), 'the server state in the form of init: float32[2], got nothing'),
        ('adapt', 'resnet', 'a jaxfed.types.Model, got a str'),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_form_is_an_error_that_names_the_hook(hook, value, message):
    checked = check_hooks(Method(**{hook: lambda view: value}))
    with pytest.raises(ValueError) as error:
        getattr(checked, hook)(VIEWS.get(hook))
    assert re.match(rf'Method\.{hook} \(test_hooks\.py, line \d+\) must return ', str(error.value))
    assert message in str(error.value)
    assert '\n' not in str(error.value)


def test_a_container_of_another_kind_is_an_error():
    checked = check_hooks(Method(finish=lambda client: ([1.0], ())))
    with pytest.raises(ValueError, match=r'in the form of init: .*\(\*,\).*, got .*\[\*\]'):
        checked.finish(SimpleNamespace(state=(np.float32(0),)))


def test_init_returns_two_states():
    with pytest.raises(
        ValueError, match=r'Method\.init \(.*\) must return a tuple \(server state, state'
    ):
        check_hooks(Method(init=lambda params, stats: params)).init(PARAMS, ())
    with pytest.raises(ValueError, match=r'Method\.init \(.*\) must return arrays .*, got a str'):
        check_hooks(Method(init=lambda params, stats: (params, 'x'))).init(PARAMS, ())


def test_correct_values_pass_unchanged():
    state = {'n': np.int32(2), 'h': jnp.ones(2)}
    method = check_hooks(
        Method(
            finish=lambda client: (state, [1.0]),
            uploads=True,
            merge=lambda view: (jax.tree.map(np.float64, PARAMS), 0.5 * view.state),
            penalty=lambda view: 0.0,
            share=lambda server: {'key': jax.random.key(0), 'outputs': Outputs(1.0, jnp.ones(2))},
            init=lambda params, stats: [(), ()],
        )
    )
    assert method.finish(VIEWS['finish']) == (state, [1.0])
    assert method.merge(VIEWS['merge'])[1].tolist() == [0, 0]
    assert method.penalty(None) == 0
    assert method.share(None)['outputs'].logits == 1.0
    assert method.init(PARAMS, ()) == ((), ())


def train(method):
    _, settings, server, states, run = set_up(method)
    rounds(run, settings, server, states, [[0, 1]], 2, training_data())


@pytest.mark.parametrize(
    'combine',
    [
        lambda method: method,
        lambda method: chain(METHODS['fedprox'](), method),
        lambda method: switch(METHODS['fedprox'](), method, rounds=1),
    ],
    ids=['alone', 'chain', 'switch'],
)
@pytest.mark.parametrize(
    'method, message',
    [
        (
            Method(penalty=lambda view: view.outputs.logits.sum(-1)),
            r'Method\.penalty \(.*\) must return one number, .*, got float32\[5\]\.',
        ),
        (
            Method(finish=lambda client: client.params),
            r'Method\.finish \(.*\) must return a tuple \(client state, upload\), got a dict\.',
        ),
        (
            Method(merge=lambda view: view.update),
            r'Method\.merge \(.*\) must return a tuple \(update, server state\), got a dict\.',
        ),
    ],
    ids=['penalty', 'finish', 'merge'],
)
def test_training_reports_a_hook_with_a_wrong_value(method, message, combine):
    with pytest.raises(ValueError) as error:
        train(combine(method))
    assert re.fullmatch(message, str(error.value))


@pytest.mark.parametrize('combine', [lambda m: m, lambda m: chain(METHODS['fedprox'](), m)])
def test_a_value_error_in_a_hook_names_its_line(combine):
    def penalty(view):
        return view.mean(view.outputs.logits)

    line = penalty.__code__.co_firstlineno + 1
    with pytest.raises(ValueError) as error:
        train(combine(Method(penalty=penalty)))
    assert str(error.value).startswith(
        f'Method.penalty (test_hooks.py, line {line}): view.mean must'
    )


def test_an_exception_in_a_hook_reaches_the_caller():
    def broken(view):
        raise KeyError('mine')

    with pytest.raises(KeyError, match='mine') as error:
        train(Method(penalty=broken))
    assert error.traceback[-1].name == 'broken'


def missing_key(view):
    return view.mean(view.outputs.logits.sum(-1) + view.state['drfit'])


def own_branch(view):
    return 0.0 if view.outputs.logits.sum() > 0 else 1.0


def other_carry(client):
    return client.fold(lambda carry, batch: carry + batch.y, jnp.zeros(()))


def cast_carry(client):
    return client.fold(lambda carry, batch: carry + batch.x.sum(), 0)


def unset_auxiliary(server):
    return server.predict(server.auxiliary.x).mean()


def fixed_batch(view):
    return view.mean(view.outputs.logits.sum(-1) * jnp.ones(20))


def unset_state(view):
    return losses.proximal(view.params, view.state.anchor)


@pytest.mark.parametrize(
    'method, message',
    [
        (Method(init=lambda w, _: ((), {'drift': 0.0}), penalty=missing_key),
         r"Method\.penalty \(test_hooks\.py, line \d+\): KeyError: 'drfit'\."),
        (Method(penalty=own_branch),
         r'Method\.penalty \(test_hooks\.py, line \d+\): TracerBoolConversionError: .*\. '
         r'Use jax\.numpy for numpy, jax\.numpy\.where for if, and no float\(\) or bool\(\)\.'),
        (Method(penalty=unset_state),
         r'Method\.penalty \(test_hooks\.py, line \d+; state is \(\) without Method\.init\): '
         r"AttributeError: 'tuple' object has no attribute 'anchor'\."),
        (Method(share=unset_auxiliary),
         r'Method\.share \(test_hooks\.py, line \d+; auxiliary is None without '
         r"Method\(auxiliary=EXAMPLES_PER_CLASS\)\): AttributeError: 'NoneType' .* 'x'\."),
        # The check has 20 examples, the run batches of 50.
        (Method(penalty=fixed_batch),
         r'Method\.penalty \(test_hooks\.py, line \d+\): TypeError: mul got incompatible .*\.'),
        (Method(begin=other_carry),
         r'Method\.begin \(test_hooks\.py, line \d+\): the function of client\.fold must return '
         r'the carry in the form of initial: float32\[\], got float32\[20\]\.'),
    ],
)  # fmt: skip
def test_a_run_explains_an_error_of_a_hook_in_one_line(method, message, tmp_path, cheap_runs):
    config = jaxfed.Config(model='mlp', rounds=1, devices='1', workdir=str(tmp_path / 'run'))
    with pytest.raises(ValueError) as error:
        jaxfed.simulate(config, method=method)
    assert re.fullmatch(message, str(error.value))
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_loop_casts_the_numbers_of_python(tmp_path, cheap_runs):
    config = jaxfed.Config(model='mlp', rounds=1, devices='1', workdir=str(tmp_path / 'run'))
    (entry,) = jaxfed.simulate(config, method=Method(begin=cast_carry)).metrics
    assert np.isfinite(entry['train_loss'])


def test_a_network_without_a_classifier_is_refused():
    with pytest.raises(
        ValueError, match=r'Method\.adapt \(.*\) must return a jaxfed\.types\.Model'
    ):
        check_hooks(Method(adapt=lambda model: model.apply)).adapt(network())
