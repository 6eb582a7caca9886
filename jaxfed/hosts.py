"""Several processes that train one experiment together, on one host or on many.

Each runs the same program on its own devices; collectives of JAX join them. What the hosts have to
agree on goes through the key-value store of JAX's coordinator, in the first process, the leader.
All functions also hold for a single process, where they cost nothing.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import platform
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed import liveness
from jaxfed.recording import console
from jaxfed.types import Array

WAIT = 300  # seconds that processes wait for each other at the start
PIECE = 1 << 24  # bytes of a transfer at once, which every device holds
_STEP = 1000  # milliseconds after which a wait looks for Ctrl-C

_SPLIT = PartitionSpec('processes')
_turns = itertools.count()


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
    _check_number(_client(), process_id, num_processes)
    liveness.watch(_client(), process_id, num_processes)
    if process_id:
        console.silence()


def _detect() -> tuple[str, int, int, Sequence[int] | None]:
    # JAX does the same inside `initialize`, but its client has to be given an address.
    from jax._src.clusters import ClusterEnv

    found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, WAIT)
    address, processes, number_, devices = found
    if address is None or processes is None or number_ is None:
        raise ValueError(
            '--distributed: JAX finds no job of SLURM or Open MPI and no TPU slice or Kubernetes '
            'here; give --coordinator=HOST:PORT, --num_processes and --process_id.'
        )
    # JAX reads the variable itself, where it is told nothing else.
    told = os.environ.get('JAX_LOCAL_DEVICE_IDS')
    return address, processes, number_, None if told else devices


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


def _check_number(client: Any, process: int, processes: int) -> None:
    client.key_value_set(f'jaxfed/number/{process}', str(processes))
    for other in range(processes) if process == 0 else (0,):
        theirs = int(_wait_for(client, f'jaxfed/number/{other}'))
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


def _client() -> Any:
    # The key-value store has no public name, but is what Orbax and others use.
    from jax._src import distributed

    return distributed.global_state.client


def count() -> int:
    """How many processes train together."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def number() -> int:
    """Number of this process, from 0."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def leader() -> bool:
    """Whether this process is the one that records."""
    return number() == 0


def exchange(purpose: str, text: str = '') -> list[str]:
    """Tell all processes something, and wait for what they tell.

    Args:
      purpose: of the exchange, in words that an error may show.
      text: of this process.

    Returns:
      The texts of all processes, by number.

    Raises:
      ValueError: on all processes, if they do not exchange for the same purpose.
    """
    if count() == 1:
        return [text]
    client, turn = _client(), next(_turns)
    own, everyone = f'jaxfed/{turn}/{number()}', f'jaxfed/{turn}/all'
    if leader():  # it reads what each tells, the others all at once
        others = range(1, count())
        told = [[purpose, text]]
        told += [json.loads(_wait_for(client, f'jaxfed/{turn}/{other}')) for other in others]
        client.key_value_set(everyone, json.dumps(told))
        if turn:  # which everyone has read, or would not be here
            client.key_value_delete(f'jaxfed/{turn - 1}/all')
    else:
        client.key_value_set(own, json.dumps([purpose, text]))
        told = json.loads(_wait_for(client, everyone))
        client.key_value_delete(own)
    for process, (theirs, _) in enumerate(told):
        if theirs != told[0][0]:
            raise ValueError(
                f'process 0 is at {told[0][0]!r}, but process {process} at {theirs!r}; all '
                'processes need the same program.'
            )
    return [said for _, said in told]


def _wait_for(client: Any, key: str) -> str:
    while True:
        try:
            return client.blocking_key_value_get(key, _STEP)
        except jax.errors.JaxRuntimeError as error:
            if 'DEADLINE_EXCEEDED' not in str(error):
                raise


def meet(purpose: str) -> None:
    """Wait until all processes are here: unlike a collective, this wait can be interrupted.

    Args:
      purpose: as of `exchange`.
    """
    exchange(purpose)


def from_leader(purpose: str, make: Callable[[], str]) -> str:
    """What the first process says, on all of them.

    Args:
      purpose: as of `exchange`.
      make: called by the first process alone.

    Returns:
      Its result.

    Raises:
      ValueError: on all of them, if it raises one.
    """
    if not leader():
        error, text = json.loads(exchange(purpose)[0])
        if error:
            raise ValueError(error)
        return text
    try:
        text = make()
    except ValueError as error:
        exchange(purpose, json.dumps([str(error), '']))
        raise
    exchange(purpose, json.dumps(['', text]))
    return text


def least(purpose: str, value: float) -> float:
    """The smallest of the values of all processes.

    Args:
      purpose: as of `exchange`.
      value: of this one.

    Returns:
      The smallest.
    """
    return min(map(float, exchange(purpose, repr(float(value)))))


def on_this_host() -> int:
    """How many of the processes are on the host of this one, as far as hosts' names tell."""
    name = socket.gethostname()
    return exchange('names of hosts', name).count(name)


def any_signal(came: int | None) -> int | None:
    """A signal that any process was sent, so that all stop after the same round.

    Args:
      came: to this one, None if none did.

    Returns:
      The signal, None if none came to any.
    """
    said = [text for text in exchange('signal', str(came or '')) if text]
    return int(said[0]) if said else None


def agree(settings: Mapping[str, Any]) -> None:
    """See that all processes have the same settings and versions.

    Args:
      settings: name of a flag, or of a package, -> value.

    Raises:
      ValueError: on all processes, naming what differs and the values.
    """
    if count() == 1:
        return
    from jaxfed.recording import records  # which rests on modules that need this one

    told = {name: repr(value) for name, value in settings.items()}
    told['version of Python'] = platform.python_version()
    packages = records.versions(('jaxfed', 'jax', 'jaxlib', 'flax', 'optax', 'numpy'))
    told |= {f'version of {package}': version for package, version in packages.items()}
    everyone = [json.loads(text) for text in exchange('settings', json.dumps(told))]
    for process, theirs in enumerate(everyone):
        differ = [
            f'{name}={everyone[0].get(name)} in process 0, {theirs.get(name)} in process {process}'
            for name in {**everyone[0], **theirs}
            if everyone[0].get(name) != theirs.get(name)
        ]
        if differ:
            shown = ', '.join(differ[:8] + ['...'] * (len(differ) > 8))
            raise ValueError(f'all processes need the same settings and versions: {shown}.')


def agree_on_data(dataset: str, arrays: Sequence[np.ndarray]) -> None:
    """See that all processes hold the same data, as far as samples of them tell.

    Args:
      dataset: its name.
      arrays: all labels, indices and images; of the first axis about a thousand rows are compared.

    Raises:
      ValueError: on all processes, naming those that hold something else.
    """
    if count() == 1:
        return
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(f'{array.dtype} {array.shape} '.encode())
        every = max(len(array) // 1000, 1) if array.ndim > 1 else 1
        found.update(np.ascontiguousarray(array[::every]).reshape(-1).view(np.uint8).data)
    said = exchange('data', found.hexdigest())
    others = [str(process) for process, text in enumerate(said) if text != said[0]]
    if others:
        raise ValueError(
            f'--dataset={dataset}: process {", ".join(others)} has other data than process 0; '
            'prepare the same files on every host.'
        )


def check(clients_per_round: int, lanes: int) -> None:
    """See that there is work for all processes.

    Args:
      clients_per_round: as in `Config`.
      lanes: as in `Config`.

    Raises:
      ValueError: if there is not.
    """
    if clients_per_round // max(lanes, 1) < count():
        raise ValueError(
            f'--clients_per_round={clients_per_round} with --lanes={lanes} has work for '
            f'{clients_per_round // max(lanes, 1)} device(s), but --num_processes={count()}; '
            'raise --clients_per_round, or train with fewer processes.'
        )


def move(data: np.ndarray, routes: Sequence[tuple[int, int]]) -> np.ndarray:
    """Send bytes from processes to others, through their devices.

    Args:
      data: [n] uint8 of this process; n is the same on all of them.
      routes: (from, to), each process at most once on either side.

    Returns:
      [n] uint8, what this process is sent; zeros if it is none of the receivers.
    """
    mesh = _meeting_place()
    split, send = NamedSharding(mesh, _SPLIT), _sender(mesh, tuple(routes))
    received = np.empty_like(data)
    for begin in range(0, data.size, PIECE):
        part = data[begin : begin + PIECE]
        # Few sizes, so few programs.
        block = np.zeros((1, 1 << max(part.size - 1, 1023).bit_length()), np.uint8)
        block[0, : part.size] = part
        shape = (count(), block.shape[1])
        own = [jax.device_put(block, device) for device in mesh.local_devices]
        moved = send(jax.make_array_from_single_device_arrays(shape, split, own))
        received[begin : begin + part.size] = local(moved)[0, : part.size]
    return received


@functools.cache
def _sender(mesh: Mesh, routes: tuple[tuple[int, int], ...]) -> Callable[[Array], Array]:
    def send(block: Array) -> Array:
        return jax.lax.ppermute(block, 'processes', routes)

    return jax.jit(
        jax.shard_map(send, mesh=mesh, in_specs=_SPLIT, out_specs=_SPLIT, check_vma=False)
    )


def _meeting_place() -> Mesh:
    """One device of each process: with more of them each would get the same bytes."""
    own: dict[int, Any] = {}
    for device in jax.devices():
        own.setdefault(device.process_index, device)
    return Mesh(np.array([own[process] for process in sorted(own)]), ('processes',))


def gather(array: jax.Array) -> np.ndarray:
    """All rows of an array that no process has all of, on each host, through one device of each.

    Args:
      array: split along its first axis, over devices of all processes in their order.

    Returns:
      [n, ...].
    """
    own, mesh = local(array), _meeting_place()
    holders = [device.process_index for device in array.sharding.mesh.devices.flat]  # type: ignore[attr-defined]
    rows = np.bincount(holders, minlength=count()) * (len(array) // len(holders))
    block = np.zeros((1, rows.max(), *own.shape[1:]), own.dtype)
    block[0, : len(own)] = own
    here = [jax.device_put(block, device) for device in mesh.local_devices]
    blocks = jax.make_array_from_single_device_arrays(
        (count(), *block.shape[1:]), NamedSharding(mesh, _SPLIT), here
    )
    whole = np.asarray(_gatherer(mesh)(blocks))
    if rows.min() == rows.max():
        return whole.reshape(-1, *own.shape[1:])  # no copy
    return np.concatenate([part[:n] for part, n in zip(whole, rows, strict=True)])


@functools.cache
def _gatherer(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda blocks: blocks, out_shardings=NamedSharding(mesh, PartitionSpec()))


def local(array: Array) -> np.ndarray:
    """The rows of an array that this process holds.

    Args:
      array: split along its first axis, or on this process alone.

    Returns:
      [n, ...], in the order of the whole.
    """
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(parts[begin]) for begin in sorted(parts)])


def abandon(status: int) -> int:
    """Give up where the processes did not come together.

    Args:
      status: the exit status.

    Returns:
      The status; the process ends here if it has joined others, for whom JAX would wait.
    """
    if jax.distributed.is_initialized():
        liveness.leave(status)
    return status


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Lets what ends one of several processes, foreseen or not, end the others.

    Yields:
      Nothing.
    """
    try:
        yield
    except Exception as error:
        if count() == 1:
            raise
        if isinstance(error, jax.errors.JaxRuntimeError):
            liveness.explain()
        traceback.print_exc()
        end(1, (str(error).splitlines() or [type(error).__name__])[0])


def end(status: int, message: str = '') -> int:
    """Leave the others: they have finished, too, or end with the same error.

    Args:
      status: the exit status.
      message: why, where it is an error.

    Returns:
      The status; where it is an error of one of several processes, the process ends here.
    """
    if count() == 1:
        return status
    if status:
        liveness.tell(_client(), number(), count(), status, message)
        liveness.leave(status)
    meet('end')
    liveness.finished()
    jax.distributed.shutdown()
    return status
