"""The time of each instruction of compiled programs, from JAX's profiler."""

import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

# The lines of a device that hold the operations which it runs: of a GPU, else of a TPU.
DEVICE_LINES = ('Stream', 'XLA Ops')


class Event(NamedTuple):
    """An operation that a thread has run, in nanoseconds."""

    name: str
    start: float
    duration: float


def self_times(events: Iterable[Event]) -> dict[str, float]:
    """Nanoseconds of each operation of one thread, without those of operations inside it."""
    times: dict[str, float] = defaultdict(float)
    stack: list[tuple[str, float]] = []  # operations that have not ended, and their ends
    for name, start, duration in sorted(events, key=lambda e: (e.start, -e.duration)):
        while stack and start >= stack[-1][1]:
            stack.pop()
        if stack:
            times[stack[-1][0]] -= min(duration, stack[-1][1] - start)
        times[name] += duration
        stack.append((name, start + duration))
    return times


def trace(run: Callable[[], Any]) -> tuple[dict[str, float], float]:
    """Nanoseconds of each instruction that a function runs, and of the whole run by the clock.

    A kernel of a GPU for which the profiler names no instruction has its own name.

    Raises:
      RuntimeError: if the profiler has no operations of a GPU or TPU.
    """
    times: dict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            start = time.perf_counter_ns()
            run()
            elapsed = time.perf_counter_ns() - start
        (file,) = Path(folder).rglob('*.xplane.pb')
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
        lines = operation_lines(planes)
        if jax.default_backend() != 'cpu' and not any(on_device for _, on_device in lines):
            raise RuntimeError('the profiler has no operations of the device')
        for line, on_device in lines:
            events = [
                Event(name or event.name, event.start_ns, event.duration_ns)
                for event in line.events
                if (name := instruction_of(event)) or on_device
            ]
            for name, nanoseconds in self_times(events).items():
                times[name] += nanoseconds
    return times, elapsed


def instruction_of(event: Any) -> str:
    """The name of an event's instruction, '' if it is unknown."""
    name = str(dict(event.stats).get('hlo_op') or '')
    # The kernels of a CUDA graph all have the name of the graph.
    return '' if name.startswith('command_buffer') else name


def kernel_name(instruction: str) -> str:
    """The name that XLA gives the kernel of an instruction."""
    return re.sub(r'\W', '_', instruction)


def operation_lines(planes: Iterable[Any]) -> list[tuple[Any, bool]]:
    """The lines of a profile that hold operations, and whether they are those of a device.

    The host's lines repeat the operations of a device, so they count only without one.
    """
    lines = [(plane.name.startswith('/device:'), line) for plane in planes for line in plane.lines]
    for kind in DEVICE_LINES:
        if found := [line for device, line in lines if device and line.name.startswith(kind)]:
            return [(line, True) for line in found]
    return [(line, False) for _, line in lines]
