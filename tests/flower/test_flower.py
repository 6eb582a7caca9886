"""Flower's apps give the result of `simulate`, on a grid in this process."""

import functools
import json
import runpy
import sys
import tomllib

import jax
import numpy as np
import optax
import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict
from numpy.testing import assert_allclose

import jaxfed
from jaxfed.engine.optimizers import OPTIMIZERS
from jaxfed.flower import __main__ as command
from jaxfed.flower import client_app, messages, server
from jaxfed.runs import seeds
from jaxfed.runs.deal import deal
from tests.flower.grid import LocalGrid

SETTINGS = {
    'model': 'mlp', 'num_clients': 5, 'clients_per_round': 3, 'rounds': 3, 'local_epochs': 2,
    'alpha': 0.5, 'devices': '1', 'lanes': 1,
}  # fmt: skip
METHODS = ['fedavg', 'fedlmd', 'fedcad', 'scaffold', 'fedlmd+fedavgm', 'fednova', 'median', 'moon']
NODES = [
    {'clients': '0,3'},
    {'clients': 1},
    {'partition-id': 2, 'num-partitions': 5},
    {'clients': '4'},
    {'partition-id': 9, 'num-partitions': 10},  # without a client
]


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Flower's engines tell a process whose messages it makes."""
    from flwr.supercore import task_identity

    for name in ('_task_id', '_run_id', '_node_id'):
        monkeypatch.setattr(task_identity.TaskIdentity, name, 1)


@pytest.fixture
def simulate(cheap_runs):
    return functools.partial(jaxfed.simulate, quiet=True, compilation_cache=False)


def run(config, nodes=NODES, **options):
    grid = LocalGrid(client_app(config, **options), nodes)
    server.run(grid, server.set_up(config), None)
    return grid


def parameters(config):
    return jaxfed.load(config.workdir).params


def check_same(one, other, **tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert_allclose(a, b, **({'rtol': 1e-5, 'atol': 1e-5} | tolerance))


@pytest.mark.slow
@pytest.mark.parametrize('method', METHODS)
def test_equals_simulation(method, simulate, tmp_path):
    def config(name):
        return jaxfed.Config(**SETTINGS, method=method, workdir=str(tmp_path / name))

    result = simulate(config('here'))
    run(config('there'))
    check_same(result.params, parameters(config('there')))


@pytest.mark.slow
def test_lost_clients_are_those_of_a_round_without_them(simulate, tmp_path, monkeypatch):
    """A node that leaves after the first round is lost, and returns in the third."""
    config = jaxfed.Config(
        **SETTINGS | {'clients_per_round': 5, 'rounds': 3}, workdir=str(tmp_path / 'run')
    )
    grid = LocalGrid(client_app(config), NODES)
    ask = server.train_clients

    def leaving(grid, nodes, programs, facts, inputs, timeout):
        grid.gone = {100} if int(inputs.server.round[0]) == 1 else set()
        return ask(grid, nodes, programs, facts, inputs, timeout)

    monkeypatch.setattr(server, 'train_clients', leaving)
    server.run(grid, server.set_up(config), None)
    lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
    assert [json.loads(line)['clients'] for line in lines] == [5, 3, 5]
    monkeypatch.undo()

    # The same failures in simulation.
    draw = seeds.draw_cohort

    def losing(round_, *arguments, **options):
        cohort = draw(round_, *arguments, **options)
        lost = np.isin(cohort.clients, (0, 3)) & (round_ == 2)
        return cohort._replace(epochs=np.where(lost, 0, cohort.epochs))

    monkeypatch.setattr(seeds, 'draw_cohort', losing)
    others = {'clients_per_round': 5, 'rounds': 3, 'workdir': str(tmp_path / 'here')}
    here = simulate(jaxfed.Config(**SETTINGS | others))
    check_same(here.params, parameters(config))


@pytest.mark.slow
def test_a_round_without_clients_counts_for_the_learning_rate(simulate, tmp_path):
    def config(name):
        rates = {'learning_rate': 0.1, 'lr_decay': 0.1, 'dropout': 0.5, 'seed': 3}
        settings = SETTINGS | rates | {'clients_per_round': 1}
        return jaxfed.Config(**settings, workdir=str(tmp_path / name))

    result = simulate(config('here'))
    assert result.metrics[0]['clients'] == 0
    run(config('there'))
    check_same(result.params, parameters(config('there')))


@pytest.mark.slow
def test_nodes_that_join_later_do_not_end_a_run(tmp_path, monkeypatch, capsys):
    config = jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'run'))
    grid = LocalGrid(client_app(config), NODES)
    ask = server.train_clients

    def joining(grid, nodes, programs, facts, inputs, timeout):
        number = int(inputs.server.round[0])
        joined = [{'clients': '1'}, {'clients': '9'}][number : number + 1]
        for i, node in enumerate(joined):
            grid.contexts[200 + number + i] = Context(1, 200 + number + i, node, RecordDict(), {})
        return ask(grid, nodes, programs, facts, inputs, timeout)

    monkeypatch.setattr(server, 'train_clients', joining)
    server.run(grid, server.set_up(config), None)
    errors = capsys.readouterr().err
    assert 'client 1 is now at another node.' in errors
    assert 'a node cannot take part: ValueError: the node config must name different' in errors


@pytest.mark.slow
def test_a_client_with_other_examples_stays_lost(tmp_path, monkeypatch, capsys):
    settings = SETTINGS | {'clients_per_round': 5, 'rounds': 3}
    config = jaxfed.Config(**settings, workdir=str(tmp_path / 'run'))
    dealt = deal(config)
    cut = {}

    def examples(context, client):
        rows = dealt.partition[client][cut.get(client, 0) :]
        return dealt.dataset.x_train[rows], dealt.dataset.y_train[rows]

    grid = LocalGrid(client_app(config, data=examples), NODES)
    ask = server.train_clients

    def returning(grid, nodes, programs, facts, inputs, timeout):
        answers = ask(grid, nodes, programs, facts, inputs, timeout)
        number = int(inputs.server.round[0])
        if number == 0:  # the node of client 1 starts anew, that of client 2 is away for a round
            grid.contexts[300] = grid.contexts.pop(101)
            grid.gone = {102}
            cut.update({1: 5, 2: 5})
        if number == 1:
            grid.gone = set()
        return answers

    monkeypatch.setattr(server, 'train_clients', returning)
    server.run(grid, server.set_up(config), None)
    errors = capsys.readouterr().err
    for client in (1, 2):
        assert f'client {client} returned with other examples; it stays lost.' in errors
    lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
    assert [json.loads(line)['clients'] for line in lines] == [5, 3, 3]


@pytest.mark.slow
def test_a_failing_app_is_a_lost_client_and_failing_apps_end_the_run(tmp_path, capsys):
    config = jaxfed.Config(**SETTINGS | {'clients_per_round': 5}, workdir=str(tmp_path / 'run'))
    grid = LocalGrid(client_app(config), NODES)
    grid.fails = {101: 'out of memory'}
    server.run(grid, server.set_up(config), None)
    assert 'round 1: a client failed: RuntimeError: out of' in capsys.readouterr().err
    grid.fails = dict.fromkeys(grid.contexts, 'out of memory')
    config = jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'other'))
    with pytest.raises(ValueError, match='round 1: all clients failed: RuntimeError'):
        server.run(grid, server.set_up(config), None)


@pytest.mark.slow
def test_dp_adds_its_noise_when_nobody_answers(tmp_path, monkeypatch):
    config = jaxfed.Config(**SETTINGS | {'rounds': 1}, method='dp', workdir=str(tmp_path / 'run'))
    monkeypatch.setattr(server, 'train_clients', lambda *_: [])
    run(config)
    assert json.loads((tmp_path / 'run' / 'metrics.jsonl').read_text())['clients'] == 0
    plain = jaxfed.Config(**SETTINGS | {'rounds': 1}, workdir=str(tmp_path / 'plain'))
    run(plain)
    kernels = [parameters(c)['hidden1']['kernel'] for c in (config, plain)]
    start = server.set_up(jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'new'))).model.init(
        jax.random.key(seeds.seed_of(config, 'initialisation'))
    )['hidden1']['kernel']
    assert np.abs(kernels[0] - start).max() > 0  # noise
    assert_allclose(kernels[1], start)  # no noise


@pytest.mark.slow
def test_continues_from_a_checkpoint_without_client_states(simulate, tmp_path, stopped_before):
    def config(name, method='fedlmd'):
        settings = SETTINGS | {'checkpoint_every': 1}
        return jaxfed.Config(**settings, method=method, workdir=str(tmp_path / name))

    with stopped_before(3):
        run(config('run'))
    run(config('run'))
    result = simulate(config('here'))
    check_same(result.params, parameters(config('run')))
    with stopped_before(3):
        run(config('state', 'scaffold'))
    with pytest.raises(ValueError, match='--method=scaffold keeps a state at each client, and Fl'):
        run(config('state', 'scaffold'))


@pytest.mark.slow
def test_clients_with_their_own_data(simulate, tmp_path, monkeypatch):
    """Examples from a function and from a file of the node, equal to those that jaxfed deals."""
    config = jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'run'))
    dealt = deal(config)

    def examples(client):
        rows = dealt.partition[client]
        return dealt.dataset.x_train[rows, ..., 0], dealt.dataset.y_train[rows]

    run(config, data=lambda context, client: examples(client))
    result = simulate(jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'here')))
    check_same(result.params, parameters(config))

    nodes = []
    for client in range(5):
        x, y = examples(client)
        np.savez(tmp_path / f'{client}.npz', x_train=x, y_train=y, users=np.zeros(len(y), int))
        nodes.append({'partition-id': client, 'data': str(tmp_path / f'{client}.npz')})
    config = jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'files'))
    run(config, nodes)
    check_same(result.params, parameters(config))


@pytest.mark.parametrize(
    ('nodes', 'message'),
    [
        (
            [{}],
            'a node cannot take part: ValueError: the node config must name different',
        ),
        ([{'clients': '0,7'}], r"got '0,7'"),
        ([{'clients': '0,0'}], r"got '0,0'"),
        ([{'clients': '0', 'data': 'none.npz'}], r'data=none\.npz is not a file'),
        (
            [{'clients': '0,3', 'data': 'some.npz'}],
            r'data=some\.npz has the examples of one client, but the node has the clients \[0, 3\]',
        ),
    ],
)
def test_nodes_that_cannot_take_part(nodes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'run')), nodes)


def test_data_that_does_not_fit_the_servers(tmp_path):
    def wrong(shape, label):
        return lambda context, client: (np.zeros(shape, np.uint8), np.full(shape[0], label))

    config = jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'run'))
    with pytest.raises(
        ValueError,
        match=r'data of client 0 has inputs \(9, 9, 1\) uint8 and labels up to 0, the server',
    ):
        run(config, data=wrong((3, 9, 9), 0))
    with pytest.raises(ValueError, match='data of client 0 has label 10 with num_classes=10'):
        run(config, data=wrong((3, 8, 8), 10))


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'local_eval_every': 1}, '--local_eval_every=1 is for simulation'),
        ({'measure': 'norms'}, '--measure=norms is for simulation'),
        ({'save_clients': True}, '--save_clients=True is for simulation: the clients keep their'),
        ({'devices': '1'}, '--devices=1 is for simulation: a client of Flower trains alone'),
    ],
)
def test_settings_for_simulation_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        server.check_supported(jaxfed.Config(**settings))


def test_a_client_knows_an_optimizer_that_is_a_function(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, name := 'optax.lion(b1=0.7)', None)  # removed at the end
    client_app(jaxfed.Config(optimizer=functools.partial(optax.lion, b1=0.7)))
    assert OPTIMIZERS[name] is not None


def test_init_writes_a_project_whose_apps_read_its_settings(tmp_path, capsys, monkeypatch):
    folder = tmp_path / 'My federation'
    flags = ['--method=fedlmd', '--fedlmd.beta=2', '--num_clients=5', '--csv=true']
    assert command.main(['init', str(folder), *flags]) == 0
    assert "--federation-config 'num-supernodes=5'" in capsys.readouterr().out
    project = tomllib.loads((folder / 'pyproject.toml').read_text())
    settings = flatten_dict(project['tool']['flwr']['app']['config'])
    config = messages.read_settings(Context(77, 1, {}, RecordDict(), settings))
    assert config.workdir == str(folder / 'runs' / '77')
    assert (config.method, config.hyperparameters['fedlmd.beta']) == ('fedlmd', 2)
    assert (config.num_clients, config.csv) == (5, True)
    assert command.main(['init', str(folder)]) == 2
    assert 'exists and holds something' in capsys.readouterr().err
    for flags, message in (
        (['--method=fedx'], 'fedx'),
        (['--local_eval_every=1'], 'is for simulation'),
        (['--num_clients=0'], '--num_clients must be at least 1'),
    ):
        assert command.main(['init', str(tmp_path / 'new'), *flags]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / 'new').exists()
    assert command.main([]) == 2
    assert 'usage: python -m jaxfed.flower init DIR' in capsys.readouterr().err


def test_what_nodes_send_is_checked(tmp_path, monkeypatch, capsys):
    """Another shape, and the answer of another client: both are lost, the others count."""
    config = jaxfed.Config(
        **SETTINGS | {'clients_per_round': 5, 'rounds': 1}, workdir=str(tmp_path / 'run')
    )
    grid = LocalGrid(client_app(config), NODES)
    answer = grid._answer

    def tampered(message):
        reply = answer(message)
        if message.metadata.message_type == 'train' and message.metadata.dst_node_id == 101:
            reply.content.array_records['sums'] = messages.pack([np.zeros(3)])
        if message.metadata.message_type == 'train' and message.metadata.dst_node_id == 102:
            reply.content.config_records['round']['client'] = 4
        return reply

    monkeypatch.setattr(grid, '_answer', tampered)
    server.run(grid, server.set_up(config), None)
    errors = capsys.readouterr().err
    assert 'a message has 1 arrays that do not fit' in errors
    assert 'a node answered for client 4, which it was not asked for' in errors
    assert json.loads((tmp_path / 'run' / 'metrics.jsonl').read_text())['clients'] == 3


@pytest.mark.slow
def test_clients_learn_of_no_other_client_and_not_the_noise(tmp_path, monkeypatch):
    def kernel(name):
        config = jaxfed.Config(
            **SETTINGS | {'rounds': 1}, method='dp', workdir=str(tmp_path / name)
        )
        grid = LocalGrid(client_app(config), NODES)
        answer = grid._answer
        seen = []

        def listening(message):
            if message.metadata.message_type == 'train':
                seen.append(dict(message.content.config_records['round']))
            return answer(message)

        monkeypatch.setattr(grid, '_answer', listening)
        server.run(grid, server.set_up(config), None)
        assert len(seen) == 3
        known = {'number', 'client', 'epochs', 'cohort_size', 'learning_rate'}
        assert all(record.keys() == known for record in seen)
        return parameters(config)['hidden1']['kernel']

    assert np.abs(kernel('one') - kernel('other')).max() > 0.1  # other noise with the same seeds


@pytest.mark.slow
@pytest.mark.parametrize(
    'settings',
    [
        {'method': 'krum', 'malicious': 0.4, 'dropout': 0.3},
        {'method': 'fedlmd_tf,fedlmd', 'switch_round': 1, 'aggregation': 'uniform'},
        {'method': 'ditto', 'stragglers': 0.5, 'over_selection': 0.4, 'sampling': 'size'},
        {'method': 'fedbuff', 'label_noise': 0.3, 'validation': 0.2, 'feature_shift': 'rotation'},
    ],
    ids=lambda settings: settings['method'],
)
def test_settings_of_a_simulation_hold_in_flower(settings, simulate, tmp_path):
    def config(name):
        return jaxfed.Config(**SETTINGS, **settings, workdir=str(tmp_path / name))

    result = simulate(config('here'))
    run(config('there'))
    check_same(result.params, parameters(config('there')))


@pytest.mark.slow
def test_a_client_without_examples_trains_as_in_a_simulation(simulate, tmp_path):
    path = tmp_path / 'clients.json'
    path.write_text(json.dumps([list(range(30)), [], *([i, i + 1] for i in range(30, 36, 2))]))
    dealt = {'partition': 'file', 'partition_file': str(path), 'rounds': 2, 'clients_per_round': 5}

    def config(name):
        return jaxfed.Config(**SETTINGS | dealt, workdir=str(tmp_path / name))

    result = simulate(config('here'))
    run(config('there'))
    check_same(result.params, parameters(config('there')))


@pytest.mark.slow
def test_only_the_server_has_the_file_of_init_from(simulate, tmp_path, monkeypatch):
    model = simulate(jaxfed.Config(**SETTINGS, workdir=str(tmp_path / 'first'))).workdir
    started = SETTINGS | {'init_from': str(model / 'model.safetensors'), 'rounds': 1}
    alone = simulate(jaxfed.Config(**started, workdir=str(tmp_path / 'alone')))
    config = jaxfed.Config(**started, workdir=str(tmp_path / 'run'))
    grid = LocalGrid(client_app(config), NODES)
    answer = grid._answer

    def elsewhere(message):
        there = (model / 'model.safetensors').rename(tmp_path / 'elsewhere')
        reply = answer(message)
        there.rename(model / 'model.safetensors')
        return reply

    monkeypatch.setattr(grid, '_answer', elsewhere)
    server.run(grid, server.set_up(config), None)
    check_same(alone.params, parameters(config))
    config = jaxfed.Config(**started, method='moon', workdir=str(tmp_path / 'moon'))
    with pytest.raises(ValueError, match='clients of --method=moon keep initial parameters'):
        server.run(LocalGrid(client_app(config), NODES), server.set_up(config), None)


def test_own_data_is_not_changed_by_settings_that_deal(tmp_path):
    config = jaxfed.Config(**SETTINGS, label_noise=0.5, workdir=str(tmp_path / 'run'))
    with pytest.raises(ValueError, match='--label_noise and --attack=label_flip change data'):
        run(config, data=lambda context, client: (np.zeros((3, 8, 8)), np.zeros(3, int)))


def test_init_reads_flag_files_and_paths(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'some.flags').write_text('--method=fedntd\n--beta=3\n--nocsv\n')
    folder = tmp_path / 'übung 💡'
    flags = [f'--flagfile={tmp_path / "some.flags"}', '--data_dir=~/data', '--rounds=7']
    assert command.main(['init', str(folder), *flags]) == 0
    project = tomllib.loads((folder / 'pyproject.toml').read_text())
    settings = project['tool']['flwr']['app']['config']
    assert settings['data_dir'] == str(tmp_path / 'data')
    config = messages.read_settings(Context(1, 1, {}, RecordDict(), flatten_dict(settings)))
    assert (config.method, config.hyperparameters, config.rounds) == ('fedntd', {'beta': 3}, 7)
    assert project['project']['name'] == 'bung'


def test_init_copies_the_file_of_an_own_method(tmp_path, monkeypatch, capsys):
    code = "import jaxfed\njaxfed.methods.METHODS['ours'] = jaxfed.methods.METHODS['fedavg']\n"
    (tmp_path / 'ours_in_flower.py').write_text(code)
    monkeypatch.setitem(jaxfed.methods.METHODS, 'ours', None)  # removed at the end
    flags = ['--method=ours', f'--include={tmp_path / "ours_in_flower.py"}']
    assert command.main(['init', str(tmp_path / 'new'), *flags]) == 0
    assert (tmp_path / 'new' / 'app' / 'ours_in_flower.py').read_text() == code
    monkeypatch.syspath_prepend(tmp_path / 'new')
    for app in ('client', 'server'):
        text = (tmp_path / 'new' / 'app' / f'{app}.py').read_text()
        assert 'from app import ours_in_flower  #' in text
        assert runpy.run_path(str(tmp_path / 'new' / 'app' / f'{app}.py'))['app']
    capsys.readouterr()
    for name in ('server', '__init__'):
        (tmp_path / f'{name}.py').write_text('')
        flags = ['--include', str(tmp_path / f'{name}.py'), flags[1]]
        assert command.main(['init', str(tmp_path / 'other'), *flags]) == 2
    assert capsys.readouterr().err.count('has the name of a file of the project; rename it.') == 2
    assert not (tmp_path / 'other').exists()


def test_a_missing_flower_is_one_line(tmp_path, monkeypatch, capsys):
    for name in ('jaxfed.flower.project', 'jaxfed.flower.server', 'jaxfed.flower.client'):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, 'flwr.app', None)
    assert command.main(['init', str(tmp_path / 'new')]) == 2
    assert "needs Flower: pip install -e '.[flower]'" in capsys.readouterr().err
