"""Files of a work directory: config.json, metrics.jsonl, partition.json, summary.json."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxfed.config import Config
from jaxfed.methods import Part

CONFIG, METRICS, SUMMARY = 'config.json', 'metrics.jsonl', 'summary.json'
PARTITION = 'partition.json'


def check_workdir(path: Path) -> None:
    """See that a directory can take the records of a new run.

    Args:
      path: the directory, which need not exist.

    Raises:
      ValueError: if it holds a run already, is not a directory or cannot be written to.
    """
    held = [name for name in (CONFIG, METRICS, SUMMARY) if (path / name).exists()]
    if held:
        raise ValueError(
            f'--workdir={path} already holds a run ({", ".join(held)}); name another directory, '
            'or move this one away.'
        )
    if path.exists() and not path.is_dir():
        raise ValueError(f'--workdir={path} is a file; name a directory.')
    # An absent directory is made later; what matters now is the nearest one that exists.
    nearest = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f'--workdir={path} cannot be written to; name another directory.')


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
    stamp = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
    name = f'{config.dataset}-{config.method}'
    base = Path(config.workdir) if config.workdir else Path('runs') / f'{name}-{stamp}'
    workdir, count = base, 1
    while config.workdir is None and workdir.exists():
        count += 1
        workdir = base.with_name(f'{base.name}-{count}')
    check_workdir(workdir)
    text = _json(describe_config(config, parts))  # before anything is written
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        _claim(workdir, text)
    except OSError as error:
        raise ValueError(f'--workdir={workdir} cannot be written to: {error}.') from error
    return workdir


def discard_workdir(workdir: Path) -> None:
    """Give up a work directory whose run has not begun, so that another run can have it.

    Args:
      workdir: from `make_workdir`; it is removed unless it holds something else.
    """
    (workdir / CONFIG).unlink()
    with contextlib.suppress(OSError):
        workdir.rmdir()


def _claim(workdir: Path, text: str) -> None:
    """Write config.json, whole or not at all, if no other run has."""
    temporary = workdir / f'.{CONFIG}.tmp'
    # 'x' lets only one of several runs that start at once go on, and one that comes when the file
    # has its name already finds it.
    with temporary.open('x') as file:
        try:
            check_workdir(workdir)
            file.write(text)
            file.close()
            os.replace(temporary, workdir / CONFIG)
        except BaseException:
            temporary.unlink()
            raise


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + '\n'


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all.

    Args:
      path: the file.
      value: what it holds.
    """
    write_text(path, _json(value))


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Args:
      path: the file.
      text: what it holds.
    """
    temporary = path.with_name(f'.{path.name}.tmp')
    try:
        temporary.write_text(text, encoding='utf-8')
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_partition(path: Path, counts: np.ndarray) -> None:
    """Write partition.json, whole or not at all.

    Args:
      path: the file.
      counts: [N, C] integers, examples of class c that client i trains on.
    """
    rows = ',\n  '.join(map(json.dumps, counts.tolist()))
    write_text(path, f'{{"label_counts": [\n  {rows}\n]}}\n')


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
        'versions': {'python': platform.python_version(), **_versions(packages)},
        'device': {
            'platform': device.platform,
            'kind': device.device_kind,
            'count': jax.device_count(),
            'cpu_cores': os.cpu_count(),
        },
    }


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


@contextlib.contextmanager
def lines(workdir: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Open metrics.jsonl.

    Args:
      workdir: the work directory.

    Yields:
      A function that appends one entry as one line and hands it to the operating system.
    """
    with (workdir / METRICS).open('x') as file:

        def record(entry: dict[str, Any]) -> None:
            file.write(json.dumps(entry, allow_nan=False) + '\n')
            file.flush()

        yield record
