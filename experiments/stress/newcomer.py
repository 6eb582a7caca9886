"""Follow README.md as a newcomer: run its commands and programs in order, in a new environment.

Copies the repository to a temporary folder, so nothing in the clone changes. Commands that need a
dataset run for one round if --data_dir names its folder; without it they are left out. The fast
tests, which README.md also names, run with --tests.

python -m experiments.stress.newcomer --data_dir=DIR
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags

from jaxfed.internal import console
from jaxfed.internal.console import counted

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r'^```(sh|python)\n(.*?)^```', re.MULTILINE | re.DOTALL)
_FILE = re.compile(r'^# (\w+\.py); then: (.*)$', re.MULTILINE)


class Step(NamedTuple):
    """A command of the text, or a program."""

    shown: str
    command: str


def steps(text: str) -> Iterator[Step]:
    """The commands and programs in the order of a Markdown text."""
    for language, block in _BLOCK.findall(text):
        if language == 'sh':
            for line in block.replace('\\\n', ' ').splitlines():
                if line.strip() and not line.startswith('#'):
                    yield Step(line, line)
        elif file := _FILE.search(block):
            write = f"cat > {file[1]} <<'PROGRAM'\n{block}PROGRAM\n"
            yield Step(file[2], write + file[2])
        else:
            yield Step(block.splitlines()[0], f"python - <<'PROGRAM'\n{block}PROGRAM\n")


def adapt(command: str, data_dir: str | None) -> str | None:
    """The command with the names of real files; None if its data is missing."""
    if re.search(r'\bDIR\b', command):
        if not data_dir:
            return None
        command = re.sub(r'\bDIR\b', data_dir, command) + ' --rounds=1'
    return command.replace('FILE.npz', 'own.npz')


def left_out(folder: str, names: list[str]) -> set[str]:
    """What is not part of the repository."""
    made = {'__pycache__', '_build'}
    return {'.git', '.venv', 'runs', *made} if Path(folder) == ROOT else made & set(names)


def run(step: Step, folder: Path, environment: dict[str, str]) -> str:
    """Run a step; returns '' or the end of its output if it fails."""
    done = subprocess.run(
        ['bash', '-ec', step.command], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout[-2000:] if done.returncode else ''


def main(arguments: Sequence[str]) -> int:
    """Run all steps; returns 1 if one failed."""
    if len(arguments) > 1:
        raise app.UsageError(f'Unexpected arguments: {arguments[1:]}.')
    failures, values = 0, flags.FLAGS
    with tempfile.TemporaryDirectory() as temporary:
        clone = Path(temporary) / 'jaxfed'
        shutil.copytree(ROOT, clone, ignore=left_out)
        rng = np.random.default_rng(0)
        images, labels = rng.integers(0, 256, (5000, 8, 8, 3), np.uint8), np.arange(5000) % 10
        arrays = {'x_train': images[1000:], 'y_train': labels[1000:]}
        arrays |= {'x_test': images[:1000], 'y_test': labels[:1000]}
        np.savez(clone / 'own.npz', **arrays)  # type: ignore[arg-type]
        path = f'{clone}/.venv/bin:{os.environ["PATH"]}'
        environment = os.environ | {'PATH': path, 'JAXFED_CACHE_DIR': f'{temporary}/cache'}
        environment.pop('PYTHONPATH', None)
        for step in steps((ROOT / 'README.md').read_text()):
            command = adapt(step.command, values.data_dir)
            if command is None or ('pytest' in command and not values.tests):
                console.say(f'left out   {step.shown}')
                continue
            began = time.monotonic()
            output = run(step._replace(command=command), clone, environment)
            failures += bool(output)
            seconds = f'{time.monotonic() - began:6.1f} s'
            console.say(f'{seconds}   {"FAILED: " if output else ""}{step.shown}')
            if output:
                console.say(output)
    console.say(counted(failures, 'failure'))
    return int(failures > 0)


if __name__ == '__main__':
    flags.DEFINE_string('data_dir', None, 'Folder of the prepared CIFAR-10.')
    flags.DEFINE_bool('tests', False, 'Also run the fast tests.')
    app.run(lambda arguments: sys.exit(main(arguments)))
