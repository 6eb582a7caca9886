"""Compilation for absent accelerators, and reading of compiled programs."""

import importlib.util
import json
import subprocess
import sys
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import app, flags
from jax import lax

from experiments.benchmarks.ahead_of_time import __main__ as ahead_of_time
from experiments.benchmarks.ahead_of_time import page
from experiments.benchmarks.ahead_of_time.compiling import least_traffic
from experiments.benchmarks.ahead_of_time.targets import TARGETS
from experiments.benchmarks.measuring import compiled, operations
from jaxfed.config import Config
from jaxfed.internal import backend
from jaxfed.runs import config_flags
from jaxfed.runs.experiment import make_experiment

PROGRAM = """HloModule jit_f, entry_computation_layout={(f32[1000,8]{1,0})->f32[4,8]{1,0}}

%rows (param_0: f32[1000,8], param_1: s32[4]) -> f32[4,8] {
  %param_0 = f32[1000,8]{1,0} parameter(0)
  %param_1 = s32[4]{0} parameter(1)
  %gather.1 = f32[4,8]{1,0} gather(%param_0, %param_1), slice_sizes={1,8}
  ROOT %negate.1 = f32[4,8]{1,0} negate(%gather.1)
}

%body (state: (f32[4,8])) -> (f32[4,8]) {
  %state = (f32[4,8]{1,0}) parameter(0)
  %element = f32[4,8]{1,0} get-tuple-element(%state), index=0
  %exponential = f32[4,8]{1,0} exponential(%element), metadata={op_name="jit(f)/exp"}
  ROOT %next = (f32[4,8]{1,0}) tuple(%exponential)
}

ENTRY %main (x: f32[1000,8], i: s32[4]) -> f32[4,8] {
  %x = f32[1000,8]{1,0} parameter(0)
  %i = s32[4]{0} parameter(1)
  %fusion.1 = f32[4,8]{1,0} fusion(%x, %i), kind=kLoop, calls=%rows
  %start = (f32[4,8]{1,0}) tuple(%fusion.1)
  %while = (f32[4,8]{1,0}) while(%start), condition=%cond, body=%body
  %result = f32[4,8]{1,0} get-tuple-element(%while), index=0
  ROOT %all-reduce.1 = f32[4,8]{1,0} all-reduce(%result), to_apply=%add
}
"""
ROWS = 4 * 8 * 4  # bytes


def test_bytes_of_a_type():
    assert compiled.size('f32[4,8]{1,0}') == 128
    # A TPU pads the two axes that change fastest.
    assert compiled.size('f32[2,4,8]{2,1,0:T(8,128)}') == 2 * 8 * 128 * 4
    assert compiled.size('bf16[300,4]{0,1:T(8,128)(2,1)}') == 384 * 8 * 2
    assert compiled.size('s32[100]{0:T(256)}') == 256 * 4
    assert compiled.size('(bf16[3]{0}, s32[2,2]{1,0}, pred[5])') == 6 + 16 + 5
    assert compiled.size('f32[]') == 4 and compiled.size('token[]') == 0


def test_a_program_is_counted_by_what_it_moves():
    found = {i.name: i for i in compiled.instructions(PROGRAM)}
    # Of the 1000 rows the fusion reads four; its own instructions do not count again.
    assert set(found) == {'fusion.1', 'exponential', 'all-reduce.1'}
    assert found['fusion.1'].bytes == ROWS + ROWS + 16
    assert found['exponential'].bytes == found['all-reduce.1'].bytes == 2 * ROWS
    assert found['exponential'].source == 'jit(f)/exp'


def test_a_compiled_program_is_described():
    program = jax.jit(lambda a, b: jnp.tanh(a @ b)).lower(jnp.ones((8, 4)), jnp.ones((4, 2)))
    described = compiled.describe(program.compile())
    least = 4 * (8 * 4 + 4 * 2 + 8 * 2)
    assert described['bytes'] >= least and described['memory']['arguments'] == 4 * (32 + 8)
    assert described['memory']['results'] == 64 and described['collectives'] == {}


def test_operations_are_those_of_products_and_convolutions():
    def function(a, b, x, w):
        def turn(i, total):
            return total + a @ b

        y = lax.conv_general_dilated(
            x, w, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
        )
        return lax.fori_loop(0, 3, turn, jnp.zeros((5, 6))), y

    shapes = [(5, 7), (7, 6), (2, 8, 8, 3), (3, 3, 3, 4)]
    jaxpr = jax.make_jaxpr(function)(*(np.zeros(shape) for shape in shapes))
    product, convolution = 2 * 5 * 7 * 6, 2 * (2 * 6 * 6 * 4) * (3 * 3 * 3)
    assert operations.products(jaxpr.jaxpr) == product + convolution  # one turn of the loop


def test_the_operations_of_lowered_programs_are_counted_by_name():
    def product(a):
        return a @ a

    with operations.counted() as counted:
        backend.lower(product, np.zeros((4, 4)))
        backend.lower(partial(product), np.zeros((5, 5)))
    backend.lower(product, np.zeros((6, 6)))
    assert counted == {'product': 2 * 5**3}


def test_least_traffic_of_a_step():
    experiment = make_experiment(Config(model='mlp', batch_size=5))
    params = jax.eval_shape(experiment.model.init, jax.random.key(0))
    weights = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    outputs = sum(leaf.shape[1] for leaf in weights)
    inputs = int(np.prod(experiment.input_shape))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    want = 3 * 4 * (2 * numbers + 5 * (inputs + outputs))
    assert least_traffic(experiment, 3) == want


def test_cases_are_all_combinations():
    assert ahead_of_time.parse_cases('') == [{}]
    assert ahead_of_time.parse_cases('model=cnn,lenet lanes=1,4') == [
        {'model': model, 'lanes': lanes} for model in ('cnn', 'lenet') for lanes in ('1', '4')
    ]
    for text in ('lanes', 'lanes=', 'colour=red'):
        with pytest.raises(app.UsageError, match=f'--cases={text!r} must name settings'):
            ahead_of_time.parse_cases(text)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--cases=lanes=1,abc'], '--lanes must be an integer, got abc'),
        (['--cases=method=fedavg,nope'], "--method=nope: unknown method 'nope'"),
        (['--cases', 'num_clients=100,0'], '--num_clients must be at least 1, got 0'),
        (['--cases=conv=grouped,foo', '--lanes=4'], '--conv must be one of auto, grouped'),
        (['--devices=9'], '--devices=9 must be all (one device) or in 1..4.'),
        (['--dataset=mnist'], '--dataset has no effect'),
    ],
)
def test_bad_input_is_one_line_before_anything_is_compiled(words, message):
    command = [sys.executable, '-m', 'experiments.benchmarks.ahead_of_time', '--target=h100']
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.stderr.startswith('error: ') and message in done.stderr
    assert done.returncode and len(done.stderr.splitlines()) == 1


def test_finished_cases_are_read_again(tmp_path):
    report = {'cases': [{'settings': {'lanes': '1'}, 'memory': 5}, {'settings': {}, 'failed': 'x'}]}
    (tmp_path / 'a.json').write_text(json.dumps(report))
    cases = [{'lanes': '1'}, {}, {'lanes': '4'}]
    known = ahead_of_time.read_cases(str(tmp_path / 'a'), {}, cases)
    assert known == {'{"lanes": "1"}': report['cases'][0]}
    assert ahead_of_time.read_cases(str(tmp_path / 'b'), {}, cases) == {}
    assert ahead_of_time.read_cases(None, {}, cases) == {}


def test_results_of_another_command_are_not_lost(tmp_path):
    report = {'cases': [{'settings': {'lanes': '1', 'conv': 'patches'}, 'memory': 5}]}
    (tmp_path / 'a.json').write_text(json.dumps(report))
    with pytest.raises(app.UsageError, match="does not name, such as 'lanes=1 conv=patches'"):
        ahead_of_time.read_cases(str(tmp_path / 'a'), {}, [{'lanes': '1'}])
    new = {'machine': {'jax': '1'}, 'settings': {'flags': ['--model=cnn']}}
    for flags_ in ['--model=cnn', '--devices=4'], []:
        old = {'machine': {'jax': '1'}, 'settings': {'flags': flags_}}
        (tmp_path / 'a.json').write_text(json.dumps(report | old))
        with pytest.raises(app.UsageError, match='other or unknown values of flags; choose anoth'):
            ahead_of_time.read_cases(str(tmp_path / 'a'), new, [{'lanes': '1', 'conv': 'patches'}])
    (tmp_path / 'a.json').write_text('{"machine"')
    with pytest.raises(app.UsageError, match=r'a.json.*use a copy of it, or move'):
        ahead_of_time.read_cases(str(tmp_path / 'a'), new, [{}])


def test_every_lane_of_a_case_has_a_client():
    config = ahead_of_time.config_of(['--clients_per_round=5'], {'lanes': '10', 'model': 'lenet'})
    assert (config.lanes, config.clients_per_round, config.model) == (10, 10, 'lenet')
    assert ahead_of_time.config_of([], {'lanes': '4'}, devices=4).clients_per_round == 16
    with pytest.raises(app.UsageError, match='--clients_per_round must be at most --num_clients'):
        ahead_of_time.config_of([], {'lanes': '101', 'num_clients': '100'})
    config = ahead_of_time.config_of(['--tau=2'], {'method': 'fedlmd'})  # no setting of fedavg
    assert config.hyperparameters == {'tau': 2}


def test_every_case_has_the_flags_of_the_command(tmp_path):
    values = flags.FlagValues()
    config_flags.define_flags(values)
    for name in 'cases', 'output', 'limit':
        flags.DEFINE_string(name, None, '', flag_values=values)
    file = tmp_path / 'a.flags'
    file.write_text('--model=lenet\n--partition=dirichlet\n')
    command = ['--cases', 'lanes=1,2', '--output=a', '--alpha', '0.3', f'--flagfile={file}']
    values(['', *command, '--limit=9'])
    words = ahead_of_time.words_of(values, 'limit')
    assert config_flags.parse(words) == config_flags.from_flags(values)
    assert {'--alpha=0.3', '--model=lenet', '--partition=dirichlet'} < set(words)
    assert '--limit=9' in ahead_of_time.words_of(values)


def test_a_failed_case_is_a_row_of_the_page(tmp_path, capsys):
    measured = {
        'compile_seconds': 1.25,
        'compile_cpu_seconds': 2.0,
        'flop': 197 * 10**9,
        'bytes': 819,
    }
    measured |= {'memory': {'temporary': 2**20}, 'collectives': {'all-reduce': 2}}
    step = {'name': 'fusion.1', 'operation': 'fusion', 'source': 'jit(step)/add', 'bytes': 5e6}
    measured['largest'] = [step]
    case = {'settings': {'lanes': '4'}, 'precision': 'bfloat16', 'least_bytes_of_a_step': 273}
    case |= {'memory': 3 * 2**20, 'prepare_seconds': 7.4}
    report = {
        'target': 'tpu-v5e',
        'devices': 1,
        'machine': {'cores': 2},
        'cases': [
            case | {'programs': {'step': measured}},
            {'settings': {'lanes': '9'}, 'failed': 'not compiled after 1 s'},
        ],
    }
    page.write_page(report, tmp_path / 'page.md')
    lines = (tmp_path / 'page.md').read_text().splitlines()
    assert lines[0] == '# Programs compiled for tpu-v5e, 1 device'
    assert 'A loop counts as one turn.' in (tmp_path / 'page.md').read_text()
    assert (
        '| lanes=4, bfloat16, 3 MiB on a device, ready after 7 s | step | 1.2 | 2.0 | 1 | 197.0 '
        '| 0.00 | 3.0 | 1.00 | 0.00 | 2 all-reduce |' in lines
    )
    assert any(line.startswith('| lanes=9 | not compiled after 1 s |') for line in lines)
    assert lines[-1] == '- lanes=4: 5 MB fusion.1 (add)'
    page.show(report)
    assert '\nlanes=9: not compiled after 1 s\n' in capsys.readouterr().out
    assert page.notes_of(report['cases'][0]) == (
        'collectives: 2 all-reduce in step\nlargest of a step: 5 MB fusion.1 (add)'
    )


def test_the_reason_of_a_failure_is_its_exception():
    compiler = 'Traceback\njax.errors.JaxRuntimeError: INTERNAL: no tile\n  a.py:1 [stack]\n'
    assert ahead_of_time.reason(compiler) == 'jax.errors.JaxRuntimeError: INTERNAL: no tile'
    crash = 'F1124 22:36:06.6 2 tiling.cc:627] Check failed: a == b (1 vs. 2)\n@ 0x\n'
    assert ahead_of_time.reason(crash) == 'tiling.cc:627] Check failed: a == b (1 vs. 2)'
    assert ahead_of_time.reason('a | b\n') == 'a / b'
    assert ahead_of_time.reason('') == 'no message'


def test_the_target_decides():
    assert backend.on_cpu()
    with backend.compiling_for('tpu'):
        assert backend.backend() == 'tpu' and not backend.on_cpu()
    assert backend.on_cpu()


def test_a_tpu_is_compiled_for_at_a_lower_level(monkeypatch):
    levels = []

    class Lowered:
        def compile(self, compiler_options):
            levels.append(compiler_options)

        def lower(self, *arguments):
            return self

    monkeypatch.setattr(backend.jax, 'jit', lambda function: Lowered())
    backend.compile_program(abs, 1)
    with backend.compiling_for('gpu'):
        backend.compile_program(abs, 1)
    with backend.compiling_for('tpu'):
        backend.compile_program(abs, 1)
        jax.config.update('jax_optimization_level', 'O3')
        try:
            backend.compile_program(abs, 1)
        finally:
            jax.config.update('jax_optimization_level', 'UNKNOWN')
    with backend.compiling_for('tpu', device_kind='TPU v6 lite'):
        backend.compile_program(abs, 1)
    assert levels == [None, None, {'optimization_level': 19}, None, {'optimization_level': 9}]


class Waiting:
    """A lowered program that compiles only beside another one."""

    def __init__(self, name, barrier):
        self.name, self.barrier = name, barrier

    def compile(self, compiler_options):
        self.barrier.wait()
        return self.name


def test_programs_compile_side_by_side_and_keep_their_places():
    barrier = threading.Barrier(2, timeout=60)
    programs = [Waiting('a', barrier), None, {'c': Waiting('c', barrier)}]
    assert backend.compile_all(programs) == ['a', None, {'c': 'c'}]


def test_one_program_at_a_time_for_absent_devices():
    threads = []

    class Lowered:
        def compile(self, compiler_options):
            threads.append(threading.current_thread())
            time.sleep(0.05)  # so that an idle thread would take the next

    with backend.compiling_for('gpu'):
        backend.compile_all([Lowered(), Lowered(), Lowered()])
    assert len(threads) == 3 and len({*threads}) == 1


def test_the_error_of_a_program_is_raised():
    class Failing:
        def compile(self, compiler_options):
            raise MemoryError

    with pytest.raises(MemoryError):
        backend.compile_all([jax.jit(jnp.sin).lower(1.0), Failing()])


@pytest.mark.slow
@pytest.mark.parametrize('devices', [1, 4])
@pytest.mark.parametrize('target', ['tpu-v5e', 'tpu-v6e', 'h100'])
def test_the_default_run_compiles(target, devices, tmp_path):
    if importlib.util.find_spec(TARGETS[target].package) is None:
        pytest.skip(f'{TARGETS[target].package} is not installed')
    words = [f'--target={target}', f'--devices={devices}', f'--output={tmp_path}/a']
    command = [sys.executable, '-m', 'experiments.benchmarks.ahead_of_time', *words]
    subprocess.run(command, check=True, capture_output=True)
    (case,) = json.loads((tmp_path / 'a.json').read_text())['cases']
    assert set(case['programs']) == {'step', 'train', 'merge', 'evaluation'}
    for program in case['programs'].values():
        assert program['bytes'] > 0 and program['memory']['arguments'] > 0
        assert program['flop'] is not None
    # The sum of the updates is the only communication of a round.
    assert not case['programs']['train']['collectives']
    assert set(case['programs']['merge']['collectives']) <= {'all-reduce'}
    assert devices == 1 or case['programs']['merge']['collectives']
