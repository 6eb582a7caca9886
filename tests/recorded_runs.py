"""Records of runs, made by hand: lines of metrics, work directories and states."""

import json

import jax.numpy as jnp
import numpy as np

from jaxfed import Config, methods
from jaxfed.internal import files
from jaxfed.recording import run_files


def entry(round_, accuracy, classes=4, **fields):
    """A line of metrics.jsonl."""
    by_class = None if accuracy is None else [accuracy] * classes
    return {
        'round': round_,
        'test_accuracy': accuracy,
        'test_loss': None if accuracy is None else 2 - accuracy,
        'class_accuracy': by_class,
        'local_accuracy': None,
        'train_loss': 1 / round_,
        'learning_rate': 0.01,
        'seconds': 0.5,
        **fields,
    }


COST = {
    'parameter_bytes': 4000, 'upload_bytes': 4000, 'download_bytes': 8000, 'upload': 1.0,
    'download': 2.0, 'client_state_bytes': 0, 'server_state_bytes': 0, 'forward_passes': 1,
    'data_passes': 0, 'auxiliary': 0,
}  # fmt: skip


def make_run(folder, lines=None, *, ended=True, counts=True, **changes):
    """A work directory of three rounds, finished unless `ended` is False."""
    made = Config(**{'rounds': 3, 'workdir': str(folder), **changes})
    known = made.method in methods.METHODS
    run_files.make_workdir(made, methods.resolve(made.method, {}) if known else [])
    lines = [entry(r, 0.2 * r) for r in (1, 2, 3)] if lines is None else lines
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    if counts:
        rows = np.random.default_rng(made.seed).integers(0, 30, (20, 4))
        run_files.write_partition(folder / 'partition.json', rows, {}, np.ones(4, int))
    if ended:
        summary = {'seconds_total': 9.5, 'client_steps_per_second': 123.0, 'cost': COST}
        files.write_json(folder / 'summary.json', summary | {'memory_bytes': 2**20, 'devices': 4})
    return folder


def make_state(value):
    """The state of a run in a checkpoint: arrays of several kinds, filled with a value."""
    return {
        'server': (jnp.full((3, 4), value), (), jnp.int32(value)),
        'clients': {'c': np.full((5, 2), -value, np.float32), 'none': ()},
        'flags': np.array([True, False]),
        'nan': np.float32(np.nan),
    }
