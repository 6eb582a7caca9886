"""Processes with some of the CPU's cores each, which measure on request.

A device must not use the cores of other devices. Inside one process it does, because XLA's threads
serve all devices and compete on fewer cores.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

MARK = 'RESULT '  # before a line that a process answers with


class Worker(NamedTuple):
    """A process that answers requests."""

    ready: Any  # its first answer
    ask: Callable[[Any], Any]  # request -> answer, both values of JSON


@contextlib.contextmanager
def start(module: str, arguments: Sequence[str]) -> Iterator[Worker]:
    """Starts a process that runs a module, which calls `use_cores` and `serve`; ends it at exit."""
    command = [sys.executable, '-m', module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        stdin, stdout = process.stdin, process.stdout

        def read() -> Any:
            for line in stdout:
                if line.startswith(MARK):
                    return json.loads(line.removeprefix(MARK))
            raise RuntimeError(f'{" ".join(command)} ended early.')

        def ask(request: Any) -> Any:
            stdin.write(json.dumps(request) + '\n')
            stdin.flush()
            return read()

        yield Worker(read(), ask)
        stdin.close()


def use_cores(devices: int) -> int:
    """Makes `devices` devices on as many cores, before JAX is used; returns the number of cores.

    If the machine has fewer cores, the devices share them.
    """
    cores = sorted(os.sched_getaffinity(0))[:devices]
    os.sched_setaffinity(0, cores)
    jax.config.update('jax_platforms', 'cpu')
    jax.config.update('jax_num_cpu_devices', devices)
    return len(cores)


def serve(ready: Any, reply: Callable[[Any], Any]) -> None:
    """Writes `ready`, then the reply to every line of the standard input until it ends."""
    _answer(ready)
    for line in sys.stdin:
        _answer(reply(json.loads(line)))


def _answer(value: Any) -> None:
    print(f'{MARK}{json.dumps(value)}', flush=True)
