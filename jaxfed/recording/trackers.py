"""Where a run's metrics go besides metrics.jsonl: CSV, TensorBoard, Weights & Biases.

The line in metrics.jsonl comes first. A tracker that fails while training is told at once and in
summary.json, and closed; the rounds are worth more than their copy, so training goes on.
"""

import contextlib
import csv
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from jaxfed.config import Config
from jaxfed.internal import console
from jaxfed.methods import Part
from jaxfed.recording import run_files

CSV = 'metrics.csv'
PACKAGES = ('tensorboard', 'wandb')  # flags, packages and extras of the same name

# Lists with a number for each class; each number is a curve of its own.
_BY_CLASS = ('class_accuracy', 'class_forgetting', 'prediction_share')

Entry = dict[str, Any]
Tracker = Callable[[Entry], None]
Exit = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
Open = Callable[[Path, dict[str, Any]], contextlib.AbstractContextManager[Tracker]]


class Unavailable(ValueError):
    """A tracker that cannot be opened."""


def check(config: Config) -> None:
    """Check that what the chosen trackers need is installed.

    Args:
      config: the settings.

    Raises:
      ValueError: naming the extra to install.
    """
    for name in PACKAGES:
        if not getattr(config, name):
            continue
        # A folder wandb/ of earlier runs would do for an import, but has no origin.
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ValueError(
                f"--{name} takes the package {name}: pip install 'jaxfed[{name}]', or leave the "
                'flag out.'
            )


@contextlib.contextmanager
def follow(
    config: Config, parts: Sequence[Part], workdir: Path
) -> Iterator[tuple[Tracker, dict[str, str]]]:
    """Open the trackers that the settings choose, and close them however training ends.

    Args:
      config: the settings; csv, tensorboard and wandb are read.
      parts: the method's parts with all their hyper-parameters.
      workdir: the work directory.

    Yields:
      A function that takes the entry of each round done, and a dictionary that it fills: tracker
      -> why and when it failed.

    Raises:
      Unavailable: if one cannot be opened; the work directory is then given up.
    """
    chosen = [name for name in OPEN if getattr(config, name)]
    described = run_files.describe_config(config, list(parts)) if chosen else {}
    trackers: dict[str, Tracker] = {}
    closers: dict[str, contextlib.ExitStack] = {}
    failed: dict[str, str] = {}

    def close(name: str, error: Exit) -> None:
        try:
            closers.pop(name).__exit__(*error)
        except Exception as error:
            tell(name, f'closing it: {_in_words(error)}')

    def tell(name: str, reason: str) -> None:
        if name not in failed:
            failed[name] = reason
            console.show_warning(f'--{name}: {reason}; metrics.jsonl has everything.')

    def track(entry: Entry) -> None:
        for name, tracker in list(trackers.items()):
            try:
                tracker(entry)
            except Exception as error:
                del trackers[name]
                tell(name, f'failed in round {entry["round"]}: {_in_words(error)}')
                close(name, sys.exc_info())

    ending: Exit = (None, None, None)  # so that a tracker can tell why training ends
    try:
        for name in chosen:
            closers[name] = contextlib.ExitStack()
            try:
                trackers[name] = closers[name].enter_context(OPEN[name](workdir, described))
            except Exception as error:
                del closers[name]
                run_files.discard_workdir(workdir)
                raise _unavailable(name, error) from error
        yield track, failed
    except BaseException:
        ending = sys.exc_info()
        raise
    finally:
        for name in list(closers):
            close(name, ending)


def clear(config: Config, workdir: Path) -> None:
    """Remove the files of an interrupted run's trackers, which get all its rounds again.

    Runs of Weights & Biases stay: what was uploaded of them is not ours to remove.

    Args:
      config: the settings; csv and tensorboard are read.
      workdir: the work directory.
    """
    if config.csv:
        (workdir / CSV).unlink(missing_ok=True)
    if config.tensorboard:
        shutil.rmtree(workdir / 'tensorboard', ignore_errors=True)


def _unavailable(name: str, error: Exception) -> Unavailable:
    hint = '; WANDB_MODE=offline keeps it on disk' if name == 'wandb' else ''
    return Unavailable(f'--{name} cannot be used: {_in_words(error)}{hint}.')


def _in_words(error: Exception) -> str:
    return ' '.join(str(error).split()).rstrip('.') or type(error).__name__


def scalars(entry: Entry) -> dict[str, float]:
    """The numbers of a round that are curves.

    Args:
      entry: a line of metrics.jsonl.

    Returns:
      Field -> value, and 'class_accuracy/0' ... for lists with a number for each class; what was
      not evaluated is left out.
    """
    found = {}
    for name, value in entry.items():
        if name == 'round':
            continue
        if _is_number(value):
            found[name] = value
        elif name in _BY_CLASS and isinstance(value, list):
            found |= {f'{name}/{c}': v for c, v in enumerate(value) if _is_number(v)}
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@contextlib.contextmanager
def csv_file(workdir: Path, config: dict[str, Any]) -> Iterator[Tracker]:
    """Open metrics.csv: a row a round, a column a number, lists as class_accuracy_0 ...

    A field that has its first value late gives the file new columns, whole or not at all, so that
    it has a complete header whenever training ends.

    Args:
      workdir: the work directory.
      config: not read.

    Yields:
      A function that appends the row of one entry.

    Raises:
      FileExistsError: if there is such a file.
    """
    path = workdir / CSV
    if path.exists():
        raise FileExistsError(f'{path} is there already; move it away')
    order: list[str] = []  # fields as they stand in entries
    columns: dict[str, int] = {}  # column -> place of its field, in the order of the file
    rows: list[dict[str, Any]] = []

    def cells(entry: Entry) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in entry.items():
            if name not in order:
                order.append(name)
            if isinstance(value, list) and not any(isinstance(v, list) for v in value):
                row = {f'{name}_{i}': v for i, v in enumerate(value)}
            else:
                row = {} if value is None or isinstance(value, list | dict) else {name: value}
            for column in row.keys() - columns.keys():
                columns[column] = order.index(name)
            found |= row
        return found

    def write(entry: Entry) -> None:
        known = len(columns)
        rows.append(cells(entry))
        new = len(columns) > known
        if new:
            held = sorted(columns.items(), key=lambda item: (item[1], _natural(item[0])))
            columns.clear()
            columns.update(held)
        written = rows if new else rows[-1:]
        temporary = path.with_name(f'.{CSV}.tmp')
        with (temporary if new else path).open('w' if new else 'a', newline='') as file:
            writer = csv.DictWriter(file, columns, restval='', lineterminator='\n')
            if new:
                writer.writeheader()
            writer.writerows(written)
        if new:
            os.replace(temporary, path)

    yield write


def _natural(column: str) -> tuple[int, str]:
    number = column.rpartition('_')[2]
    return (int(number) if number.isdecimal() else -1, column)


@contextlib.contextmanager
def tensorboard(workdir: Path, config: dict[str, Any]) -> Iterator[Tracker]:
    """Open an event file in WORKDIR/tensorboard, with the settings as hyper-parameters.

    Written with TensorBoard's own records and in this thread, so a full disk is an error of the
    round that it loses.

    Args:
      workdir: the work directory.
      config: what config.json holds.

    Yields:
      A function that writes the scalars of one entry and hands them to the operating system.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder = workdir / 'tensorboard'
    folder.mkdir(exist_ok=True)
    now = time.time()
    path = folder / f'events.out.tfevents.{now:.0f}.{platform.node()}.{os.getpid()}'
    with path.open('xb') as file:
        writer = RecordWriter(file)

        def write(**fields: Any) -> None:
            writer.write(Event(wall_time=time.time(), **fields).SerializeToString())

        write(file_version='brain.Event:2')
        write(summary=hparams_pb(hyperparameters(config)))
        writer.flush()

        def track(entry: Entry) -> None:
            values = [
                Summary.Value(tag=name, simple_value=value)
                for name, value in scalars(entry).items()
            ]
            write(step=entry['round'], summary=Summary(value=values))
            writer.flush()

        yield track


def hyperparameters(config: dict[str, Any]) -> dict[str, str | int | float | bool]:
    """Settings as a flat table of plain values.

    Args:
      config: what config.json holds.

    Returns:
      Name -> value; those of the method's parts as 'fedlmd.beta', what is None left out.
    """
    flat = {name: value for name, value in config.items() if isinstance(value, str | int | float)}
    for part in config['method_parts']:
        flat |= {f'{part["name"]}.{name}': v for name, v in part['hyperparameters'].items()}
    for name, value in config['partition_settings'].items():
        flat[f'partition.{name}'] = value
    return {name: value for name, value in flat.items() if isinstance(value, str | int | float)}


@contextlib.contextmanager
def wandb(workdir: Path, config: dict[str, Any]) -> Iterator[Tracker]:
    """Open a run of Weights & Biases with its files in WORKDIR/wandb.

    Project, entity and mode are those of W&B's own environment variables; with
    WANDB_MODE=offline it needs no network and no login.

    Args:
      workdir: the work directory.
      config: what config.json holds.

    Yields:
      A function that logs the scalars of one entry.
    """
    import wandb as library

    run = library.init(
        project=os.environ.get('WANDB_PROJECT', 'jaxfed'),
        name=os.environ.get('WANDB_NAME', workdir.name),
        dir=workdir,
        config=config,
        # What jaxfed prints stays where it is, and runs that share a program are open together.
        settings=library.Settings(console='off', reinit='create_new'),
    )
    status = 1
    try:
        yield lambda entry: run.log(scalars(entry), step=entry['round'])
        status = 0
    finally:
        run.finish(exit_code=status)


# What needs a network comes first, before others have made files.
OPEN: dict[str, Open] = {'wandb': wandb, 'tensorboard': tensorboard, 'csv': csv_file}
