"""The benchmarks that play whole rounds, made small: what they count, compare and fit."""

import io
import json
import sys

import numpy as np
import pytest

from experiments.benchmarks import cost_model, sweeps, weak_scaling, workers
from experiments.benchmarks.cost_model import Case


def test_sweeps_times_the_same_experiments_both_ways(cheap_runs, tmp_path):
    base = sweeps.settings(None, None, 2)
    grid = 'beta=3'
    found = {
        'rounds': sweeps.time_rounds(base, tmp_path / 'rounds', repeats=2, grid=grid),
        'whole': sweeps.whole_runs(base, tmp_path, repeats=1, grid=grid),
        'shares': {'0.1': sweeps.shares(0.1, rounds=2)},
        'settings': {'model': 'mlp'},
        'machine': {},
    }
    assert found['rounds']['experiments'] == 2
    assert len(found['rounds']['alone']['lanes']) == 2
    assert len(found['rounds']['together']['round_s']) == 2
    (whole,) = found['whole']
    assert 0 < whole['together_compile_s'] < whole['together_s']
    assert 0 < whole['alone_compile_s'] < whole['alone_s']
    # both ways leave the same two finished runs
    ends = [
        {
            path.parent.name: json.loads(path.read_text())['final_accuracy']
            for path in (tmp_path / way).glob('*/summary.json')
        }
        for way in ('together0', 'alone0')
    ]
    assert len(ends[0]) == 2 and ends[0].keys() == ends[1].keys()
    assert np.allclose(list(ends[0].values()), [ends[1][name] for name in ends[0]], atol=0.01)
    sweeps.draw(found, tmp_path / 'picture')
    assert (tmp_path / 'picture.png').stat().st_size > 10_000


def test_shares_count_the_steps_of_every_experiment():
    drawn = np.array([[[4, 1], [2, 1]]])  # one round of two experiments with two clients
    alone = sweeps.share(drawn, together=False, lanes=2, devices=1)
    assert (alone.executed, alone.sequence) == (8 / 12, 6)  # 4 and 2 steps of two lanes
    together = sweeps.share(drawn, together=True, lanes=2, devices=1)
    assert (together.executed, together.sequence) == (1, 4)  # 4 beside 2, 1, 1
    idle = sweeps.share(drawn, together=False, lanes=1, devices=4)
    assert (idle.executed, idle.busy) == (1, 8 / 24)  # two of four devices have nobody


def test_weak_scaling_answers_every_line_with_the_seconds_of_a_round(monkeypatch, capsys):
    job = weak_scaling.Job('mlp', clients=2, steps=2, rounds=2)
    monkeypatch.setattr(sys, 'stdin', io.StringIO('null\nnull\n'))
    weak_scaling.train_in_turns(job, 4, 4)
    first, *seconds = [
        json.loads(line.removeprefix(workers.MARK))
        for line in capsys.readouterr().out.split('\n')[:-1]
    ]
    difference, client_steps, cores = first
    assert difference <= weak_scaling.TOLERANCE  # of the parameters that one device gives
    assert (client_steps, cores) == (4 * 2 * 2, 4)
    assert len(seconds) == 2 and min(map(min, seconds)) > 0  # passed, and worked by all cores


def test_weak_scaling_compares_measurements_of_the_same_turn():
    one = weak_scaling.Timing(1, 1, 10, [1.0, 2.0, 4.0], [1.0] * 3, 0.0)
    two = weak_scaling.Timing(2, 2, 20, [2.0, 2.0, 5.0], [4.0] * 3, 0.0)
    assert weak_scaling.efficiency(two, one) == (0.8, 0.5)
    assert weak_scaling.efficiency(two._replace(cores=1), one) is None


def test_cost_model_finds_the_coefficients_it_was_made_with():
    rng = np.random.default_rng(0)
    columns, true = rng.random((20, 3)) * (1, 1e6, 1e-6), np.array([2.0, 3e-6, 0.0])
    values, error = cost_model.fit(columns, columns @ true)
    np.testing.assert_allclose(values, true, rtol=1e-6)
    assert error < 1e-9


def test_cost_model_counts_a_step_by_its_layers():
    step = cost_model.step_of('mlp')
    weights = 3072 * 200 + 200 * 200 + 200 * 10
    assert step.parameters == weights + 410
    # a multiplication and an addition a weight; backward the same for weights, and for inputs but
    # those of the first layer
    assert step.test_flops == pytest.approx(2 * weights, rel=0.01)
    assert step.train_flops == pytest.approx(2 * (3 * weights - 3072 * 200), rel=0.05)


def test_cost_model_measures_and_compares(tmp_path):
    cases = [
        Case('mlp', 40, 4, 2, 4),
        Case('mlp', 40, 4, 4, 4),
        Case('mlp', 40, 2, 2, 1, 2, held_out='lanes'),
    ]
    found = []
    for played, own in cost_model.compile_cases(cases, tmp_path, rounds=1):
        cost_model.add(own, cost_model.take(played))
        found.append(own)
    assert [each.busiest for each in found] == [
        (1, 2),
        (1, 4),
        (2, 4),
    ]  # two lanes run two steps each
    assert [each.executed for each in found] == [8, 16, 4]
    entries = cost_model.compare(found, cost_model.fit_all(found))
    for entry, each in zip(entries, found):
        assert entry['memory']['measured'] == each.memory > 4 * cost_model.step_of('mlp').parameters
        assert np.isfinite([entry[name]['error'] for name in ('round', 'test', 'memory')]).all()
    assert [cost_model.read(entry) for entry in entries] == found
    assert cost_model.errors(entries)['lanes']['round, mean'] == abs(entries[2]['round']['error'])
    cost_model.draw(entries, tmp_path / 'picture')
    assert (tmp_path / 'picture.png').stat().st_size > 10_000


def test_traffic_is_that_of_the_parameters():
    sent = cost_model.traffic('mlp', 'fedavg', clients=10, devices=4)
    size = 4 * cost_model.step_of('mlp').parameters
    assert sent['federation_bytes'] == 10 * 2 * size
    assert sent['all_reduce_bytes_per_device'] == 1.5 * size
    assert sent['client_state_bytes'] == 0
    more = cost_model.traffic('mlp', 'scaffold', clients=10, devices=4)
    assert more['client_state_bytes'] == size and more['federation_bytes'] == 10 * 4 * size


def test_a_case_deals_equal_clients():
    for case in cost_model.CASES:
        assert cost_model.EXAMPLES % (case.batch_size * case.steps) == 0
