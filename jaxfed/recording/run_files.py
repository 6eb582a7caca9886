"""Files of a work directory: config.json, metrics.jsonl, partition.json, summary.json."""

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxfed.config import Config
from jaxfed.internal.files import (
    check_writable,
    exclusive_lock,
    json_text,
    read_json,
    versions,
    write_atomic,
)
from jaxfed.methods import Part

CONFIG, METRICS, SUMMARY = 'config.json', 'metrics.jsonl', 'summary.json'
MODEL = 'model.safetensors'
PARTITION = 'partition.json'
RUNS = 'runs'  # where a work directory is made if none is named

# Settings that change neither what is trained, but for rounding, nor what is recorded of it.
NEUTRAL = (
    'checkpoint_every',
    'csv',
    'data_dir',
    'devices',
    'keep',
    'lanes',
    'resume',
    'stream',
    'tensorboard',
    'wandb',
    'workdir',
)


def check_workdir(path: Path, config: Config, parts: list[Part]) -> bool:
    """See that a directory can take the records of a run, a new one or the rest of one.

    Args:
      path: the directory, which need not exist.
      config: the settings.
      parts: the method's parts with all their hyper-parameters.

    Returns:
      Whether it holds a run to go on with.

    Raises:
      ValueError: if it holds another run or a finished one, is not a directory or cannot be written
        to; or if there is no run to resume, where the settings ask for one.
    """
    held = [name for name in (CONFIG, METRICS, SUMMARY, MODEL) if (path / name).exists()]
    if held and (CONFIG not in held or SUMMARY in held or config.resume is False):
        ended = 'a finished run' if SUMMARY in held else 'a run'
        raise ValueError(
            f'--workdir={path} already holds {ended} ({", ".join(held)}); name another directory, '
            'or move this one away.'
        )
    if held and (other := differing(path, config, parts)):
        told = [f'--{name}={was} there, {now} here' for name, (was, now) in other.items()]
        shown = ', '.join(told[:8] + ['...'] * (len(told) > 8))
        raise ValueError(
            f'--workdir={path} holds an unfinished run with other settings ({shown}); give the '
            'same ones to go on with it, or name another directory.'
        )
    if config.resume and not held:
        raise ValueError(f'--resume, but --workdir={path} holds no run; leave one of them out.')
    check_writable(path, '--workdir')
    return bool(held)


def make_workdir(config: Config, parts: list[Part]) -> Path:
    """Make the work directory of a run, with config.json in it.

    Args:
      config: the settings; their workdir is made, or, if it is None, a new one under runs/.
      parts: the method's parts with all their hyper-parameters.

    Returns:
      The directory.

    Raises:
      ValueError: if it cannot be made or written to.
    """
    workdir = new_folder(config)
    if check_workdir(workdir, config, parts):
        return workdir
    text = json_text(describe_config(config, parts))  # before anything is written
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        _claim(workdir, text, config, parts)
    except OSError as error:
        raise ValueError(f'--workdir={workdir} cannot be written to: {error}.') from error
    return workdir


def new_folder(config: Config, suffix: str = '') -> Path:
    """Name the work directory of a run or a sweep.

    Args:
      config: the settings; their workdir is taken, or, if it is None, one under runs/.
      suffix: of a name under runs/.

    Returns:
      The directory, which under runs/ does not exist yet.
    """
    if config.workdir:
        return Path(config.workdir)
    stamp = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
    # Settings from Python may hold what leads out of the directory, or is no name.
    name = re.sub(r'[^\w.+,-]+', '_', f'{config.dataset}-{config.method}')[:100]
    base = Path(RUNS) / f'{name}{suffix}-{stamp}'
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f'{base.name}-{count}')
    return folder


def discard_workdir(workdir: Path) -> None:
    """Give up a work directory whose run has not begun, so that another run can have it.

    Args:
      workdir: from `make_workdir`; it is removed unless it holds something else. One whose run has
        begun stays as it is.
    """
    if (workdir / METRICS).exists():
        return
    (workdir / '.lock').unlink(missing_ok=True)
    shutil.rmtree(workdir / 'checkpoints', ignore_errors=True)  # empty so far
    (workdir / CONFIG).unlink()
    with contextlib.suppress(OSError):
        workdir.rmdir()


def _claim(workdir: Path, text: str, config: Config, parts: list[Part]) -> None:
    """Write config.json, whole or not at all, if no other run has."""
    # The lock lets only one of several runs that start at once go on.
    with exclusive_lock(workdir):
        if check_workdir(workdir, config, parts):
            raise ValueError(f'--workdir={workdir} already holds a run, begun just now.')
        write_atomic(workdir / CONFIG, text)


def write_partition(path: Path, counts: np.ndarray) -> None:
    """Write partition.json, whole or not at all.

    Args:
      path: the file.
      counts: [N, C] integers, examples of class c that client i trains on.
    """
    rows = ',\n  '.join(map(json.dumps, counts.tolist()))
    write_atomic(path, f'{{"label_counts": [\n  {rows}\n]}}\n')


def describe_config(config: Config, parts: list[Part]) -> dict[str, Any]:
    """What config.json holds: every setting, the method's parts, versions and the device.

    Args:
      config: the settings.
      parts: the method's parts with all their hyper-parameters.

    Returns:
      A dictionary that is plain JSON.
    """
    packages = ('jaxfed', 'jax', 'jaxlib', 'flax', 'optax', 'numpy')
    device = jax.devices()[0]
    return {
        **dataclasses.asdict(config),
        'method_parts': [part._asdict() for part in parts],
        'versions': {'python': platform.python_version(), **versions(packages)},
        'device': {
            'platform': device.platform,
            'kind': device.device_kind,
            'count': jax.device_count(),
            'cpu_cores': os.cpu_count(),
        },
    }


def differing(workdir: Path, config: Config, parts: list[Part]) -> dict[str, tuple[Any, Any]]:
    """Settings in which the run in a work directory is another one.

    Args:
      workdir: holds a run.
      config: the settings.
      parts: the method's parts with all their hyper-parameters.

    Returns:
      Setting -> (value there, value here), without those that make no difference.

    Raises:
      ValueError: if its config.json cannot be read.
    """
    held = _flat(read_json(workdir / CONFIG), workdir / CONFIG)
    wanted = _flat(json.loads(json_text(describe_config(config, parts))))
    # A run recorded before there was a setting had what is now its default.
    held = _flat(json.loads(json_text(describe_config(Config(), [])))) | held
    skipped = {'versions', 'device', *NEUTRAL}
    return {
        name: (held.get(name), wanted.get(name))
        for name in wanted | held
        if name not in skipped and held.get(name) != wanted.get(name)
    }


def _flat(described: dict[str, Any], path: str | Path = CONFIG) -> dict[str, Any]:
    """Settings and hyper-parameters of all parts side by side, under the names of their flags."""
    flat = dict(described)
    # Parts tell all hyper-parameters, whichever were given.
    flat.pop('hyperparameters', None)
    try:
        parts = flat.pop('method_parts', [])
        # A method of one's own has no parts that are known.
        flat['parts'] = [(part['name'], part['phase']) for part in parts]
        for part in parts:
            values = part['hyperparameters']
            flat |= {f'{part["name"]}.{name}': value for name, value in values.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f'{path} describes no method: {error!r}.') from error
    return flat


def check_unfinished(workdir: Path, counts: np.ndarray) -> None:
    """See that a run may go on in a work directory.

    Args:
      workdir: the work directory.
      counts: [N, C] integers, what the clients train on.

    Raises:
      ValueError: if its run is finished, or was begun with other data or another partition.
    """
    if (workdir / SUMMARY).exists():
        raise ValueError(f'--workdir={workdir} already holds a finished run; name another one.')
    path = workdir / PARTITION
    if path.exists() and read_json(path).get('label_counts') != counts.tolist():
        raise ValueError(
            f'{path} tells of other data than the dataset gives now; a run goes on with the same '
            'data only. Name another --workdir.'
        )
