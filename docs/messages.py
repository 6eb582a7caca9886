"""Writes the error messages of troubleshooting.md: python docs/messages.py.

A block of the language console has a command and the message that it prints. Run this when messages
of the code have changed; a test compares them.
"""

import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.runs import config_flags
from jaxfed.runs.experiment import make_experiment

PAGE = Path(__file__).parent / 'troubleshooting.md'
BLOCK = re.compile(r'^```console\n\$ python -m jaxfed (.*)\n(?:.*\n)*?```$', re.MULTILINE)


def write_files(folder: Path) -> None:
    """Writes the files that the commands of the page name."""
    rng = np.random.default_rng(0)
    good: dict[str, Any] = {
        'x_train': rng.integers(0, 256, (4000, 8, 8, 3)).astype(np.uint8),
        'y_train': np.arange(4000) % 4,
        'x_test': rng.integers(0, 256, (8, 8, 8, 3)).astype(np.uint8),
        'y_test': np.arange(8) % 4,
    }
    without_test = {key: array for key, array in good.items() if 'test' not in key}
    channels_first = {
        key: np.zeros((len(array), 3, 32, 32), np.uint8) if key.startswith('x') else array
        for key, array in good.items()
    }
    from_one = {key: array + 1 if key.startswith('y') else array for key, array in good.items()}
    files: dict[str, dict[str, Any]] = {
        'no_test': without_test,
        'pytorch': channels_first,
        'from_one': from_one,
    }
    for name, arrays in files.items():
        np.savez_compressed(folder / f'{name}.npz', **arrays)


def message(arguments: str) -> str:
    """Returns what the command line prints for invalid arguments; 'no error' if they are valid."""
    try:
        make_experiment(config_flags.parse(shlex.split(arguments)))
    except ValueError as error:
        return f'error: {error}'
    return 'no error'


def updated(page: str) -> str:
    """Returns the page with the current messages."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        os.chdir(folder)
        try:
            return BLOCK.sub(
                lambda found: (
                    f'```console\n$ python -m jaxfed {found[1]}\n{message(found[1])}\n```'
                ),
                page,
            )
        finally:
            os.chdir(before)


if __name__ == '__main__':
    PAGE.write_text(updated(PAGE.read_text(encoding='utf-8')), encoding='utf-8')
