"""Processes that train together end together: the loss of one is told by the others in a line.

JAX ends a process whose peers are gone by an abort with a stack trace, 100 s after the last sign of
them, and at once where it is the first process, which hosts JAX's coordinator. (A callback instead
of the abort, which JAX's client would take, ends in `std::bad_cast`.) So each process shows here,
in the coordinator's key-value store, that it is alive, and looks for the others every second. It
reaches the coordinator through a relay of its own, which knows of a closed connection before JAX.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxfed.internal import console

PERIOD = 1.0  # seconds between signs of life
LIMIT = 30.0  # seconds without one after which a process counts as lost
SHORT = 8.0  # the same where something else has failed already
_FOLDER = 'jaxfed'  # of keys

_ending = threading.Event()  # this process ends by itself: nothing is told of others any more
_joined = threading.Event()
_suspicious = threading.Event()
_follows = threading.Event()  # another process records
_status: list[int] = []  # with which it ends, where that is an error
_NOTHING = 'no round was trained'
_advice = [_NOTHING]


def advise(text: str) -> None:
    """Sets what is told together with the loss of a process.

    Args:
      text: what becomes of the run, in words.
    """
    _advice[0] = text


def left_elsewhere() -> str:
    """What is left of a run that has no round on this host, in words; asked by signal handlers."""
    return _advice[0] if _follows.is_set() else _NOTHING


def stop(message: str, status: int) -> None:
    """Ends this process from any thread: the main one may wait in a collective for ever.

    Args:
      message: why.
      status: the exit status.
    """
    if _ending.is_set():
        return
    _ending.set()
    console.show_error(message)
    leave(status)


def lost(which: str) -> None:
    """Ends this process because others are gone.

    Args:
      which: the others, in words.
    """
    stop(f'{which}; {_advice[0]}.', 1)


def leave(status: int) -> None:
    """Ends this process without JAX's own end, in which it waits for all others.

    Args:
      status: the exit status.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def relay(address: str) -> str:
    """Makes an address on this host behind which is the coordinator.

    Args:
      address: of the coordinator, HOST:PORT.

    Returns:
      The address. When the coordinator closes a connection, this process stops.
    """
    host, _, port = address.rpartition(':')
    server = socket.create_server(('127.0.0.1', 0))

    def pump(source: socket.socket, sink: socket.socket, ended: Callable[[], None]) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        ended()

    def accept() -> None:
        while True:
            near = server.accept()[0]
            try:
                far = socket.create_connection((host.strip('[]'), int(port)), timeout=10)
            except OSError:
                near.close()  # the first process is not there yet; JAX tries again
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.settimeout(None)
            _probe(far)

            def closed(near: socket.socket = near) -> None:
                if not _joined.is_set():
                    near.close()
                    return
                # From here on the connection to JAX stays open, so that JAX does not abort.
                lost('process 0 was lost: it closed its connection')
                if _status:
                    leave(_status[0])

            up = (near, far, lambda far=far: far.close())
            threading.Thread(target=pump, args=up, daemon=True).start()
            threading.Thread(target=pump, args=(far, near, closed), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f'127.0.0.1:{server.getsockname()[1]}'


def _probe(connection: socket.socket) -> None:
    """Let a host that is gone without closing its connections be noticed, where the system can."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ('TCP_KEEPIDLE', 10),
        ('TCP_KEEPINTVL', 5),
        ('TCP_KEEPCNT', 4),
        ('TCP_USER_TIMEOUT', 30_000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def watch(client: Any, process: int, processes: int) -> None:
    """Begins to show that this process is alive, and to look for the others.

    Args:
      client: of JAX's coordinator.
      process: number of this process.
      processes: how many there are.
    """
    _joined.set()
    if process:
        _follows.set()

    def look() -> None:
        heard: dict[int, tuple[str, float]] = {}
        beat = 0
        while not _ending.is_set():
            time.sleep(PERIOD)
            beat += 1
            try:
                client.key_value_set(f'{_FOLDER}/alive/{process}', str(beat), allow_overwrite=True)
                ended = dict(client.key_value_dir_get(f'{_FOLDER}/ended/'))
                signs = dict(client.key_value_dir_get(f'{_FOLDER}/alive/'))
            except Exception:  # the relay, or who waits for an answer, tells what it means
                continue
            for key, text in ended.items():
                number, (status, message) = int(key.rpartition('/')[2]), json.loads(text)
                if number != process:
                    seen = f'{_FOLDER}/seen/{process}'
                    with contextlib.suppress(Exception):  # it may be gone by now
                        client.key_value_set(seen, '.', allow_overwrite=True)
                    stop(f'process {number} ended: {message}', status)
            now = time.monotonic()
            if now - answered[0] > LIMIT / 2:  # it was this process that did nothing, as in standby
                heard = {}
            answered[0] = now
            for number in range(processes):
                sign = signs.get(f'{_FOLDER}/alive/{number}', '')
                if number not in heard or heard[number][0] != sign:
                    heard[number] = (sign, now)
            limit = min(SHORT, LIMIT) if _suspicious.is_set() else LIMIT
            silent = [n for n, (_, since) in heard.items() if now - since > limit]
            if silent:
                which = 'es' * (len(silent) > 1), ', '.join(map(str, silent))
                lost(f'process{which[0]} {which[1]} lost: nothing heard for {limit:.0f} s')

    def judge() -> None:
        last = time.monotonic()
        while not _ending.is_set():
            time.sleep(PERIOD)
            now = time.monotonic()
            if now - last > LIMIT / 2:  # as above
                answered[0] = now
            last = now
            if now - answered[0] > LIMIT:
                lost(f'process 0 was lost: it gave no answer for {LIMIT:.0f} s')

    answered = [time.monotonic()]
    threading.Thread(target=look, daemon=True).start()
    threading.Thread(target=judge, daemon=True).start()


def explain() -> None:
    """Waits, after a failed exchange, until the process that was lost is known and told.

    It comes back where no process was lost.
    """
    _suspicious.set()
    time.sleep(SHORT + 5 * PERIOD)


def tell(client: Any, process: int, processes: int, status: int, message: str) -> None:
    """Tells the others that this process ends with an error, and waits until they know.

    Args:
      client: of JAX's coordinator.
      process: number of this process.
      processes: how many there are.
      status: its exit status.
      message: why it ends.
    """
    _ending.set()
    _status.append(status)
    try:
        client.key_value_set(f'{_FOLDER}/ended/{process}', json.dumps([status, message]))
        for _ in range(50):  # five seconds
            known = {
                key.rpartition('/')[2]
                for folder in ('ended', 'seen')
                for key, _ in client.key_value_dir_get(f'{_FOLDER}/{folder}/')
            }
            if len(known) == processes:
                break
            time.sleep(0.1)
    except Exception:  # the first process is gone, and the others know it by now
        return


def finished() -> None:
    """Notes that all processes have done their work, so that none counts as lost any more."""
    _ending.set()
