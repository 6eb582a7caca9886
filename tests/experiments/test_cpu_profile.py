"""The shares of a local step's time."""

from experiments.benchmarks.cpu_profile import (
    COPIES,
    OUTSIDE,
    PRODUCTS,
    REST,
    kinds,
    per_step,
)
from experiments.benchmarks.programs.local_steps import Size
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


def test_kinds_sum_to_the_clock():
    size = Size('cnn', clients=2, batch_size=50, steps=5)
    spent = per_step({PRODUCTS: 30e6, REST: 50e6}, 100e6, size)
    assert spent == {PRODUCTS: 3.0, REST: 5.0, OUTSIDE: 2.0}
