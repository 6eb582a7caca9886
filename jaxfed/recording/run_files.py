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
from typing import Any, Literal

import jax
import numpy as np

from jaxfed.config import Config, settings_that_affect
from jaxfed.internal.files import (
    check_writable,
    exclusive_lock,
    json_text,
    read_json,
    versions,
    write_atomic,
)
from jaxfed.methods import Part
from jaxfed.metrics.measures import parse_measures

CONFIG, METRICS, SUMMARY = 'config.json', 'metrics.jsonl', 'summary.json'
MODEL = 'model.safetensors'
PARTITION = 'partition.json'
RUNS = 'runs'  # where a work directory is made if none is named


def check_workdir(path: Path, config: Config, parts: list[Part]) -> bool:
    """Check that a directory can take the records of a run, a new one or the rest of one.

    Returns:
      Whether it holds an unfinished run with these settings.

    Raises:
      ValueError: if it holds another run or a finished one, is not a directory or cannot be written
        to; or if there is no run to resume, where the settings ask for one.
    """
    files = [name for name in (CONFIG, METRICS, SUMMARY, MODEL) if (path / name).exists()]
    if files and (CONFIG not in files or SUMMARY in files or config.resume is False):
        what = 'a finished run' if SUMMARY in files else 'a run'
        raise ValueError(
            f'--workdir={path} already holds {what} ({", ".join(files)}); name another directory, '
            'or move this one away.'
        )
    if files and (other := differing(path, config, parts)):
        words = [f'--{name}={there} there, {now} here' for name, (there, now) in other.items()]
        shown = ', '.join(words[:8] + ['...'] * (len(words) > 8))
        raise ValueError(
            f'--workdir={path} holds an unfinished run with other settings ({shown}); give the '
            'same ones to go on with it, or name another directory.'
        )
    if config.resume and not files:
        raise ValueError(f'--resume, but --workdir={path} holds no run; leave one of them out.')
    check_writable(path, '--workdir')
    return bool(files)


def make_workdir(config: Config, parts: list[Part]) -> Path:
    """Make the work directory of a run, under runs/ if none is named, with config.json in it."""
    workdir = new_folder(config)
    if check_workdir(workdir, config, parts):
        return workdir
    text = json_text(describe_config(config, parts))  # before anything is written
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        # The lock lets only one of several runs that start at once go on.
        with exclusive_lock(workdir):
            if check_workdir(workdir, config, parts):
                raise ValueError(f'--workdir={workdir} already holds a run, begun just now.')
            write_atomic(workdir / CONFIG, text.encode())
    except OSError as error:
        raise ValueError(f'--workdir={workdir} cannot be written to: {error}.') from error
    return workdir


def new_folder(config: Config, suffix: str = '') -> Path:
    """The work directory that the settings name, else a new name under runs/ with a suffix."""
    if config.workdir:
        return Path(config.workdir)
    stamp = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
    # Settings from Python may hold characters that lead out of the directory, or make no name.
    name = re.sub(r'[^\w.+,-]+', '_', f'{config.dataset}-{config.method}')[:100]
    base = Path(RUNS) / f'{name}{suffix}-{stamp}'
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f'{base.name}-{count}')
    return folder


def discard_workdir(workdir: Path) -> None:
    """Remove a work directory whose run has not begun, unless it holds something else."""
    if (workdir / METRICS).exists():
        return
    (workdir / '.lock').unlink(missing_ok=True)
    shutil.rmtree(workdir / 'checkpoints', ignore_errors=True)  # empty so far
    (workdir / CONFIG).unlink()
    with contextlib.suppress(OSError):
        workdir.rmdir()


def write_partition(path: Path, counts: np.ndarray) -> None:
    """Write partition.json; counts [N, C] are the examples of class c that client i trains on."""
    rows = ',\n  '.join(map(json.dumps, counts.tolist()))
    write_atomic(path, f'{{"label_counts": [\n  {rows}\n]}}\n'.encode())


def describe_config(config: Config, parts: list[Part]) -> dict[str, Any]:
    """What config.json holds: every setting, the method's parts, versions and the device."""
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


def differing(
    workdir: Path,
    config: Config,
    parts: list[Part],
    *,
    measures: Literal['equal', 'included', 'any'] = 'equal',
) -> dict[str, tuple[Any, Any]]:
    """Setting -> (value there, value now) where the run in a work directory is another one.

    Args:
      workdir: holds a run.
      config: the settings.
      parts: the method's parts with all their hyper-parameters.
      measures: whether the run has to have the same measures, at least these, or any.

    Raises:
      ValueError: if its config.json cannot be read.
    """
    there = _flat(read_json(workdir / CONFIG), workdir / CONFIG)
    now = _flat(json.loads(json_text(describe_config(config, parts))))
    # A run that was recorded before there was a setting had the setting's default.
    there = _flat(json.loads(json_text(describe_config(Config(), [])))) | there
    skipped = {'versions', 'device', *settings_that_affect('machine')}
    if measures == 'any' or (
        measures == 'included'
        and set(parse_measures(now['measure'])) <= set(parse_measures(there['measure']))
    ):
        skipped.add('measure')
    return {
        name: (there.get(name), now.get(name))
        for name in now | there
        if name not in skipped and there.get(name) != now.get(name)
    }


def _flat(described: dict[str, Any], path: str | Path = CONFIG) -> dict[str, Any]:
    """Settings and hyper-parameters of all parts side by side, under the names of their flags."""
    flat = dict(described)
    # The parts have all hyper-parameters, also those that were not given.
    flat.pop('hyperparameters', None)
    try:
        parts = flat.pop('method_parts', [])
        # A user's own method has no parts.
        flat['parts'] = [(part['name'], part['phase']) for part in parts]
        for part in parts:
            values = part['hyperparameters']
            flat |= {f'{part["name"]}.{name}': value for name, value in values.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f'{path} describes no method: {error!r}.') from error
    return flat


def check_unfinished(workdir: Path, counts: np.ndarray) -> None:
    """Raise a ValueError if the run is finished or has other data than counts [N, C]."""
    if (workdir / SUMMARY).exists():
        raise ValueError(f'--workdir={workdir} already holds a finished run; name another one.')
    path = workdir / PARTITION
    if path.exists() and read_json(path).get('label_counts') != counts.tolist():
        raise ValueError(
            f'{path} describes other data than the dataset has now; a run goes on with the same '
            'data only. Name another --workdir.'
        )
