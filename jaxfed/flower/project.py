"""A Flower project of a method, a network and their settings."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxfed.config import DEFAULTS, PATHS, SETTINGS, Config
from jaxfed.flower.server import check_supported
from jaxfed.runs import checks, config_flags
from jaxfed.runs.experiment import build_method

_PROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = "Federated training with jaxfed"
license = "Apache-2.0"
requires-python = ">=3.11"
# jaxfed with its extra `flower` must be installed on every machine.
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["app"]

[tool.flwr.app]
publisher = "jaxfed"

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

# The settings of jaxfed, as on its command line.
[tool.flwr.app.config]
{settings}
"""
_APP = '''"""The {what} of the project; the settings are those of [tool.flwr.app.config]."""

{imports}from jaxfed.flower import {maker}

app = {maker}()
'''


def write_project(folder: Path, arguments: Sequence[str], files: Sequence[Path] = ()) -> Config:
    """Write a Flower project that `flwr run` starts.

    Args:
      folder: of the project; it must not exist or be empty.
      arguments: flags of jaxfed, as on its command line.
      files: of the user, which both apps import; they have run in this process.

    Returns:
      The settings.

    Raises:
      ValueError: if a setting is invalid, the folder holds files, or a file has the name of an app.
    """
    if taken := [file for file in files if file.stem in ('__init__', 'client', 'server')]:
        raise ValueError(f'--include={taken[0]} has the name of a file of the project; rename it.')
    config = config_flags.parse(arguments)
    checks.check(config)
    check_supported(config)
    build_method(config)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f'{folder} exists and holds something; name a new folder.')
    values = settings_of(config)
    values.setdefault('workdir', str(folder.resolve() / 'runs' / '{run_id}'))
    lines = [f'{name} = {json.dumps(value, ensure_ascii=False)}' for name, value in values.items()]
    settings = '\n'.join(lines)
    package = folder / 'app'
    package.mkdir(parents=True)
    name = re.sub(r'[^a-z0-9]+', '-', folder.resolve().name.lower()).strip('-') or 'federation'
    project = _PROJECT.format(name=name, settings=settings)
    (folder / 'pyproject.toml').write_text(project, encoding='utf-8')  # as TOML requires
    (package / '__init__.py').write_text('"""Federated training with jaxfed."""\n')
    for file in files:
        shutil.copyfile(file, package / file.name)
    imports = ''.join(f'from app import {file.stem}  # noqa: F401, registers\n' for file in files)
    for what in ('client', 'server'):
        text = _APP.format(what=what, maker=f'{what}_app', imports=imports)
        (package / f'{what}.py').write_text(text)
    return config


def settings_of(config: Config) -> dict[str, Any]:
    """Name -> value of the settings that are not the defaults, and of method and clients."""
    values: dict[str, Any] = {'method': config.method, 'num_clients': config.num_clients}
    for name in SETTINGS:
        value = getattr(config, name)
        if value == DEFAULTS[name]:
            continue
        if name in PATHS:
            # Flower starts the apps in a folder of its own.
            value = str(Path(value).resolve())
        values[name] = value
    return values | {**config.hyperparameters} | {**config.partition_settings}
