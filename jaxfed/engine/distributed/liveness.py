"""Detects a lost process and stops the others with a one-line error.

When a process is lost, JAX aborts the others with a stack trace: some time after its last heartbeat
to JAX, which is set to a day, and at once if it is the first process, which hosts JAX's
coordinator. (JAX offers a callback instead, but it fails with `std::bad_cast`.) So each process
writes heartbeats to the coordinator's key-value store and reads those of the others every second.
It connects to the coordinator through its own relay, which notices a closed connection before JAX
does.
"""

import collections
import contextlib
import itertools
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxfed.engine.distributed import gate
from jaxfed.internal import console

PERIOD = 1.0  # seconds between heartbeats
LIMIT = 30.0  # seconds without a heartbeat after which a process counts as lost, whole periods
SHORT_LIMIT = 8.0  # the same after a failed collective
_FOLDER = 'jaxfed'  # of keys

# The thread that ends this process never releases it, so that no other thread reports an error.
_ending = threading.RLock()
_joined = threading.Event()
_finished = threading.Event()
_follower = threading.Event()  # another process records
_common = threading.Event()  # all processes end with the error of this one
_failed = threading.Event()  # a collective has failed, maybe because a process was lost
_peers_alive = threading.Event()  # all others have sent heartbeats since then
_gone = threading.Event()  # the coordinator has closed its connection
_status: list[int] = []  # exit status of this process, if it ends with an error
_NOTHING = 'no round was trained'
_advice = [_NOTHING]


def set_advice(text: str) -> None:
    """Sets the end of the error about a lost process: how to continue the run."""
    _advice[0] = text


def describe_rest() -> str:
    """The state of a run that has recorded no round on this host; for signal handlers."""
    return _advice[0] if _follower.is_set() else _NOTHING


def stop(message: str, status: int, before_exit: Callable[[], None] = lambda: None) -> None:
    """Ends this process from any thread: the main thread may wait in a collective forever."""
    if not _ending.acquire(blocking=False):
        return
    console.show_error(message)
    # A coordinator that is gone never answers, and its client would wait for it; if it goes from
    # now on, `_closed` ends this process.
    _status.append(status)
    if not _gone.is_set():
        before_exit()
    exit_now(status)


def stop_for_loss(loss: str) -> None:
    """Ends this process because others are lost."""
    stop(f'{loss}; {_advice[0]}.', 1)


def exit_now(status: int) -> None:
    """Ends this process without JAX's shutdown, which waits for all others."""
    console.flush()
    os._exit(status)


def relay(address: str, process: int) -> str:
    """An address on this host that forwards to the gate of the coordinator at HOST:PORT.

    When the coordinator closes a connection, this process stops; so connections of other processes
    are closed at once.

    Args:
      address: of the gate.
      process: number of this process.
    """
    host, _, port = address.rpartition(':')
    server = socket.create_server(('127.0.0.1', 0))
    own = server.getsockname()

    def accept() -> None:
        while True:
            near, peer = gate.accept_one(server)
            try:
                if not _is_own(peer, own):
                    near.close()
                    continue
                far = socket.create_connection((host.strip('[]'), int(port)), timeout=10)
                try:
                    gate.introduce(far, process)
                except OSError:
                    far.close()
                    raise
            except gate.Taken:
                stop(f'--process_id={process}: another process has this number.', 2)
            except OSError:
                near.close()  # no first process yet, or no descriptor is free; JAX retries
                continue
            gate.set_no_delay(near, far)
            _keep_alive(far)
            for pump in ((near, far, far.close), (far, near, lambda near=near: _closed(near))):
                threading.Thread(target=gate.pump, args=pump, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f'127.0.0.1:{own[1]}'


def _is_own(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Whether a socket of this process connects `peer` to `own`; True on Windows."""
    if not os.path.isdir('/dev/fd'):
        return True
    return any(_connects(int(name), peer, own) for name in os.listdir('/dev/fd'))


def _connects(descriptor: int, near: tuple[str, int], far: tuple[str, int]) -> bool:
    """Whether a file descriptor is a connection from an IPv4 address and port to another."""
    with contextlib.suppress(OSError):  # it is no connection, or was closed meanwhile
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with socket.socket(fileno=os.dup(descriptor)) as one:
                # Both ends: a connection to elsewhere may have the same port as a stranger's.
                return one.family in (socket.AF_INET, socket.AF_INET6) and (near, far) == (
                    _ipv4(one.getsockname()), _ipv4(one.getpeername())
                )  # fmt: skip
    return False


def _ipv4(name: Any) -> tuple[str, int]:
    """The address and port of a socket's end; an IPv4 address may be mapped to IPv6."""
    return name[0].removeprefix('::ffff:'), name[1]


def _closed(near: socket.socket) -> None:
    """Handles a connection that the coordinator has closed; its other end is `near`."""
    if not _joined.is_set():
        near.close()
        return
    # The connection to JAX stays open from now on, so that JAX does not abort.
    _gone.set()
    stop_for_loss('process 0 was lost: it closed its connection')
    if _status:
        exit_now(_status[0])


def _keep_alive(connection: socket.socket) -> None:
    """Detects a host that disappeared without closing its connections, where supported."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {'TCP_KEEPIDLE': 10, 'TCP_KEEPINTVL': 5, 'TCP_KEEPCNT': 4, 'TCP_USER_TIMEOUT': 30_000}
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def watch(client: Any, process: int, processes: int) -> None:
    """Starts the heartbeats of this process and watches those of the others.

    Args:
      client: of JAX's coordinator.
      process: number of this process.
      processes: the number of processes.
    """
    _joined.set()
    unanswered = [0]  # periods since the coordinator answered
    peers = (client, process, processes, unanswered)
    threading.Thread(target=_watch_peers, args=peers, daemon=True).start()
    threading.Thread(target=_watch_coordinator, args=(process, unanswered), daemon=True).start()
    if process:
        _follower.set()


def _watch_peers(client: Any, process: int, processes: int, unanswered: list[int]) -> None:
    signs: dict[int, str] = {}  # process -> its last heartbeat
    # Periods of this process, not seconds: the machine may have been in standby.
    silence: collections.Counter[int] = collections.Counter()  # process -> periods without one
    since_failure: collections.Counter[int] = collections.Counter()  # process -> new heartbeats

    def acknowledge() -> None:
        with contextlib.suppress(Exception):  # the coordinator may be gone
            client.key_value_set(f'{_FOLDER}/seen/{process}', '.', allow_overwrite=True)

    for beat in itertools.count(1):
        time.sleep(PERIOD)
        if _finished.is_set():
            return
        try:
            client.key_value_set(f'{_FOLDER}/alive/{process}', str(beat), allow_overwrite=True)
            ended = dict(client.key_value_dir_get(f'{_FOLDER}/ended/'))
            beats = dict(client.key_value_dir_get(f'{_FOLDER}/alive/'))
        except Exception:  # the relay or `_watch_coordinator` reports a lost coordinator
            continue
        unanswered[0] = 0
        for key, text in ended.items():
            number, (status, message, common) = int(key.rpartition('/')[2]), json.loads(text)
            if number != process and not common:
                stop(f'process {number} ended: {message}', status, acknowledge)
        for number in range(processes):
            sign = beats.get(f'{_FOLDER}/alive/{number}', '')
            silence[number] += 1
            if signs.get(number) != sign:
                since_failure[number] += _failed.is_set()
                signs[number], silence[number] = sign, 0
        # Of the new heartbeats, the first may be read and the second written before the failure.
        if all(since_failure[number] >= 3 for number in range(processes)):
            _peers_alive.set()
        limit = min(SHORT_LIMIT, LIMIT) if _failed.is_set() else LIMIT
        lost = [number for number in range(processes) if silence[number] * PERIOD > limit]
        if lost:
            which, were = ('processes', 'were') if len(lost) > 1 else ('process', 'was')
            numbers = ', '.join(map(str, lost))
            stop_for_loss(f'{which} {numbers} {were} lost: no heartbeat for {limit:.0f} s')


def _watch_coordinator(process: int, unanswered: list[int]) -> None:
    # In the first process, too, which otherwise waits forever if its coordinator has failed.
    loss = 'process 0 was lost: it' if process else 'the coordinator of this process'
    while not _finished.is_set():
        time.sleep(PERIOD)
        unanswered[0] += 1
        if unanswered[0] * PERIOD > LIMIT:
            stop_for_loss(f'{loss} did not answer for {LIMIT:.0f} s')


def wait_for_cause() -> None:
    """Waits, after a failed collective, until all other processes prove to be alive.

    If a process is lost, this process ends with an error that names the lost one.
    """
    _failed.set()
    _peers_alive.wait()


def end_with_all() -> None:
    """Declares that all processes end with the same error; each of them reports it."""
    _common.set()


def announce_end(client: Any, process: int, processes: int, status: int, message: str) -> None:
    """Announces that this process ends with an error, and waits until the others have read it.

    Args:
      client: of JAX's coordinator.
      process: number of this process.
      processes: the number of processes.
      status: its exit status.
      message: the error.
    """
    _status.append(status)
    _ending.acquire()  # waits for the exit if another thread ends the process
    with contextlib.suppress(Exception):  # the first process is lost, and the others notice it
        end = json.dumps([status, message, _common.is_set()])
        client.key_value_set(f'{_FOLDER}/ended/{process}', end)
        for _ in range(int(LIMIT / 0.1)):
            informed = {
                key.rpartition('/')[2]
                for folder in ('ended', 'seen')
                for key, _ in client.key_value_dir_get(f'{_FOLDER}/{folder}/')
            }
            if len(informed) == processes:
                break
            time.sleep(0.1)


def finish() -> None:
    """Declares that all processes have completed their work, so that none counts as lost."""
    _ending.acquire()
    _finished.set()
