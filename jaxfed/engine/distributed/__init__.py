"""Several processes that train one experiment, on one host or on many.

Each process runs the same program on its own devices; collectives of JAX exchange arrays. The
key-value store of JAX's coordinator exchanges texts. The coordinator runs in the first process, the
leader. All functions also work in a single process, where they cost nothing.
"""

import contextlib
import itertools
import json
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from jaxfed.engine.distributed import liveness
from jaxfed.engine.distributed.private_api import private_attribute
from jaxfed.internal.messages import first_line
from jaxfed.internal.versions import recorded_versions

_POLL = 1000  # milliseconds between the moments at which a wait lets Python handle Ctrl-C

_turns = itertools.count()


def key_value_store() -> Any:
    """The key-value store that all processes share, once they have joined."""
    return private_attribute('distributed', 'global_state.client')


def process_count() -> int:
    """The number of processes that train together."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def process_index() -> int:
    """The number of this process, from 0."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_leader() -> bool:
    """Whether this process is the first one, which writes the records."""
    return process_index() == 0


def all_gather(purpose: str, text: str = '') -> list[str]:
    """The texts of all processes, by number; signals can interrupt the wait.

    Raises:
      ValueError: on all processes, if they do not call it for the same purpose.
    """
    if process_count() == 1:
        return [text]
    store, turn = key_value_store(), next(_turns)
    key, result_key = f'jaxfed/{turn}/{process_index()}', f'jaxfed/{turn}/all'
    if is_leader():  # the leader reads one text after another, the others read all at once
        others = range(1, process_count())
        entries = [[purpose, text]]
        entries += [json.loads(wait_for_key(f'jaxfed/{turn}/{other}')) for other in others]
        store.key_value_set(result_key, json.dumps(entries))
        if turn:  # a process that has sent this text has read the last result
            store.key_value_delete(f'jaxfed/{turn - 1}/all')
    else:
        store.key_value_set(key, json.dumps([purpose, text]))
        entries = json.loads(wait_for_key(result_key))
        store.key_value_delete(key)
    for process, (other_purpose, _) in enumerate(entries):
        if other_purpose != entries[0][0]:
            raise _common_error(
                f'process 0 is at {entries[0][0]!r}, but process {process} at {other_purpose!r}; '
                'all processes need the same program.'
            )
    return [entry for _, entry in entries]


def wait_for_key(key: str) -> str:
    """The value of a key of the store, once it is set; signals can interrupt the wait."""
    while True:
        try:
            return key_value_store().blocking_key_value_get(key, _POLL)
        except jax.errors.JaxRuntimeError as error:
            if 'DEADLINE_EXCEEDED' not in str(error):
                raise


def barrier(purpose: str) -> None:
    """Waits until all processes have arrived."""
    # Not `multihost_utils.sync_global_devices`: a collective cannot be interrupted.
    all_gather(purpose)


def run_collective(program: Callable[..., Any], *arguments: Any) -> Any:
    """The results of a program in which processes communicate, once they are computed.

    Raises:
      JaxRuntimeError: if the communication fails, for instance because a process is lost.
    """
    if process_count() == 1:
        return program(*arguments)
    try:
        return jax.block_until_ready(program(*arguments))
    except ValueError as error:  # JAX's, if the connection breaks during the call
        raise jax.errors.JaxRuntimeError(str(error)) from error


def broadcast_from_leader(purpose: str, make: Callable[[], str]) -> str:
    """The result of `make` on all processes; only the first process calls it.

    Raises:
      ValueError: on all processes, if `make` raises one.
    """
    if not is_leader():
        error, text = json.loads(all_gather(purpose)[0])
        if error:
            raise _common_error(error)
        return text
    try:
        text = make()
    except ValueError as failure:
        all_gather(purpose, json.dumps([str(failure), '']))
        liveness.end_with_all()
        raise
    all_gather(purpose, json.dumps(['', text]))
    return text


def minimum(purpose: str, value: float) -> float:
    """The smallest of the values of all processes."""
    return min(map(float, all_gather(purpose, repr(float(value)))))


def processes_on_host() -> int:
    """The number of processes on hosts with the name of this one."""
    name = socket.gethostname()
    return all_gather('names of hosts', name).count(name)


def any_signal(received: int | None) -> int | None:
    """The first signal that a process received, None if none did: all stop after the same round."""
    return next((int(text) for text in all_gather('signal', str(received or '')) if text), None)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Checks that all processes have the same settings and versions.

    Args:
      settings: name of a flag -> value.

    Raises:
      ValueError: on all processes, with the settings that differ and their values.
    """
    if process_count() == 1:
        return
    values = {name: repr(value) for name, value in settings.items()}
    values |= {f'version of {package}': version for package, version in recorded_versions().items()}
    first, *others = [json.loads(text) for text in all_gather('settings', json.dumps(values))]
    for process, other in enumerate(others, 1):
        differ = [
            f'{name}={first.get(name)} in process 0, {other.get(name)} in process {process}'
            for name in {**first, **other}
            if first.get(name) != other.get(name)
        ]
        if differ:
            shown = ', '.join(differ[:8] + ['...'] * (len(differ) > 8))
            raise _common_error(f'all processes need the same settings and versions: {shown}.')


def check_data(flag: str, digest: Callable[[], str]) -> None:
    """Checks that the data are the same in all processes.

    Args:
      flag: the flag that names them, with its value.
      digest: computes that of the data of this process.

    Raises:
      ValueError: on all processes, with the processes that differ.
    """
    if process_count() == 1:
        return
    digests = all_gather('data', digest())
    others = [str(process) for process, other in enumerate(digests) if other != digests[0]]
    if others:
        raise _common_error(
            f'{flag}: the data of process {", ".join(others)} differ from those of '
            'process 0; prepare the same files on every host.'
        )


def check_work(clients_per_round: int, lanes: int) -> None:
    """Checks that all processes have clients to train.

    Raises:
      ValueError: on all processes, if a process has none.
    """
    devices = clients_per_round // max(lanes, 1)
    if devices < process_count():
        raise _common_error(
            f'--num_processes={process_count()} must be at most {devices}, the number of devices '
            f'that --clients_per_round={clients_per_round} with --lanes={lanes} can use; raise '
            '--clients_per_round, or start fewer processes.'
        )


def _common_error(message: str) -> ValueError:
    """An error that all processes raise, so that none of them reports the end of another."""
    liveness.end_with_all()
    return ValueError(message)


def end_with_all() -> None:
    """Waits until all processes are about to end, with the same error."""
    barrier('training stopped')
    liveness.end_with_all()


def abort(status: int) -> int:
    """Ends a process that could not join all others; returns the status if it joined none."""
    if jax.distributed.is_initialized():
        liveness.exit_now(status)  # JAX would wait for the others
    return status


@contextlib.contextmanager
def propagate_errors() -> Iterator[None]:
    """Ends all processes if one of them raises an unexpected exception."""
    try:
        yield
    except Exception as error:
        if process_count() == 1:
            raise
        if isinstance(error, jax.errors.JaxRuntimeError):
            liveness.wait_for_cause()
        traceback.print_exc()
        shut_down(1, first_line(error))


def shut_down(status: int, message: str = '') -> int:
    """Ends several processes together; a process with an error ends here.

    Args:
      status: the exit status.
      message: the error, if the status is not 0.

    Returns:
      The status.
    """
    if process_count() == 1:
        return status
    if status:
        liveness.announce_end(key_value_store(), process_index(), process_count(), status, message)
        liveness.exit_now(status)
    barrier('end')
    liveness.finish()
    jax.distributed.shutdown()
    return status
