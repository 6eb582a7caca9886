"""Checkpoints of a run: written by a thread, verified with a digest when read.

Orbax renames the folder of a checkpoint when it is complete, so a process that dies while writing
leaves the previous checkpoint intact.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from jaxfed.internal.digest import digest
from jaxfed.internal.files import PASSING
from jaxfed.internal.logger import LOGGER
from jaxfed.internal.messages import first_line
from jaxfed.types import PyTree

FOLDER = 'checkpoints'

# Orbax, tensorstore and json raise these for damaged files; a MemoryError is not damage.
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OSError, RuntimeError)


class Saved(NamedTuple):
    """A checkpoint that was read."""

    round: int  # the last round before it was written
    state: PyTree  # NumPy arrays


class Checkpoints(NamedTuple):
    """The open checkpoints of a run."""

    manager: Any  # of orbax
    executor: futures.Executor  # of one thread
    writes: list[futures.Future[None]]  # whose end is not known, at most one


@contextmanager
def open_checkpoints(workdir: Path, *, keep: int) -> Iterator[Checkpoints]:
    """Open the newest `keep` checkpoints of a run; wait for the last write at the end.

    Raises:
      ValueError: if orbax cannot read the folder of the checkpoints.
      OSError: if the last checkpoint cannot be written.
    """
    folder = (workdir / FOLDER).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _quiet_orbax(),
        closing(_open_manager(folder, keep)) as manager,
        futures.ThreadPoolExecutor(max_workers=1) as executor,
    ):
        checkpoints = Checkpoints(manager, executor, [])
        try:
            yield checkpoints
        finally:
            wait(checkpoints)


def _open_manager(folder: Path, keep: int) -> Any:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        # Orbax's own thread would leave most of the work to the caller.
        enable_async_checkpointing=False,
        # Only the first process writes, and orbax must not wait for the others.
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes={0}, barrier_sync_key_prefix='jaxfed'
        ),
        create=False,  # orbax creates folders only if all processes take part
    )
    try:
        return ocp.CheckpointManager(folder, options=options)
    except OSError:
        raise
    except _DAMAGED as error:
        LOGGER.warning(
            'metadata of a checkpoint in %s is damaged (%s): removed', folder, first_line(error)
        )
    # Orbax works without this file; the digest verifies the arrays.
    for path in folder.glob('*/_CHECKPOINT_METADATA'):
        path.unlink()
    try:
        return ocp.CheckpointManager(folder, options=options)
    except _DAMAGED as error:
        raise ValueError(
            f'the checkpoints in {folder} cannot be read ({first_line(error)}); start again in '
            'another directory.'
        ) from error


def save(checkpoints: Checkpoints, round_: int, state: PyTree, lines: Sequence[str] = ()) -> None:
    """Wait for the last checkpoint, copy the state after a round and let the thread write it.

    Args:
      checkpoints: from `open_checkpoints`.
      round_: the round.
      state: after it.
      lines: digests of the lines of metrics.jsonl up to this round, of each experiment.

    Raises:
      OSError: if the last checkpoint could not be written, or the state not be copied.
    """
    wait(checkpoints)
    leaves = _leaves(state)
    with _as_os_error(round_):
        copies = {name: np.array(leaf).view(_Constant) for name, leaf in leaves.items()}
        write = checkpoints.executor.submit(_write, checkpoints.manager, round_, copies, lines)
        checkpoints.writes.append(write)


def wait(checkpoints: Checkpoints) -> None:
    """Wait until the last checkpoint is on the disk.

    Raises:
      OSError: if it could not be written.
    """
    futures.wait(checkpoints.writes)  # a Ctrl-C here keeps the error for the end
    while checkpoints.writes:
        checkpoints.writes.pop().result()


class _Constant(np.ndarray):
    """An array that does not change, so orbax need not copy it."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _write(
    manager: Any, round_: int, leaves: Mapping[str, np.ndarray], lines: Sequence[str]
) -> None:
    import orbax.checkpoint as ocp

    with _as_os_error(round_):
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(leaves),
            info=ocp.args.JsonSave({**_mark(round_, leaves), 'lines': [*lines]}),
        )
        manager.save(round_, args=arguments, force=True)


def restore(
    checkpoints: Checkpoints,
    like: PyTree,
    check: Callable[[int, PyTree, Sequence[str]], None] = lambda round_, state, lines: None,
) -> Saved | None:
    """Read the newest intact checkpoint; warn of newer damaged ones and remove them.

    Args:
      checkpoints: from `open_checkpoints`, none of which is being written.
      like: a tree with the structure, shapes and types of the state.
      check: called with the round, the state and the digests of a checkpoint; raises a ValueError
        if the run cannot continue from it.

    Returns:
      The checkpoint, or None if there is none.

    Raises:
      ValueError: if no checkpoint can be used.
      OSError: if the newest cannot be read now, but may be intact.
    """
    manager, damaged = checkpoints.manager, dict[int, str]()
    for step in sorted(manager.all_steps(), reverse=True):
        try:
            state, lines = _read(manager, step, like)
            check(step, state, lines)
        except _DAMAGED as error:
            if _os_error(error) in PASSING:
                reason = first_line(error).partition(' [tensorstore_spec')[0]
                raise OSError(
                    f'the checkpoint of round {step} in {manager.directory} cannot be read now '
                    f'({reason}); repeat the command, or remove it to continue from the one before.'
                ) from error
            damaged[step] = first_line(error)
            continue
        for other, reason in damaged.items():
            LOGGER.warning(
                'checkpoint of round %d cannot be used (%s): continuing after round %d',
                *(other, reason, step),
            )
            manager.delete(other)
        return Saved(step, state)
    if damaged:
        reasons = '; '.join(f'round {step}: {reason}' for step, reason in damaged.items())
        raise ValueError(
            f'no checkpoint in {manager.directory} can be used ({reasons}); start again in another '
            'directory.'
        )
    return None


def _read(manager: Any, step: int, like: PyTree) -> tuple[PyTree, Sequence[str]]:
    import orbax.checkpoint as ocp

    expected = _leaves(like)
    # Orbax takes a file that cannot be read for a missing one.
    os.stat(f'{manager.directory}/{step}/state/_METADATA')
    # Before the arrays are read: a few bytes on the disk may declare one of terabytes.
    declared = ocp.StandardCheckpointHandler().metadata(manager.directory / f'{step}' / 'state')
    if _forms(declared) != _forms(expected):
        raise ValueError('it has arrays of another network, method or dataset')
    arguments = ocp.args.Composite(
        state=ocp.args.StandardRestore(expected), info=ocp.args.JsonRestore()
    )
    read = manager.restore(step, args=arguments)
    leaves = {name: np.asarray(leaf) for name, leaf in read['state'].items()}
    if not _mark(step, leaves).items() <= read['info'].items():
        raise ValueError('its digest does not match')
    return _fill(like, leaves), read['info'].get('lines', ())  # earlier versions wrote none


def _os_error(error: BaseException) -> int | None:
    """Return the number of an error of the operating system, which tensorstore has in its text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return int(found[1]) if found else None


def _mark(round_: int, leaves: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {'round': round_, 'digest': digest(leaves)}


def _leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """Return the leaves that are not empty by number, in the tree's order; random keys as data."""
    # Orbax stores no arrays of size 0 and no random keys, and sorts by name.
    leaves = (jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(tree))
    return {f'{i:06}': np.asarray(x) for i, x in enumerate(leaves) if np.size(x)}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _forms(leaves: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (leaf.shape, leaf.dtype) for name, leaf in leaves.items()}


def _fill(like: PyTree, leaves: dict[str, np.ndarray]) -> PyTree:
    """Replace the leaves of a tree."""
    old_leaves, structure = jax.tree.flatten(like)
    new_leaves = [leaves.get(f'{i:06}', old) for i, old in enumerate(old_leaves)]
    for i, old in enumerate(old_leaves):
        if _is_key(old):
            impl = jax.random.key_impl(old)
            new_leaves[i] = jax.random.wrap_key_data(new_leaves[i], impl=impl)
    return jax.tree.unflatten(structure, new_leaves)


@contextmanager
def _as_os_error(round_: int) -> Iterator[None]:
    """Raise errors of orbax and of the libraries below it as a one-line OSError."""
    try:
        yield
    except (*_DAMAGED, MemoryError) as error:
        raise OSError(
            f'the checkpoint of round {round_} could not be written: {first_line(error)}'
        ) from error


@contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Silence orbax's logging; our exceptions report the failures."""

    def is_not_orbax(record: logging.LogRecord) -> bool:
        return 'orbax' not in record.pathname and 'orbax' not in str(record.msg)

    def ignore_late_reads(raised: Any) -> None:
        # Other arrays were still being read when one turned out to be damaged.
        if str(raised.exc_value) != 'Event loop is closed':
            hook(raised)

    def is_retrieved(record: logging.LogRecord) -> bool:
        # Other arrays were still being written when one had failed.
        return 'exception was never retrieved' not in record.getMessage()

    absl, hook = logging.getLogger('absl'), sys.unraisablehook
    tasks = logging.getLogger('asyncio')
    absl.addFilter(is_not_orbax)
    tasks.addFilter(is_retrieved)
    sys.unraisablehook = ignore_late_reads
    try:
        yield
    finally:
        absl.removeFilter(is_not_orbax)
        tasks.removeFilter(is_retrieved)
        sys.unraisablehook = hook
