"""The memory of a process in a control group."""

import math

import pytest

from jaxfed.internal.machine import group_limit, memory, processor


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ('groups', 'limits', 'expected'),
    [
        ('0::/', {'memory.max': '4096\n'}, 4096),
        ('0::/', {'memory.max': 'max\n'}, math.inf),
        # A job may have more than its step, or less.
        ('0::/job/step', {'job/memory.max': '10\n', 'job/step/memory.max': 'max\n'}, 10),
        ('0::/job/step', {'job/memory.max': '10\n', 'job/step/memory.max': '7\n'}, 7),
        ('4:memory:/a\n1:cpu:/b', {'memory/a/memory.limit_in_bytes': '99\n'}, 99),
        # A container sees its own group as the root.
        ('4:cpu,memory:/docker/f00', {'memory/memory.limit_in_bytes': '99\n'}, 99),
        ('1:cpu:/b', {'memory/memory.limit_in_bytes': '99\n'}, math.inf),
        ('', {}, math.inf),
    ],
)
def test_the_smallest_limit_counts(groups, limits, expected, tmp_path):
    write(tmp_path / 'cgroup', groups)
    for name, text in limits.items():
        write(tmp_path / 'groups' / name, text)
    assert group_limit(tmp_path / 'cgroup', tmp_path / 'groups') == expected


def test_without_control_groups(tmp_path):
    assert group_limit(tmp_path / 'none', tmp_path) == math.inf
    assert 0 < memory() < math.inf
    assert processor().strip() and processor().isprintable()
