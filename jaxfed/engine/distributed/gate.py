"""The gate before JAX's coordinator: it admits one process for each number.

JAX aborts all processes with a stack trace if a second process joins with the number of another.
So the first process hosts JAX's service on a port of the loopback interface, and listens at
--coordinator itself. The relay of another process begins each connection with a line: its number,
and a random name that all its connections share.
"""

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE = 30.0  # seconds for the first line of a connection
ADMITTED, TAKEN = b'admitted\n', b'taken\n'
BOTH = socket.SHUT_RDWR
_LONGEST = 64  # bytes of a line
_NAME = os.urandom(8).hex()  # of this process


class Taken(Exception):
    """Another process has joined with the number of this one."""


def open_gate(server: socket.socket, service: int) -> None:
    """Forwards admitted connections to JAX's service.

    Args:
      server: listens at the address of the coordinator.
      service: port of JAX's service on 127.0.0.1.
    """
    names: dict[int, list[str]] = {}  # number -> the name of each open connection
    lock = threading.Lock()

    @contextlib.contextmanager
    def admission(number: int, name: str) -> Iterator[bool]:
        with lock:
            admitted = all(other == name for other in names.get(number, ()))
            if admitted:
                names.setdefault(number, []).append(name)
        try:
            yield admitted
        finally:
            with lock:
                if admitted:
                    names[number].remove(name)

    def serve(near: socket.socket) -> None:
        number, name = _introduced(near)
        with admission(number, name) as admitted:
            if not admitted:
                near.sendall(TAKEN)
                return
            with socket.create_connection(('127.0.0.1', service)) as far:
                near.sendall(ADMITTED)
                near.settimeout(None)
                set_no_delay(near, far)
                # To close a socket is not enough while another thread reads from it.
                end, end_near = (functools.partial(one.shutdown, BOTH) for one in (far, near))
                threading.Thread(target=pump, args=(near, far, end), daemon=True).start()
                pump(far, near, end_near)

    def admit(near: socket.socket) -> None:
        # A stranger sends no valid line, or JAX's service has not started yet.
        with near, contextlib.suppress(OSError, ValueError):
            serve(near)

    def accept() -> None:
        while True:
            near, _ = accept_one(server)
            threading.Thread(target=admit, args=(near,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def accept_one(server: socket.socket) -> tuple[socket.socket, Any]:
    """Accepts a connection; waits while this process has no free descriptors, for example."""
    while True:
        try:
            return server.accept()
        except OSError:
            time.sleep(0.1)


def _introduced(near: socket.socket) -> tuple[int, str]:
    """Reads the number and the name of the process at the other end."""
    near.settimeout(PATIENCE)
    word, number, name = read_line(near).decode('ascii').split()
    if word != 'jaxfed':
        raise ValueError('no process of jaxfed')
    return int(number), name


def introduce(far: socket.socket, process: int) -> None:
    """Sends the first line of a connection, and waits for the answer.

    Raises:
      Taken: if another process has the number.
      OSError: if the other end is no gate, or is gone.
    """
    far.settimeout(PATIENCE)
    far.sendall(f'jaxfed {process} {_NAME}\n'.encode())
    answer = read_line(far)
    if answer == TAKEN:
        raise Taken
    if answer != ADMITTED:
        raise OSError('no coordinator of jaxfed')
    far.settimeout(None)


def read_line(connection: socket.socket) -> bytes:
    """Reads a short line and nothing after it; it may be incomplete."""
    line = b''
    while not line.endswith(b'\n') and len(line) < _LONGEST:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line


def set_no_delay(*connections: socket.socket) -> None:
    """Sends small messages at once."""
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pump(source: socket.socket, sink: socket.socket, at_end: Callable[[], None]) -> None:
    """Forwards bytes until an end closes."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        at_end()


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.create_server(('127.0.0.1', 0)) as one:
        return int(one.getsockname()[1])
