"""Small versions of the benchmarks with whole rounds: their counts, comparisons and fits."""

import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from absl import flags

from experiments.benchmarks import networks, sweeps, unequal_clients, weak_scaling
from experiments.benchmarks.cost_model import __main__ as cost_model
from experiments.benchmarks.cost_model import cases
from experiments.benchmarks.cost_model.cases import Case
from experiments.benchmarks.measuring import reporting, timing, workers
from experiments.benchmarks.programs import rounds
from jaxfed.engine.devices import make_mesh
from jaxfed.models import make_model

pytestmark = pytest.mark.slow


def test_programs_take_turns():
    calls = []
    runs = {name: lambda name=name: calls.append(name) or len(calls) for name in 'ab'}
    assert timing.interleave(runs, 2) == {'a': [3, 5], 'b': [4, 6]}  # after one run of each
    assert ''.join(calls) == 'ababab'
    assert timing.interleave(runs, 1, warm_up=False) == {'a': [7], 'b': [8]}
    seconds = timing.time_in_turns(runs, 3)
    assert [len(seconds[name]) for name in 'ab'] == [3, 3] and min(seconds['a']) > 0


def test_a_report_is_written_beside_its_picture(tmp_path, capsys):
    reporting.write({'a': 1}, None)
    assert not capsys.readouterr().out and not list(tmp_path.iterdir())
    reporting.write({'a': 1}, f'{tmp_path}/x.json')
    drawn = []
    reporting.write({'b': 2}, f'{tmp_path}/y', lambda report, path: drawn.append((report, path)))
    assert json.loads((tmp_path / 'x.json').read_text()) == {'a': 1}
    assert json.loads((tmp_path / 'y.json').read_text()) == {'b': 2}
    assert drawn == [({'b': 2}, tmp_path / 'y')]


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['more'], "Unexpected arguments: ['more']."),
        (['--output=/no/x.json'], '--output=/no/x.json is in a folder that does not exist.'),
        (['--output='], '--output= is empty; name a path, or omit the flag.'),
        ([], '--model is unknown.'),
    ],
)
def test_invalid_command_lines_are_refused(arguments, message, monkeypatch, capsys):
    def main(args):
        assert not arguments, 'it runs'
        with reporting.usage_errors():
            raise ValueError('--model\nis unknown.')

    values = flags.FlagValues()
    flags.DEFINE_string('output', None, 'File.', flag_values=values)
    values(['x'])
    values.output = next((a.partition('=')[2] for a in arguments if '=' in a), None)
    monkeypatch.setattr(reporting.flags, 'FLAGS', values)
    monkeypatch.setattr(reporting.command_line, 'quiet_libraries', lambda: None)
    monkeypatch.setattr(
        reporting.app, 'run', lambda start: start(['x', *[a for a in arguments if '=' not in a]])
    )
    with pytest.raises(SystemExit) as stop:
        reporting.run(main)
    assert stop.value.code == 1
    assert capsys.readouterr().err.strip() == f'error: {message}'


def test_a_round_does_not_depend_on_lanes_and_devices():
    model = make_model('mlp', input_shape=rounds.SHAPE, num_classes=rounds.CLASSES)
    sizes, after = np.array([7, 3, 5, 1]), []
    for devices, lanes in ((1, 4), (2, 1)):
        compiled = rounds.compile_cohort(
            model, sizes, mesh=make_mesh(devices), lanes=lanes, batch_size=2, method='fedlmd'
        )
        assert compiled.memory > 0
        once, again = compiled.run(), compiled.run()  # the first round every time
        assert unequal_clients.largest_difference(once, again) == 0
        assert unequal_clients.largest_difference(once, compiled.params) > 1e-4
        after.append(once)
    assert unequal_clients.largest_difference(*after) < 1e-6


def test_sweeps_times_the_same_experiments_both_ways(cheap_runs, tmp_path):
    base = sweeps.make_config(None, None, 2)
    grid = 'beta=3'
    report = {
        'rounds': sweeps.time_rounds(base, tmp_path / 'rounds', repeats=2, grid=grid),
        'whole': sweeps.time_runs(base, tmp_path, repeats=1, grid=grid),
        'shares': {'0.1': sweeps.count_shares(0.1, rounds=2)},
        'settings': {'model': 'mlp'},
        'machine': {},
    }
    assert report['rounds']['experiments'] == 2
    assert len(report['rounds']['alone']['lanes']) == 2
    assert len(report['rounds']['together']['round_s']) == 2
    (whole,) = report['whole']
    assert 0 < whole['together_compile_s'] < whole['together_s']
    assert 0 < whole['alone_compile_s'] < whole['alone_s']
    # both ways finish the same two runs
    ends = [
        {
            path.parent.name: json.loads(path.read_text())['final_accuracy']
            for path in (tmp_path / way).glob('*/summary.json')
        }
        for way in ('together0', 'alone0')
    ]
    assert len(ends[0]) == 2 and ends[0].keys() == ends[1].keys()
    assert np.allclose(list(ends[0].values()), [ends[1][name] for name in ends[0]], atol=0.01)
    sweeps.draw(report, tmp_path / 'picture')
    assert (tmp_path / 'picture.png').stat().st_size > 10_000
    sweeps.show(report)


def test_shares_count_the_steps_of_every_experiment():
    steps = np.array([[[4, 1], [2, 1]]])  # one round of two experiments with two clients
    alone = sweeps.count(steps, together=False, lanes=2, devices=1)
    assert (alone['executed'], alone['sequence']) == (8 / 12, 6)  # 4 and 2 steps of two lanes
    together = sweeps.count(steps, together=True, lanes=2, devices=1)
    assert (together['executed'], together['sequence']) == (1, 4)  # 4 beside 2, 1, 1
    idle = sweeps.count(steps, together=False, lanes=1, devices=4)
    assert (idle['executed'], idle['busy']) == (1, 8 / 24)  # two of four devices have no client


@pytest.mark.parametrize(
    ('module', 'flags_', 'message'),
    [
        (networks, ['--models=text'], r"--models: 'text' must be one of cnn, cnn_dropout, lenet"),
        (weak_scaling, ['--models=foo'], r"--models: 'foo' must be one of cnn, cnn_dropout, lenet"),
        (weak_scaling, ['--counts=1,x'], r'--counts=1,x must be numbers of devices, 1 first'),
        (weak_scaling, ['--counts=2,4'], r'--counts=2,4 must be numbers of devices, 1 first'),
    ],
)
def test_benchmarks_refuse_other_networks_and_counts(module, flags_, message):
    command = [sys.executable, '-m', module.__name__, *flags_]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode and 'Traceback' not in done.stderr
    assert re.search(message, ' '.join(done.stderr.split()))


def test_weak_scaling_replies_to_every_line_with_the_seconds_of_a_round(monkeypatch, capsys):
    job = weak_scaling.Job('mlp', clients=2, steps=2, rounds=2)
    monkeypatch.setattr(sys, 'stdin', io.StringIO('null\nnull\n'))
    weak_scaling.serve(job, 4, 4)
    first, *seconds = [
        json.loads(line.removeprefix(workers.MARK))
        for line in capsys.readouterr().out.split('\n')[:-1]
    ]
    difference, client_steps, cores = first
    assert difference <= weak_scaling.TOLERANCE  # to the parameters of one device
    assert (client_steps, cores) == (4 * 2 * 2, 4)
    assert len(seconds) == 2 and min(map(min, seconds)) > 0  # wall-clock and CPU time


def test_weak_scaling_compares_measurements_of_the_same_turn():
    one = weak_scaling.Timing(1, 1, 10, [1.0, 2.0, 4.0], [1.0] * 3, 0.0)
    two = weak_scaling.Timing(2, 2, 20, [2.0, 2.0, 5.0], [4.0] * 3, 0.0)
    assert weak_scaling.efficiency(two, one) == (0.8, 0.5)
    assert weak_scaling.efficiency(two._replace(cores=1), one) is None


def test_cost_model_recovers_the_coefficients_of_synthetic_data():
    rng = np.random.default_rng(0)
    columns, true = rng.random((20, 3)) * (1, 1e6, 1e-6), np.array([2.0, 3e-6, 0.0])
    values, error = cost_model.fit(columns, columns @ true)
    np.testing.assert_allclose(values, true, rtol=1e-6)
    assert error < 1e-9


def test_cost_model_counts_a_step_by_its_layers():
    step = cases.step_of('mlp')
    weights = 3072 * 200 + 200 * 200 + 200 * 10
    assert step.parameters == weights + 410
    # a multiplication and an addition a weight; backward the same for weights, and for inputs
    # except those of the first layer
    assert step.test_flops == pytest.approx(2 * weights, rel=0.01)
    assert step.train_flops == pytest.approx(2 * (3 * weights - 3072 * 200), rel=0.05)


def test_cost_model_measures_and_compares(tmp_path):
    fitted = [
        Case('mlp', 40, 4, 2, 4),
        Case('mlp', 40, 4, 4, 4),
        Case('mlp', 40, 2, 2, 1, 2, held_out='lanes'),
    ]
    measured = []
    for case in fitted:
        trainer, counts = cases.compile_case(case, tmp_path, rounds=1)
        turns = [cases.measure_turn(trainer)]
        measured.append(cases.Measured(case, counts, turns))
    # two lanes run two steps each
    assert [one.counts.busiest for one in measured] == [(1, 2), (1, 4), (2, 4)]
    assert [one.counts.executed for one in measured] == [8, 16, 4]
    entries = cost_model.compare(measured, cost_model.fit_all(measured))
    for entry, one in zip(entries, measured):
        size = 4 * cases.step_of('mlp').parameters
        assert entry['memory']['measured'] == one.counts.memory > size
        assert np.isfinite([entry[name]['error'] for name in ('round', 'test', 'memory')]).all()
    assert [cost_model.read(entry) for entry in entries] == measured
    assert cost_model.errors(entries)['lanes']['round, mean'] == abs(entries[2]['round']['error'])
    cost_model.draw({'cases': entries}, tmp_path / 'picture')
    assert (tmp_path / 'picture.png').stat().st_size > 10_000


def test_traffic_is_that_of_the_parameters():
    sent = cost_model.traffic('mlp', 'fedavg', clients=10, devices=4)
    size = 4 * cases.step_of('mlp').parameters
    assert sent['federation_bytes'] == 10 * 2 * size
    assert sent['all_reduce_bytes_per_device'] == 1.5 * size
    assert sent['client_state_bytes'] == 0
    more = cost_model.traffic('mlp', 'scaffold', clients=10, devices=4)
    assert more['client_state_bytes'] == size and more['federation_bytes'] == 10 * 4 * size


def test_the_clients_of_a_case_are_equal():
    for case in cases.CASES:
        assert cases.EXAMPLES % (case.batch_size * case.steps) == 0
