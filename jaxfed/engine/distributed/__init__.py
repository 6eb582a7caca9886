"""Several processes that train one experiment together, on one host or on many.

Each runs the same program on its own devices; collectives of JAX join them. What the hosts have to
agree on goes through the key-value store of JAX's coordinator, in the first process, the leader.
All functions also hold for a single process, where they cost nothing.
"""

import contextlib
import hashlib
import itertools
import json
import platform
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxfed.engine.distributed import liveness

_STEP = 1000  # milliseconds after which a wait looks for Ctrl-C

_turns = itertools.count()


def store() -> Any:
    """The key-value store that all processes share, once they have joined."""
    # It has no public name, but is what Orbax and others use.
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
    shared, turn = store(), next(_turns)
    own, everyone = f'jaxfed/{turn}/{number()}', f'jaxfed/{turn}/all'
    if leader():  # it reads what each tells, the others all at once
        others = range(1, count())
        told = [[purpose, text]]
        told += [json.loads(read(f'jaxfed/{turn}/{other}')) for other in others]
        shared.key_value_set(everyone, json.dumps(told))
        if turn:  # which everyone has read, or would not be here
            shared.key_value_delete(f'jaxfed/{turn - 1}/all')
    else:
        shared.key_value_set(own, json.dumps([purpose, text]))
        told = json.loads(read(everyone))
        shared.key_value_delete(own)
    for process, (theirs, _) in enumerate(told):
        if theirs != told[0][0]:
            raise ValueError(
                f'process 0 is at {told[0][0]!r}, but process {process} at {theirs!r}; all '
                'processes need the same program.'
            )
    return [said for _, said in told]


def read(key: str) -> str:
    """What a process has put into the store; waits for it, and can be interrupted.

    Args:
      key: of the store.

    Returns:
      The value.
    """
    while True:
        try:
            return store().blocking_key_value_get(key, _STEP)
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
    from jaxfed.internal import files  # which rests on modules that need this one

    told = {name: repr(value) for name, value in settings.items()}
    told['version of Python'] = platform.python_version()
    packages = files.versions(('jaxfed', 'jax', 'jaxlib', 'flax', 'optax', 'numpy'))
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
        liveness.tell(store(), number(), count(), status, message)
        liveness.leave(status)
    meet('end')
    liveness.finished()
    jax.distributed.shutdown()
    return status
