"""The benchmark of one device: its parts at toy size, its time limit, its files and its page."""

import itertools
import json
import math
import signal
import subprocess
import sys
import time
import types
from functools import partial

import jax
import numpy as np
import pytest
from absl import app

from experiments.benchmarks.accelerator import __main__ as accelerator
from experiments.benchmarks.accelerator import host, rounds, steps
from experiments.benchmarks.accelerator.__main__ import PARTS, Part
from experiments.benchmarks.accelerator.work import (
    PRODUCTS,
    TOY,
    Clock,
    Tiny,
    Work,
    load_images,
)
from experiments.benchmarks.measuring.operations import products
from experiments.benchmarks.programs import plain_loop
from experiments.benchmarks.programs.local_steps import plain_gradient
from jaxfed.internal import signals
from jaxfed.models import MODELS


def new_report():
    settings = {'npz': None, 'toy': True}
    return {'command': 'python', 'machine': {'device': 'cpu'}, 'settings': settings, 'parts': {}}


def clock_at(times):
    """A clock of one minute that reads `times`, in seconds."""
    return Clock(1, itertools.chain([0], times, itertools.repeat(1000)).__next__)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The toy, with minutes left."""
    monkeypatch.setitem(MODELS, 'tiny', Tiny)
    folder = tmp_path / 'work'
    folder.mkdir()
    return Work(TOY, load_images(None, TOY.images), folder, Clock(60))


@pytest.mark.slow
def test_every_part_is_measured(work, tmp_path, cheap_runs):
    report = new_report()
    accelerator.run_parts(work, PARTS, report, tmp_path)
    written = json.loads((tmp_path / 'accelerator.json').read_text())
    assert list(written['parts']) == list(PARTS)
    for name, part in PARTS.items():
        entry = written['parts'][name]
        assert list(entry['cases']) == list(part.cases(work)) and not entry['skipped']
        for case, measured in entry['cases'].items():
            for row in measured['rows']:
                numbers = [value for value in row.values() if isinstance(value, float)]
                assert all(map(math.isfinite, numbers)), (name, case)
            # the CPU reports no memory
            assert set(measured['rows'][0]) & set(part.columns), (name, case)
    rows = {name: entry['cases'] for name, entry in written['parts'].items()}
    agrees = {name: case['rows'][0]['agrees'] for name, case in rows['agreement'].items()}
    assert agrees.pop('grouped in tf32') is None and all(agrees.values())
    *named, others, all_of_them, clock = rows['profile']['training']['rows']
    assert 0 < len(named) <= 15 and clock['share'] == 1
    total = sum(row['ms'] for row in (*named, others))
    assert total == pytest.approx(all_of_them['ms'])
    assert all(case['rows'][0]['equal'] for case in rows['determinism'].values())
    runs = {name: case['rows'][0]['rounds'] for name, case in rows['run'].items()}
    assert runs == {f'fedlmd, {name}': TOY.run for name in PRODUCTS}
    for name in PRODUCTS:
        settings = json.loads((work.folder / f'run_{name}' / 'config.json').read_text())
        assert settings['precision'] == name
    times = {row['case']: row['ms'] for row in rows['host']['rounds']['rows']}
    total = times.pop('round as users run it')
    programs = times.pop('compiled programs alone')
    assert times.pop('host') == pytest.approx(total - programs)
    assert times.pop('processor time of the calling thread') > 0
    assert sum(times.values()) == pytest.approx(total)  # the steps of a round
    page = (tmp_path / 'accelerator.md').read_text()
    assert page.splitlines()[0] == '# cpu' and '`python`' in page
    assert (
        accelerator.DEFAULTS in page and 'accuracies mean nothing' in page and 'Failed' not in page
    )


@pytest.mark.slow
def test_a_wrong_round_does_not_agree(work, monkeypatch):
    cases = steps.agreement(work)
    params, after = steps.loop_round(work)
    wrong = jax.tree.map(lambda leaf: leaf * (1 + 1e-3), after)
    (row,) = cases['grouped']()
    assert row['agrees'] and row['relative'] < 1e-5
    monkeypatch.setattr(steps, 'loop_round', lambda work: (params, wrong))
    (row,) = cases['grouped']()
    assert not row['agrees']


@pytest.mark.slow
def test_two_runs_are_compiled_anew(work, tmp_path):
    events, trained = [], []

    def note(event, *_, fun_name='', **__):
        events.append(event)
        if event.endswith('backend_compile_duration') and fun_name == 'jit(train)':
            trained.append(event)

    before = jax.config.jax_compilation_cache_dir
    jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'compiled'))
    jax.monitoring.register_event_listener(note)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        (row,) = host.compare_runs(work)
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'compiled')
    finally:
        jax.monitoring.unregister_event_listener(note)
        jax.monitoring.unregister_event_duration_listener(note)
        jax.config.update('jax_compilation_cache_dir', before)
    assert row['equal'] and row['difference'] == 0 and len(row['digest']) == 12
    assert len(trained) == 2 and '/jax/compilation_cache/cache_hits' not in events
    work.clock = clock_at([])
    with pytest.raises(RuntimeError, match='the time was over before the last round'):
        host.run_anew(work, 'late')


def test_the_time_ends_after_its_minutes():
    clock = clock_at([59.9, 60, 61])
    assert [clock.over() for _ in range(3)] == [False, True, True]


def test_cases_after_the_time_are_named(tmp_path):
    class Short:
        clock = clock_at([1, 2])

    def cases(work):
        return {name: partial(list, [{'ms': 1.0}]) for name in ('a', 'b', 'c')}

    parts = {'x': Part('First', 'Text.', {'ms': 'ms'}, cases)}
    parts['y'] = parts['x']._replace(title='Second')
    report = new_report()
    accelerator.run_parts(Short(), parts, report, tmp_path)
    assert list(report['parts']['x']['cases']) == ['a', 'b']
    assert report['parts']['x']['skipped'] == ['c']
    assert report['parts']['y']['skipped'] == ['a', 'b', 'c']
    page = (tmp_path / 'accelerator.md').read_text()
    assert 'Not measured, the time was over: c.' in page
    assert 'Not measured, the time was over: a; b; c.' in page


def test_errors_are_recorded_and_the_next_case_runs(tmp_path):
    def fail():
        raise ValueError('first line\nsecond | line')

    def broken(work):
        raise RuntimeError('no programs')

    cases = {
        'fails': fail,
        'overflows': lambda: [{'ms': float('inf')}],
        'works': lambda: [{'ms': 2.0}],
    }
    parts = {
        'x': Part('Cases', '', {'ms': 'ms', 's': 's'}, lambda work: cases),
        'y': Part('Broken', '', {}, broken),
    }
    report = new_report()
    work = Work(TOY, None, tmp_path, Clock(1))
    accelerator.run_parts(work, parts, report, tmp_path)
    measured = json.loads((tmp_path / 'accelerator.json').read_text())['parts']
    assert measured['x']['cases']['fails']['failed'] == 'ValueError: first line'
    assert measured['x']['cases']['overflows']['failed'] == 'ms is inf'
    assert measured['x']['cases']['works']['rows'] == [{'ms': 2.0}]
    assert measured['y']['failed'] == 'RuntimeError: no programs'
    page = (tmp_path / 'accelerator.md').read_text()
    assert '| fails | ValueError: first line |  |' in page and '| works | 2 | - |' in page
    assert 'Failed: RuntimeError: no programs' in page


def test_a_command_that_is_cut_off_continues(tmp_path):
    calls = []

    def cases(work):
        def measure(name):
            calls.append(name)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return [{'ms': 1.0}]

        return {name: partial(measure, name) for name in ('a', 'b')}

    parts = {'x': Part('Cases', '', {'ms': 'ms'}, cases)}
    work, report = Work(TOY, None, tmp_path, Clock(1)), new_report()
    with pytest.raises(KeyboardInterrupt):
        accelerator.run_parts(work, parts, report, tmp_path)
    assert '| a | 1 |' in (tmp_path / 'accelerator.md').read_text()

    report = new_report()
    report['parts'] = accelerator.known_parts(tmp_path, report)
    accelerator.run_parts(work, parts, report, tmp_path)
    assert calls == ['a', 'b', 'b']
    written = json.loads((tmp_path / 'accelerator.json').read_text())
    assert list(written['parts']['x']['cases']) == ['a', 'b']


def test_measurements_with_other_settings_are_kept(tmp_path):
    report = new_report()
    accelerator.write(report, {}, tmp_path)
    before = (tmp_path / 'accelerator.json').read_bytes()
    other = report | {'settings': {'npz': 'x.npz', 'toy': True}}
    with pytest.raises(
        app.UsageError, match='other or unknown values of npz; choose another --output'
    ):
        accelerator.known_parts(tmp_path, other)
    assert (tmp_path / 'accelerator.json').read_bytes() == before


def test_a_case_that_ends_the_process_does_not_keep_the_others_from_their_turn(tmp_path):
    calls = []

    def end():
        calls.append('end')
        raise SystemExit

    def cases(work):
        return {'end': end, 'after': lambda: [{'ms': 1.0}]}

    parts = {'x': Part('Cases', '', {'ms': 'ms'}, cases)}
    work = Work(TOY, None, tmp_path, Clock(1))
    for _ in range(accelerator.TRIES):
        report = new_report()
        report['parts'] = accelerator.known_parts(tmp_path, report)
        with pytest.raises(SystemExit):
            accelerator.run_parts(work, parts, report, tmp_path)
    for _ in range(2):
        report = new_report()
        report['parts'] = accelerator.known_parts(tmp_path, report)
        accelerator.run_parts(work, parts, report, tmp_path)
    assert calls == ['end', 'end']
    # A part whose cases cannot be listed keeps what was measured.
    broken = {'x': parts['x']._replace(cases=lambda work: {}['no'])}
    accelerator.run_parts(work, broken, report, tmp_path)
    assert report['parts']['x']['cases']['after']['rows'] == [{'ms': 1.0}]
    assert '| end | ended the process 2 times |' in (tmp_path / 'accelerator.md').read_text()


def test_a_signal_is_not_the_fault_of_the_case(tmp_path, capsys):
    before = new_report() | {'parts': {'x': {'cases': {}, 'begun': {'a': 1}}}}
    report = new_report() | {'parts': {'x': {'cases': {}, 'begun': {'a': 2}}}}
    report['parts']['y'] = {'cases': {}, 'begun': {'b': 1}}
    chosen = {'y': Part('Only', '', {}, None)}
    accelerator.leave(report, chosen, before, tmp_path, 'terminated')
    parts = json.loads((tmp_path / 'accelerator.json').read_text())['parts']
    assert [parts[name]['begun'] for name in 'xy'] == [{'a': 1}, {}]
    lines = (tmp_path / 'accelerator.md').read_text().splitlines()
    assert [line for line in lines if line.startswith('#')] == ['# cpu', '## 1. Only']
    assert 'error: terminated; the same command continues.' in capsys.readouterr().err


def test_a_recorded_run_does_not_replace_the_handlers_of_signals(work, monkeypatch):
    handlers = []

    def train(experiments, *args, **options):
        with signals.stopping(str):
            handlers.append(signal.getsignal(signal.SIGTERM))
        return [experiments[0].workdir]

    monkeypatch.setattr(rounds, 'train_experiments', train)
    with signals.ending(str):
        result, ticks = rounds.run_recorded(work, 'run', 2)
        assert handlers == [signal.getsignal(signal.SIGTERM)]
    assert result == work.folder / 'run' and ticks == []


@pytest.mark.parametrize('minutes', [math.nan, -1])
def test_the_time_is_a_number(minutes):
    with pytest.raises(app.UsageError, match=f'--minutes={minutes} must be a number of at least 0'):
        accelerator.main(types.SimpleNamespace(minutes=minutes))


@pytest.mark.slow
def test_only_the_chosen_parts_are_measured(tmp_path, monkeypatch):
    def run(*parts):
        command = [sys.executable, '-m', 'experiments.benchmarks.accelerator', '--minutes=0']
        command += ['--toy', f'--output={tmp_path}', *(f'--parts={name}' for name in parts)]
        return subprocess.run(command, capture_output=True, text=True)

    for parts in (('sweeps', 'round'), ('round', 'sweeps')):
        assert run(*parts).returncode == 0
    monkeypatch.setenv('JAX_PLATFORMS', 'cuda')
    missing = run('sweeps')
    assert missing.returncode and missing.stderr.startswith('error: JAX finds no device with JAX_')
    monkeypatch.undo()
    refused = run('sweeps')
    assert refused.returncode != 0 and 'other or unknown values of parts' in refused.stderr
    written = json.loads((tmp_path / 'accelerator.json').read_text())
    assert list(written['parts']) == written['settings']['parts'] == ['round', 'sweeps']
    lines = (tmp_path / 'accelerator.md').read_text().splitlines()
    titles = [line for line in lines if line.startswith('## ')]
    assert titles == [f'## 1. {PARTS["round"].title}', f'## 2. {PARTS["sweeps"].title}']


def test_only_cases_with_a_text_in_their_names_are_measured(work):
    chosen = accelerator.select(PARTS, ['product, tf32', 'fedlmd, bfloat16'], work)
    names = {name: list(part.cases(work)) for name, part in chosen.items()}
    assert names == {'run': ['fedlmd, bfloat16'], 'steps': ['matrix product, tf32']}
    parts = {'round': PARTS['round'], 'memory': PARTS['memory']}
    with pytest.raises(app.UsageError, match=r'--cases=tf64 is in no name of a round; fedlmd\.$'):
        accelerator.select(parts, ['round', 'tf64'], work)


@pytest.mark.slow
def test_a_terminated_command_says_how_to_continue(tmp_path):
    path = tmp_path / 'accelerator.json'
    command = [sys.executable, '-m', 'experiments.benchmarks.accelerator', '--toy']
    process = subprocess.Popen(
        [*command, f'--output={tmp_path}'], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    while not (path.exists() and json.loads(path.read_text())['parts']):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert 'error: terminated; the same command continues.' in process.communicate()[1]
    assert process.returncode == 128 + signal.SIGTERM
    parts = json.loads(path.read_text())['parts']
    assert not any(part['begun'] for part in parts.values())


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / 'accelerator.json').write_text('{"machine"')
    with pytest.raises(app.UsageError, match=r'accelerator.json.*use a copy of it, or move'):
        accelerator.known_parts(tmp_path, {})


def test_a_failed_case_is_measured_again(tmp_path):
    report = new_report()
    report['parts'] = {'x': {'cases': {'a': {'rows': []}, 'b': {'failed': 'so'}}, 'skipped': []}}
    accelerator.write(report, {}, tmp_path)
    known = accelerator.known_parts(tmp_path, report)
    assert known['x']['cases'] == {'a': {'rows': []}}
    assert accelerator.has_failed(report) and not accelerator.has_failed({'parts': known})
    assert accelerator.known_parts(tmp_path / 'nosuch', report) == {}


@pytest.mark.parametrize(
    'value, text',
    [(None, '-'), (True, 'yes'), (False, 'no'), (3, '3'), (0.12345, '0.123'), (12345.6, '12346')],
)
def test_values_of_a_table(value, text):
    assert accelerator.cell(value) == text


def test_a_case_with_several_rows_names_them():
    rows = [{'case': 'o|ne', 'ms': 1.5}, {'ms': 2.0}]
    assert accelerator.table({'ms': 'ms a step'}, {'both': {'rows': rows}}) == [
        '| case | ms a step |',
        '| --- | --- |',
        '| o\\|ne | 1.5 |',
        '| both | 2 |',
    ]


def test_an_estimate_has_a_measurement_only_if_it_raised_the_peak(monkeypatch):
    statistics = {'peak_bytes_in_use': 5 << 20, 'bytes_in_use': 1 << 20}
    monkeypatch.setattr(rounds, 'device_memory', lambda: statistics)
    before = {'peak_bytes_in_use': 4 << 20, 'bytes_in_use': 1 << 20}
    row = rounds.memory_of(before, 2 << 20)
    assert row == {'estimated_mib': 2, 'used_mib': 4, 'ratio': 0.5}
    assert rounds.memory_of(statistics, 2 << 20) == {'estimated_mib': 2}
    monkeypatch.setattr(rounds, 'device_memory', dict)
    assert rounds.memory_of({}, 2 << 20) == {'estimated_mib': 2}


def test_the_memory_of_a_usual_job_is_measured_first(monkeypatch):
    assert next(iter(PARTS)) == 'memory' and list(PARTS['memory'].cases(None)) == ['fedlmd']

    class FirstRound:
        prepared = types.SimpleNamespace(needed=4 << 20, lanes=10)

        def __init__(self, experiments):
            memory.update(peak_bytes_in_use=3 << 20, bytes_in_use=2 << 20)

        def run_round(self):
            memory.update(peak_bytes_in_use=5 << 20)

    memory = {'peak_bytes_in_use': 1 << 20, 'bytes_in_use': 1 << 20}
    work = types.SimpleNamespace(experiment=lambda **changes: None)
    monkeypatch.setattr(rounds, 'device_memory', memory.copy)
    monkeypatch.setattr(rounds, 'Trainer', FirstRound)
    (row,) = PARTS['memory'].cases(work)['fedlmd']()
    sizes = {'estimated_mib': 4, 'used_mib': 4, 'compiling_mib': 2}
    assert row == sizes | {'ratio': 1, 'lanes': 10}


def test_batches_cover_the_examples_of_every_epoch():
    examples = np.array([3, 5, 7, 9, 11])
    rng = np.random.default_rng(0)
    batches = list(plain_loop.draw_batches(examples, epochs=2, batch_size=2, rng=rng))
    assert len(batches) == 6 and all(len(images) == 2 for images, _ in batches)
    for epoch in (batches[:3], batches[3:]):
        assert sorted(np.concatenate([images[real] for images, real in epoch])) == [3, 5, 7, 9, 11]


def test_the_operations_of_a_step_are_those_of_its_layers():
    gradient, *arguments = plain_gradient('mlp', 50)
    weights = 3072 * 200 + 200 * 200 + 200 * 10
    # forward and backward for weights and, except in the first layer, for inputs
    expected = 2 * 50 * (3 * weights - 3072 * 200)
    assert products(jax.make_jaxpr(gradient)(*arguments).jaxpr) == expected


def test_random_images_have_the_shape_of_cifar10():
    data = load_images(None, (30, 20))
    assert data.x_train.shape == (30, 32, 32, 3) and data.x_test.shape == (20, 32, 32, 3)
    assert np.bincount(data.y_train).tolist() == [3] * 10


def test_images_are_read_from_a_file(tmp_path):
    data = load_images(None, (30, 20))
    arrays = {key: getattr(data, key) for key in ('x_train', 'y_train', 'x_test', 'y_test')}
    np.savez(tmp_path / 'images.npz', **arrays)
    read = load_images(str(tmp_path / 'images.npz'), (1, 1))
    assert read.name == 'cifar10' and np.array_equal(read.x_train, data.x_train)
    small = {name: a[:, :8, :8] if name.startswith('x') else a for name, a in arrays.items()}
    np.savez(tmp_path / 'images.npz', **small)
    with pytest.raises(
        ValueError, match=r'images\.npz must be CIFAR-10, .* got 8 x 8 x 3 and 10\.'
    ):
        load_images(str(tmp_path / 'images.npz'), (1, 1))


def test_the_difference_is_relative_to_the_change_of_each_array():
    before = {'a': np.zeros(2, np.float32), 'b': np.ones(4, np.float32)}
    expected = {'a': np.array([3, 4], np.float32), 'b': np.full(4, 1.5, np.float32)}
    after = {'a': expected['a'], 'b': expected['b'] + np.array([0.01, 0, 0, 0], np.float32)}
    relative = steps.relative_difference
    assert relative(after, expected, before) == pytest.approx(0.01, rel=1e-3)  # of sqrt(4 * 0.5**2)
    # of an array that does not change, the difference itself
    assert relative({'a': np.full(1, 0.5)}, {'a': np.zeros(1)}, {'a': np.zeros(1)}) == 0.5
    after['b'][0] = np.nan
    assert math.isnan(relative(after, expected, before))


@pytest.mark.slow
def test_pytorch_is_timed(work):
    pytest.importorskip('torch')
    work.sizes = TOY._replace(model='lenet')
    (row,) = steps.time_torch(work, 'float32', 'cpu')
    assert row['ms'] > 0 and set(row) < set(PARTS['steps'].columns)


def test_pytorch_has_its_cases_on_a_gpu(work, monkeypatch):
    def cases(backend, installed):
        monkeypatch.setattr(jax, 'default_backend', lambda: backend)
        monkeypatch.setattr(steps.reporting, 'has', lambda module: installed)
        return [case for case in steps.local_steps(work) if 'PyTorch' in case]

    assert cases('gpu', True) == ['PyTorch, float32', 'PyTorch, tf32']
    assert cases('gpu', False) == cases('cpu', True) == []
