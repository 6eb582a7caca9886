"""Processes with some of the CPU's cores each, that work in turns: one when it is asked, then wait.

A device must not have the cores of others to help. In one process it would: XLA's threads are those
of all devices, and kept to fewer cores they get in each other's way.
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


class Asked(NamedTuple):
    """A process that answers."""

    first: Any  # what it answered with when it was ready
    ask: Callable[[Any], Any]  # a question and its answer, values that are plain JSON


@contextlib.contextmanager
def process(module: str, arguments: Sequence[str]) -> Iterator[Asked]:
    """Starts a process, and ends it.

    Args:
      module: that it runs; it calls `take_cores` and `serve`.
      arguments: of its command line.

    Yields:
      The process, when it is ready.
    """
    command = [sys.executable, '-m', module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin and running.stdout
        given, written = running.stdin, running.stdout

        def read() -> Any:
            for text in written:
                if text.startswith(MARK):
                    return json.loads(text.removeprefix(MARK))
            raise RuntimeError(f'{" ".join(command)} ended early.')

        def ask(question: Any) -> Any:
            given.write(json.dumps(question) + '\n')
            given.flush()
            return read()

        yield Asked(read(), ask)
        given.close()


def take_cores(devices: int) -> int:
    """Makes devices of as many cores, and leaves the other cores alone.

    Args:
      devices: how many, JAX not having been used yet.

    Returns:
      How many cores they have: as many as they are, or all that there are.
    """
    own = sorted(os.sched_getaffinity(0))[:devices]
    os.sched_setaffinity(0, own)
    jax.config.update('jax_platforms', 'cpu')
    jax.config.update('jax_num_cpu_devices', devices)
    return len(own)


def serve(first: Any, reply: Callable[[Any], Any]) -> None:
    """Answers every line of the standard input until it ends.

    Args:
      first: what is told before any is read.
      reply: a question -> its answer.
    """
    answer(first)
    for line in sys.stdin:
        answer(reply(json.loads(line)))


def answer(value: Any) -> None:
    """Writes a value for the process that asked."""
    print(f'{MARK}{json.dumps(value)}', flush=True)
