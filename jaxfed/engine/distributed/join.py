"""Joins processes, on one host or on many, before any other use of JAX."""

import contextlib
import errno
import functools
import ipaddress
import os
import socket
import sys
import threading
from collections.abc import Sequence

import jax

from jaxfed.engine import distributed
from jaxfed.engine.distributed import gate, liveness
from jaxfed.engine.distributed.private_api import private_attribute
from jaxfed.internal import console
from jaxfed.internal.messages import first_line

WAIT = 300  # seconds that processes wait for each other at the start
DAY = 24 * 3600  # seconds


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    detect: bool = False,
) -> None:
    """Joins the processes that train together; call it before any other use of JAX.

    Args:
      coordinator: HOST:PORT of the first process; the port must be free there.
      num_processes: the number of processes.
      process_id: number of this process, from 0.
      detect: JAX finds these three, in jobs of SLURM, Open MPI and Kubernetes and on TPU slices.

    Raises:
      ValueError: if the arguments are invalid or contradict each other, no job is detected, the
        port is taken, or JAX cannot start. If the processes do not find each other in time, this
        one ends with status 2.
    """
    settings = {
        '--coordinator': coordinator,
        '--num_processes': num_processes,
        '--process_id': process_id,
    }
    missing = [name for name, value in settings.items() if value is None]
    devices = None
    if detect:
        extra = [f'{name}={value}' for name, value in settings.items() if value is not None]
        if extra:
            raise ValueError(f'--distributed finds {extra[0]} itself; remove one of them.')
        coordinator, num_processes, process_id, devices = _detect()
    elif len(missing) == len(settings):
        return
    if coordinator is None or num_processes is None or process_id is None:
        raise ValueError(
            f'{", ".join(missing)} must be set, too: several processes need all three, or '
            '--distributed alone.'
        )
    _check_numbers(coordinator, num_processes, process_id)
    if num_processes == 1:
        return
    _silence_gloo()
    if process_id == 0:
        service = gate.free_port()
        gate.open_gate(_listen(coordinator), service)
        address = f'127.0.0.1:{service}'
    else:
        address = liveness.relay(coordinator, process_id)
    _initialize(address, coordinator, num_processes, process_id, devices)
    liveness.watch(distributed.key_value_store(), process_id, num_processes)
    _check_process_count(process_id, num_processes)
    if process_id:
        console.silence()


def _detect() -> tuple[str, int, int, Sequence[int] | None]:
    # JAX does the same inside `initialize`, which connects to the address without our relay.
    detect = private_attribute('clusters', 'ClusterEnv.auto_detect_unset_distributed_params')
    address, processes, number, devices = detect(None, None, None, None, None, WAIT)
    if address is None or processes is None or number is None:
        raise ValueError(
            '--distributed: JAX finds no job of SLURM or Open MPI and no TPU slice or Kubernetes '
            'here; set --coordinator=HOST:PORT, --num_processes and --process_id.'
        )
    # JAX reads the variable itself if no devices are passed.
    return address, processes, number, None if os.environ.get('JAX_LOCAL_DEVICE_IDS') else devices


def _check_numbers(coordinator: str, num_processes: int, process_id: int) -> None:
    """Checks the address and the numbers."""
    host, _, port = coordinator.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f'--coordinator must be HOST:PORT, as in node1:12345, got {coordinator}.')
    if num_processes < 1:
        raise ValueError(f'--num_processes must be at least 1, got {num_processes}.')
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f'--process_id must be from 0 to {num_processes - 1}, below --num_processes, '
            f'got {process_id}.'
        )


def _listen(coordinator: str) -> socket.socket:
    """Listens at the named address, if it is one of this host.

    Otherwise it listens on every interface, after a warning: the other hosts may know this one by
    another address than itself.
    """
    host, _, port = coordinator.rpartition(':')
    name = host.strip('[]')
    try:
        address = str(socket.getaddrinfo(name, int(port))[0][4][0])
        if name in ('localhost', address) or not ipaddress.ip_address(address).is_loopback:
            return _server(coordinator, address)
        reason = f'this host knows {name} as {address}'
    except OSError as error:
        number = error.errno or 0  # negative if the name is unknown
        text = os.strerror(number) if number > 0 else error.strerror
        reason = f'{name} is no address of this host ({text})'
    server = _server(coordinator, '')
    console.show_warning(
        f'--coordinator={coordinator}: {reason}, so the port is open on all interfaces; name an '
        'address of this host to open it there only.'
    )
    return server


def _server(coordinator: str, address: str) -> socket.socket:
    """Listens at an address, '' for all; a ValueError if another process uses the port."""
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ':' in address else socket.AF_INET
    place = address, int(coordinator.rpartition(':')[2])
    try:
        return socket.create_server(place, family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ValueError(
            f'--coordinator={coordinator}: the port is taken on this host '
            f'({os.strerror(errno.EADDRINUSE)}), maybe by another process with --process_id=0; '
            'choose another port.'
        ) from error


def _initialize(
    address: str,
    coordinator: str,
    num_processes: int,
    process_id: int,
    devices: Sequence[int] | None,
) -> None:
    """Connects JAX to the coordinator's service at `address`, within `WAIT` seconds."""
    # All processes stop after the same round; JAX's own service replaces signal handlers.
    jax.config.update('jax_enable_preemption_service', False)
    absent = (
        f'--coordinator={coordinator}: {num_processes} processes did not find each other within '
        f'{WAIT} s; each needs the same --coordinator and a different --process_id, from 0.'
    )
    timer = threading.Timer(WAIT, liveness.stop, (absent, 2))  # JAX would abort with a stack trace
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            address,
            num_processes,
            process_id,
            devices,
            coordinator_bind_address=address,
            initialization_timeout=2 * WAIT,
            # The processes watch each other; JAX would abort one that was stopped for that time.
            heartbeat_timeout_seconds=DAY,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f'--coordinator={coordinator}: JAX cannot start ({first_line(error)}).'
        ) from error
    finally:
        timer.cancel()


def _check_process_count(process: int, processes: int) -> None:
    """Checks that all processes have the same --num_processes; others than the first end here."""
    store, key = distributed.key_value_store(), 'jaxfed/processes'
    store.key_value_set(f'{key}/{process}', str(processes))
    counts = {
        other: int(distributed.wait_for_key(f'{key}/{other}'))
        for other in (range(processes) if process == 0 else (0,))
    }
    differing = [other for other, count in counts.items() if count != processes]
    message = ''
    if differing:
        message = (
            f'--num_processes={processes} in process {process}, but {counts[differing[0]]} in '
            f'process {differing[0]}; set the same number in all processes.'
        )
    checked = functools.partial(store.key_value_set, f'{key}/{process}/checked', '.')
    if process and differing:
        liveness.stop(message, 2, checked)  # JAX aborts this process when the first one ends
    elif process:
        checked()
    elif differing:
        # The store ends with the first process, so the others have to read it first.
        for waiting in range(1, processes):
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                store.blocking_key_value_get(f'{key}/{waiting}/checked', 1000 * WAIT)
        raise ValueError(message)


def _silence_gloo() -> None:
    """Discards the messages that Gloo writes to the file descriptor of standard output."""
    with contextlib.suppress(OSError, ValueError):  # there is no standard output
        python_output = os.fdopen(os.dup(sys.stdout.fileno()), 'w', buffering=1)
        with open(os.devnull, 'w') as nowhere:
            os.dup2(nowhere.fileno(), 1)
        sys.stdout = python_output
