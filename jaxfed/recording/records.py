"""Files of a work directory: config.json, metrics.jsonl, summary.json."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from jaxfed.config import Config
from jaxfed.methods import Part

CONFIG, METRICS, SUMMARY = 'config.json', 'metrics.jsonl', 'summary.json'
MODEL = 'model.safetensors'
RUNS = 'runs'  # where a work directory is made if none is named


def check_workdir(path: Path) -> None:
    """See that a directory can take the records of a new run.

    Args:
      path: the directory, which need not exist.

    Raises:
      ValueError: if it holds a run already, is not a directory or cannot be written to.
    """
    held = [name for name in (CONFIG, METRICS, SUMMARY, MODEL) if (path / name).exists()]
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
    # Settings from Python may hold what leads out of the directory, or is no name.
    name = re.sub(r'[^\w.+,-]+', '_', f'{config.dataset}-{config.method}')[:100]
    base = Path(config.workdir) if config.workdir else Path(RUNS) / f'{name}-{stamp}'
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
    write_whole(path, _json(value).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Args:
      path: the file.
      content: what it holds.

    Raises:
      OSError: if it cannot be written; what was there before stays.
    """
    temporary = path.with_name(f'.{path.name}.tmp')
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of packages, of those that are installed.

    Args:
      packages: their names.

    Returns:
      Name -> version.
    """
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
