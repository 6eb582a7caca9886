"""Checkpoints of a run: written beside training, few kept, read back whole or not at all.

Orbax writes each into a folder of its own that gets its name when it is complete, so a process that
dies while it writes leaves the checkpoint before. A digest of all values tells a damaged one.
"""

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.types import PyTree

FOLDER = 'checkpoints'

_log = logging.getLogger('jaxfed')


class Saved(NamedTuple):
    """A checkpoint that was read back."""

    round: int  # done when it was written
    state: PyTree  # NumPy arrays


@contextmanager
def open_checkpoints(workdir: Path, *, keep: int) -> Iterator[Any]:
    """Opens the checkpoints of a run.

    Args:
      workdir: the work directory.
      keep: how many of them stay; older ones are removed.

    Yields:
      The manager, for `save` and `restore`. On the way out the last one is waited for.

    Raises:
      ValueError: if orbax cannot read the folder of the checkpoints.
      OSError: if the last checkpoint cannot be written.
    """
    import orbax.checkpoint as ocp

    (workdir / FOLDER).mkdir(parents=True, exist_ok=True)
    # The first of several processes writes alone; orbax is not to wait for the others.
    alone = ocp.options.MultiprocessingOptions(
        primary_host=0, active_processes={0}, barrier_sync_key_prefix='jaxfed'
    )
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        enable_async_checkpointing=True,
        multiprocessing_options=alone,
        create=False,  # which it does only where all take part
    )
    # What goes wrong is told once, in a line, by what is raised.
    absl, hook = logging.getLogger('absl'), sys.unraisablehook
    absl.addFilter(_no_orbax)
    sys.unraisablehook = partial(_no_late_reads, hook)
    try:
        folder = (workdir / FOLDER).absolute()
        try:
            manager = ocp.CheckpointManager(folder, options=options)
        except OSError:
            raise
        except Exception as error:
            manager = _without_metadata(folder, options, error)
        try:
            yield manager
        finally:
            with _as_os_error('the last checkpoint'):
                manager.close()
    finally:
        absl.removeFilter(_no_orbax)
        sys.unraisablehook = hook


def _without_metadata(folder: Path, options: Any, error: Exception) -> Any:
    """The manager, where what orbax keeps about a checkpoint, and can do without, is damaged."""
    import orbax.checkpoint as ocp

    _log.warning(
        'metadata of a checkpoint in %s is damaged (%s): removed', folder, _first_line(error)
    )
    # The digest still tells whether values are whole.
    for path in folder.glob('*/_CHECKPOINT_METADATA'):
        path.unlink()
    try:
        return ocp.CheckpointManager(folder, options=options)
    except Exception as again:
        raise ValueError(
            f'the checkpoints in {folder} cannot be read ({_first_line(again)}); begin anew in '
            'another directory.'
        ) from again


def save(manager: Any, round_: int, state: PyTree) -> None:
    """Writes a checkpoint; returns when the values are copied, and they are written meanwhile.

    Args:
      manager: from `open_checkpoints`.
      round_: rounds done.
      state: arrays; those of NumPy may be changed in place afterwards.

    Raises:
      OSError: if the checkpoint before could not be written.
    """
    import orbax.checkpoint as ocp

    leaves = _leaves(state)
    with _as_os_error(f'the checkpoint of round {round_}, or the one before,'):
        manager.save(
            round_,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(leaves),
                info=ocp.args.JsonSave({'round': round_, 'digest': digest(leaves)}),
            ),
            force=True,
        )


def restore(manager: Any, like: PyTree) -> Saved | None:
    """Reads the newest checkpoint that is whole; tells of damaged ones newer than it, removes them.

    Args:
      manager: from `open_checkpoints`.
      like: a tree of the same structure, shapes and types.

    Returns:
      The checkpoint, None if there is none.

    Raises:
      ValueError: if there are checkpoints, but none is whole.
    """
    import orbax.checkpoint as ocp

    damaged: dict[int, str] = {}
    for step in sorted(manager.all_steps(), reverse=True):
        # Whatever is wrong with a file, orbax and what it rests on have an error of their own.
        try:
            read = manager.restore(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(_leaves(like)), info=ocp.args.JsonRestore()
                ),
            )
            leaves = {name: np.asarray(leaf) for name, leaf in read['state'].items()}
            if read['info'] != {'round': step, 'digest': digest(leaves)}:
                raise ValueError('its digest is another one')
            state = _fill(like, leaves)
        except Exception as error:
            damaged[step] = _first_line(error)
            continue
        for other, first in damaged.items():
            _log.warning(
                'checkpoint of round %d is damaged (%s): going on from round %d', other, first, step
            )
            manager.delete(other)
        return Saved(step, state)
    if damaged:
        told = '; '.join(f'round {step}: {first}' for step, first in damaged.items())
        raise ValueError(
            f'no checkpoint in {manager.directory} is whole ({told}); begin anew in another '
            'directory.'
        )
    return None


def digest(leaves: dict[str, np.ndarray]) -> str:
    """A digest of names, shapes, types and values.

    Args:
      leaves: name -> array.

    Returns:
      Hexadecimal digits.
    """
    found = hashlib.blake2b(digest_size=16)
    for name, leaf in leaves.items():
        found.update(f'{name} {leaf.dtype} {leaf.shape} '.encode())
        found.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves by number, in the tree's order: trees hold tuples and may be empty in places."""
    # Orbax keeps no arrays of size 0, no random keys, and no order but that of names.
    leaves = enumerate(map(_plain, jax.tree.leaves(tree)))
    return {f'{i:06}': leaf for i, leaf in leaves if leaf.size}


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _fill(like: PyTree, leaves: dict[str, np.ndarray]) -> PyTree:
    """A tree with these leaves in place of its own; raises a ValueError if they do not fit."""
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in _leaves(like).items()}
    if wanted != {name: (leaf.shape, leaf.dtype) for name, leaf in leaves.items()}:
        raise ValueError(
            'it is of another network, method or dataset: its arrays have other shapes'
        )
    held, structure = jax.tree.flatten(like)
    filled = [leaves.get(f'{i:06}', leaf) for i, leaf in enumerate(held)]
    keys = [
        jax.random.wrap_key_data(new, impl=jax.random.key_impl(old)) if _is_key(old) else new
        for old, new in zip(held, filled, strict=True)
    ]
    return jax.tree.unflatten(structure, keys)


@contextmanager
def _as_os_error(what: str) -> Iterator[None]:
    """Whatever orbax and what it rests on raise, in a line."""
    try:
        yield
    except Exception as error:
        raise OSError(f'{what} could not be written: {_first_line(error)}') from error


def _first_line(error: Exception) -> str:
    """What an error says at first; what orbax rests on goes on for pages."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _no_orbax(record: logging.LogRecord) -> bool:
    return 'orbax' not in record.pathname and 'orbax' not in str(record.msg)


def _no_late_reads(hook: Callable[[Any], Any], raised: Any) -> None:
    """Of arrays that were being read when another one of theirs turned out to be damaged."""
    if str(raised.exc_value) != 'Event loop is closed':
        hook(raised)
