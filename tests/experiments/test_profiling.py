"""The times of instructions, read from a profile."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from experiments.benchmarks.measuring import profiling
from experiments.benchmarks.measuring.profiling import Event, operation_lines, self_times


def test_time_of_inner_operations_counts_once():
    events = [
        Event('inner', 20.0, 10.0),
        Event('loop', 10.0, 50.0),
        Event('inner', 35.0, 5.0),
        Event('within', 36.0, 2.0),
        Event('after', 60.0, 7.0),
    ]
    assert self_times(events) == {'loop': 35.0, 'inner': 13.0, 'within': 2.0, 'after': 7.0}


def test_events_that_overlap_share_their_time():
    assert self_times([Event('a', 0.0, 10.0), Event('b', 9.5, 100.0)]) == {'a': 9.5, 'b': 100.0}


def test_a_kernel_has_the_name_of_its_instruction():
    assert profiling.kernel_name('loop_add-select_fusion.12') == 'loop_add_select_fusion_12'


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


def line(name, *events):
    return SimpleNamespace(
        name=name,
        events=[
            SimpleNamespace(name=n, start_ns=start, duration_ns=ns, stats=list(stats.items()))
            for n, start, ns, stats in events
        ],
    )


@pytest.fixture
def profiled(monkeypatch):
    """Sets what the profiler records on a kind of device."""

    def profile(backend, *planes):
        @contextlib.contextmanager
        def trace(folder):
            yield
            (Path(folder) / 'x.xplane.pb').touch()

        data = SimpleNamespace(planes=planes)
        reader = SimpleNamespace(from_file=lambda file: data)
        monkeypatch.setattr(jax, 'default_backend', lambda: backend)
        monkeypatch.setattr(jax.profiler, 'trace', trace)
        monkeypatch.setattr(jax.profiler, 'ProfileData', reader)

    return profile


def test_kernels_have_the_name_of_their_operation_or_their_own(profiled):
    kernels = line(
        'Stream #1', ('ampere_gemm', 0, 5, {'hlo_op': 'dot.1'}), ('memset', 5, 2, {}),
        ('ampere_gemm', 7, 4, {'hlo_op': 'dot.1'}),
        ('loop_add_fusion_2', 11, 3, {'hlo_op': 'command_buffer_4'}),
    )  # fmt: skip
    launches = line('python', ('launch', 0, 50, {'hlo_op': 'dot.1'}))
    host = SimpleNamespace(name='/host:CPU', lines=[launches])
    profiled('gpu', host, SimpleNamespace(name='/device:GPU:0', lines=[kernels]))
    times, elapsed = profiling.trace(lambda: None)
    assert times == {'dot.1': 9, 'memset': 2, 'loop_add_fusion_2': 3} and elapsed > 0
    profiled('cpu', SimpleNamespace(name='/host:CPU', lines=[launches, line('x', ('y', 0, 1, {}))]))
    assert profiling.trace(lambda: None)[0] == {'dot.1': 50}
    profiled('gpu', host)
    with pytest.raises(RuntimeError, match='the profiler has no operations of the device'):
        profiling.trace(lambda: None)
