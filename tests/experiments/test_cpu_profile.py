"""The shares of a local step's time."""

from types import SimpleNamespace

from experiments.benchmarks.cpu_profile import (
    COPIES,
    OUTSIDE,
    PRODUCTS,
    REST,
    kinds,
    per_step,
)
from experiments.benchmarks.profiling import Event, operation_lines, self_times
from experiments.benchmarks.programs import Size
from tests.experiments.test_ahead_of_time import PROGRAM

FUSED = """HloModule jit_g

%shifted (p: f32[8]) -> f32[2,8] {
  %p = f32[8]{0} parameter(0)
  %pad.1 = f32[8]{0} pad(%p), padding=1
  ROOT %concatenate.1 = f32[2,8]{1,0} concatenate(%p, %pad.1), dimensions={0}
}

%scaled (q: f32[2,8]) -> f32[2,2] {
  %q = f32[2,8]{1,0} parameter(0)
  ROOT %dot.1 = f32[2,2]{1,0} dot(%q, %q)
}

ENTRY %main (x: f32[8]) -> f32[2,2] {
  %x = f32[8]{0} parameter(0)
  %copies = f32[2,8]{1,0} fusion(%x), kind=kLoop, calls=%shifted
  ROOT %product = f32[2,2]{1,0} fusion(%copies), kind=kCustom, calls=%scaled
}
"""


def test_instructions_have_kinds():
    of = kinds(FUSED)
    assert (of['copies'], of['product'], of['pad.1']) == (COPIES, PRODUCTS, COPIES)
    of = kinds(PROGRAM)
    assert (of['all-reduce.1'], of['exponential'], of['fusion.1']) == ('', REST, REST)


def test_time_of_inner_operations_counts_once():
    events = [
        Event('inner', 20.0, 10.0),
        Event('loop', 10.0, 50.0),
        Event('inner', 35.0, 5.0),
        Event('within', 36.0, 2.0),
        Event('after', 60.0, 7.0),
    ]
    assert self_times(events) == {'loop': 35.0, 'inner': 13.0, 'within': 2.0, 'after': 7.0}


def test_kinds_sum_to_the_clock():
    size = Size('cnn', clients=2, batch_size=50, steps=5)
    spent = per_step({PRODUCTS: 30e6, REST: 50e6}, 100e6, size)
    assert spent == {PRODUCTS: 3.0, REST: 5.0, OUTSIDE: 2.0}


def test_a_device_has_the_operations_if_there_is_one():
    def plane(name, *lines):
        return SimpleNamespace(name=name, lines=[SimpleNamespace(name=line) for line in lines])

    host = plane('/host:CPU', 'python', 'tf_XLAEigen')
    gpu = plane('/device:GPU:0', 'Stream #1(compute)', 'XLA Ops', 'XLA Modules')
    tpu = plane('/device:TPU:0', 'Steps', 'XLA Ops')

    def names(*planes):
        return [(line.name, on_device) for line, on_device in operation_lines(planes)]

    assert names(host) == [('python', False), ('tf_XLAEigen', False)]
    assert names(host, gpu) == [('Stream #1(compute)', True)]
    assert names(host, tpu) == [('XLA Ops', True)]
