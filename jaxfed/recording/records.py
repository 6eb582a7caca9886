"""Files of a work directory: config.json, metrics.jsonl, summary.json."""

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

from jaxfed.config import Config
from jaxfed.methods import Part

CONFIG, METRICS, SUMMARY = 'config.json', 'metrics.jsonl', 'summary.json'


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


def make_workdir(path: str | None, name: str) -> Path:
    """Make the work directory of a run.

    Args:
      path: the directory, or None for a new one under runs/.
      name: of the run, for a directory under runs/.

    Returns:
      The directory.

    Raises:
      ValueError: if it cannot be made or written to.
    """
    stamp = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
    base = Path(path) if path else Path('runs') / f'{name}-{stamp}'
    workdir, count = base, 1
    while path is None and workdir.exists():
        count += 1
        workdir = base.with_name(f'{base.name}-{count}')
    check_workdir(workdir)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        # 'x' claims the directory: of two runs that start at once, the second fails here.
        (workdir / CONFIG).open('x').close()
    except OSError as error:
        raise ValueError(f'--workdir={workdir} cannot be written to: {error}.') from error
    return workdir


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all.

    Args:
      path: the file.
      value: what it holds.
    """
    temporary = path.with_name(f'.{path.name}.tmp')
    temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + '\n')
    os.replace(temporary, path)


def write_config(workdir: Path, config: Config, parts: list[Part]) -> None:
    """Write config.json: every setting, the method's hyper-parameters, versions and the device.

    Args:
      workdir: the work directory.
      config: the settings.
      parts: the method's parts with all their hyper-parameters.
    """
    packages = ('jaxfed', 'jax', 'jaxlib', 'flax', 'optax', 'numpy')
    device = jax.devices()[0]
    write_json(
        workdir / CONFIG,
        {
            **dataclasses.asdict(config),
            'method_parts': [part._asdict() for part in parts],
            'versions': {'python': platform.python_version(), **_versions(packages)},
            'device': {
                'platform': device.platform,
                'kind': device.device_kind,
                'count': jax.device_count(),
                'cpu_cores': os.cpu_count(),
            },
        },
    )


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
