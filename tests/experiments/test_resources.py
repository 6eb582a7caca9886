"""Calls in one process leave nothing behind."""

import pytest

pytest.importorskip('psutil')

from experiments.stress import resources, soak

pytestmark = pytest.mark.slow


def test_calls_leave_no_descriptors_threads_arrays_and_files(tmp_path):
    environment = {'JAXFED_CACHE_DIR': f'{tmp_path}/cache', 'TMPDIR': str(tmp_path)}
    held = resources.in_process('run_calls', 10, environment)
    assert [numbers['call'] for numbers in held] == [*range(1, 11)]
    grown = resources.growth(held)
    assert (grown['descriptors'], grown['threads'], grown['arrays']) == (0, 0, 0)
    assert {path.name for path in tmp_path.iterdir()} <= {'cache'}  # if a program took long enough


def test_growth_is_that_of_the_second_half():
    held = [{'call': c, 'threads': t} for c, t in ((10, 1), (20, 5), (30, 6), (40, 9))]
    assert resources.growth(held) == {'threads': 4}


def test_a_failed_process_is_an_error():
    with pytest.raises(RuntimeError, match=r"run_job\({'model': 'none'}\).*"):
        resources.in_process('run_job', {'model': 'none'}, {})


def test_a_soak_compares_the_end_with_the_start():
    times = [float(n) for n in range(1, 101)]
    flat = {name: [1.0] * 100 for name in ('resident', 'arrays')}
    flat |= {'seconds': times, 'cpu_seconds': times}
    assert soak.compare(flat) == {
        'resident_growth': 0, 'array_growth': 0, 'throughput_ratio': 1, 'cpu_throughput_ratio': 1,
        'rounds_per_second': 1,
    }  # fmt: skip
    slower = flat | {'seconds': [float(n**2) for n in range(1, 101)], 'resident': range(1, 101)}
    found = soak.compare(slower)
    assert found['throughput_ratio'] < 0.2 and found['resident_growth'] == 4
