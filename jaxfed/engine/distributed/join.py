"""How several processes find each other, on one host or on many, before JAX is used."""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence

import jax

from jaxfed.engine import distributed
from jaxfed.engine.distributed import liveness
from jaxfed.internal import console

WAIT = 300  # seconds that processes wait for each other at the start


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    detect: bool = False,
) -> None:
    """Join the processes that train together. To be called before JAX is used for anything else.

    Args:
      coordinator: HOST:PORT of the first process, with a port that is free there.
      num_processes: how many there are.
      process_id: number of this one, from 0.
      detect: let JAX find these three, as in jobs of SLURM and Open MPI and on TPU slices.

    Raises:
      ValueError: if they do not fit together, or the processes do not find each other.
    """
    given = {
        '--coordinator': coordinator,
        '--num_processes': num_processes,
        '--process_id': process_id,
    }
    if detect:
        wrong = [f'{name}={value}' for name, value in given.items() if value is not None]
        if wrong:
            raise ValueError(f'--distributed finds {wrong[0]} itself; leave one of them out.')
        coordinator, num_processes, process_id, devices = _detect()
    else:
        devices = None
    if coordinator is None and num_processes is None and process_id is None:
        return
    if coordinator is None or num_processes is None or process_id is None:
        missing = [name for name, value in given.items() if value is None]
        raise ValueError(
            f'{", ".join(missing)} must be given, too: several processes need all three, or '
            '--distributed alone.'
        )
    host, _, port = coordinator.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f'--coordinator={coordinator} must be HOST:PORT, as in node1:12345.')
    if num_processes < 1:
        raise ValueError(f'--num_processes={num_processes} must be at least 1.')
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f'--process_id={process_id} must be from 0 to {num_processes - 1}, of '
            f'--num_processes={num_processes}.'
        )
    if num_processes == 1:
        return
    _quiet()
    if process_id == 0:
        _check_port(coordinator, int(port))
    address = coordinator if process_id == 0 else liveness.relay(coordinator)
    # Stopping by a signal is agreed on once a round; JAX's own way replaces signal handlers.
    jax.config.update('jax_enable_preemption_service', False)
    absent = (
        f'--coordinator={coordinator}: {num_processes} processes did not find each other within '
        f'{WAIT} s; each needs a --process_id of its own, from 0, and the same --coordinator.'
    )
    late = threading.Timer(WAIT, liveness.stop, (absent, 2))  # JAX would abort with a stack trace
    late.daemon = True
    late.start()
    try:
        jax.distributed.initialize(
            address, num_processes, process_id, devices, initialization_timeout=2 * WAIT
        )
    except (RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f'--coordinator={coordinator}: JAX cannot start ({first}).') from error
    finally:
        late.cancel()
    _check_number(process_id, num_processes)
    liveness.watch(distributed.store(), process_id, num_processes)
    if process_id:
        console.silence()


def _detect() -> tuple[str, int, int, Sequence[int] | None]:
    # JAX does the same inside `initialize`, but its client has to be given an address.
    from jax._src.clusters import ClusterEnv

    found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, WAIT)
    address, processes, number, devices = found
    if address is None or processes is None or number is None:
        raise ValueError(
            '--distributed: JAX finds no job of SLURM or Open MPI and no TPU slice or Kubernetes '
            'here; give --coordinator=HOST:PORT, --num_processes and --process_id.'
        )
    # JAX reads the variable itself, where it is told nothing else.
    told = os.environ.get('JAX_LOCAL_DEVICE_IDS')
    return address, processes, number, None if told else devices


def _check_port(coordinator: str, port: int) -> None:
    # JAX would share a port with another process.
    try:
        with socket.socket(socket.AF_INET) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(('', port))
    except OSError as error:
        raise ValueError(
            f'--coordinator={coordinator}: the port is taken on this host ({error.strerror}), '
            'maybe by another process with --process_id=0; choose another one.'
        ) from error


def _check_number(process: int, processes: int) -> None:
    distributed.store().key_value_set(f'jaxfed/number/{process}', str(processes))
    for other in range(processes) if process == 0 else (0,):
        theirs = int(distributed.read(f'jaxfed/number/{other}'))
        if theirs != processes:
            time.sleep(1)  # for the others to see it, too
            raise ValueError(
                f'--num_processes={processes} in process {process}, but {theirs} in process '
                f'{other}; give all processes the same number.'
            )


def _quiet() -> None:
    """Leave out what Gloo prints of its connections, past Python, on standard output."""
    with contextlib.suppress(OSError, ValueError):  # where there is none, nothing is printed
        ours = os.fdopen(os.dup(sys.stdout.fileno()), 'w', buffering=1)
        with open(os.devnull, 'w') as nowhere:
            os.dup2(nowhere.fileno(), 1)
        sys.stdout = ours
