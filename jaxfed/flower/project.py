"""A Flower project of a method, a network and their settings."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from jaxfed.config import SETTINGS, Config
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

from jaxfed.flower import {maker}

app = {maker}()
'''


def write_project(folder: Path, arguments: Sequence[str]) -> Config:
    """Write a Flower project that `flwr run` starts.

    Args:
      folder: of the project; it must not exist or be empty.
      arguments: flags of jaxfed, as on its command line.

    Returns:
      The settings.

    Raises:
      ValueError: if a setting is invalid or the folder holds files.
    """
    config = config_flags.parse(arguments)
    checks.check(config)
    check_supported(config)
    build_method(config)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f'{folder} exists and holds something; name a new folder.')
    values = {'method': config.method, 'num_clients': config.num_clients} | _given(arguments)
    for name in values.keys() & SETTINGS.keys():
        if SETTINGS[name].local_path or name == 'workdir':
            # Flower starts the apps in a folder of its own.
            values[name] = str(Path(str(values[name])).resolve())
    values.setdefault('workdir', str(folder.resolve() / 'runs' / '{run_id}'))
    settings = '\n'.join(f'{name} = {json.dumps(value)}' for name, value in values.items())
    package = folder / 'app'
    package.mkdir(parents=True)
    name = ''.join(letter if letter.isalnum() else '-' for letter in folder.resolve().name.lower())
    (folder / 'pyproject.toml').write_text(_PROJECT.format(name=name, settings=settings))
    (package / '__init__.py').write_text('"""Federated training with jaxfed."""\n')
    for what in ('client', 'server'):
        text = _APP.format(what=what, maker=f'{what}_app')
        (package / f'{what}.py').write_text(text)
    return config


def _given(arguments: Sequence[str]) -> dict[str, str | int | float | bool]:
    """Name -> value of the given flags, of the types that TOML has."""
    values: dict[str, str | int | float | bool] = {}
    for argument in arguments:
        name, sign, text = argument.lstrip('-').partition('=')
        if not sign:
            raise ValueError(f'{argument}: write settings as --NAME=VALUE.')
        values[name] = text
        with contextlib.suppress(ValueError):
            number = json.loads(text)
            values[name] = number if isinstance(number, bool | int | float) else text
    return values
