"""Copies of metrics.jsonl while training: CSV, TensorBoard, Weights & Biases, MLflow.

If a tracker fails during training, a warning and summary.json report it, and the tracker is closed.
Training continues, because metrics.jsonl already has the round.
"""

import contextlib
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxfed.config import Config
from jaxfed.internal import console
from jaxfed.internal.csv_text import csv_text
from jaxfed.internal.files import write_atomic
from jaxfed.methods import Part
from jaxfed.metrics.selection import fields_by_class
from jaxfed.recording import run_files
from jaxfed.recording.entries import Entry

CSV = 'metrics.csv'
PACKAGES = {
    'tensorboard': 'tensorboardX',
    'wandb': 'wandb',
    'mlflow': 'mlflow',
}  # flag and extra -> package

Tracker = Callable[[Entry], None]
Open = Callable[[Path, dict[str, Any]], contextlib.AbstractContextManager[Tracker]]


class Unavailable(ValueError):
    """A tracker cannot be opened."""


def check(config: Config) -> None:
    """Raise a ValueError that names the extra if a package of the chosen trackers is missing."""
    for flag, package in PACKAGES.items():
        # A folder wandb/ of earlier runs can be imported, but has no origin.
        spec = importlib.util.find_spec(package) if getattr(config, flag) else None
        if getattr(config, flag) and (spec is None or spec.origin is None):
            raise ValueError(
                f"--{flag} needs the package {package}: pip install -e '.[{flag}]', or omit the "
                'flag.'
            )


@contextlib.contextmanager
def follow(
    config: Config, parts: Sequence[Part], workdir: Path
) -> Iterator[tuple[Tracker, dict[str, str]]]:
    """Open the chosen trackers; close them when the block ends.

    Yields:
      A function to call with the entry of each finished round, and a dictionary that it fills:
      tracker -> reason and round of its failure.

    Raises:
      Unavailable: if a tracker cannot be opened; a work directory without rounds is then discarded.
    """
    chosen = [name for name in OPEN if getattr(config, name)]
    described = run_files.describe_config(config, list(parts)) if chosen else {}
    opened: dict[str, tuple[contextlib.AbstractContextManager[Tracker], Tracker]] = {}
    failed: dict[str, str] = {}

    def report(name: str, failure: str) -> None:
        if name not in failed:
            failed[name] = failure
            console.show_warning(f'--{name}: {failure}; metrics.jsonl has everything.')

    def close(name: str, reason: BaseException | None = None) -> None:
        # The reason lets W&B mark a run as failed.
        details = (type(reason), reason, reason.__traceback__) if reason else (None, None, None)
        try:
            opened.pop(name)[0].__exit__(*details)
        except Exception as error:
            report(name, f'closing it: {_one_line(error)}')

    def track(entry: Entry) -> None:
        for name, (_, tracker) in list(opened.items()):
            try:
                tracker(entry)
            except Exception as error:  # no failure of a tracker may stop training
                report(name, f'failed in round {entry["round"]}: {_one_line(error)}')
                close(name, error)

    ending: BaseException | None = None
    try:
        for name in chosen:
            manager = OPEN[name](workdir, described)
            try:
                opened[name] = manager, manager.__enter__()
            except Exception as error:
                run_files.discard_workdir(workdir)
                hint = '; WANDB_MODE=offline keeps it on disk' if name == 'wandb' else ''
                message = f'--{name} cannot be used: {_one_line(error)}{hint}.'
                raise Unavailable(message) from error
        yield track, failed
    except BaseException as error:
        ending = error
        raise
    finally:
        for name in list(opened):
            close(name, ending)


def clear(workdir: Path) -> None:
    """Remove the trackers' files of an interrupted run; those chosen receive all rounds again.

    Runs of Weights & Biases and MLflow remain, because others may see them.
    """
    (workdir / CSV).unlink(missing_ok=True)
    shutil.rmtree(workdir / 'tensorboard', ignore_errors=True)


def _one_line(error: Exception) -> str:
    return ' '.join(str(error).split()).rstrip('.') or type(error).__name__


def scalars(entry: Entry) -> dict[str, float]:
    """Return the numbers of a round; lists over classes become 'class_accuracy/0' and so on."""
    flat = {name: value for name, value in entry.items() if name != 'round'}
    for name in fields_by_class():
        if isinstance(values := entry.get(name), list):
            flat |= {f'{name}/{c}': value for c, value in enumerate(values)}
    return {name: value for name, value in flat.items() if type(value) in (int, float)}


@contextlib.contextmanager
def csv_file(workdir: Path, config: dict[str, Any]) -> Iterator[Tracker]:
    """Write metrics.csv: a row for each round, lists as columns class_accuracy_0 and so on.

    The file is rewritten when a field gets its first value, so the header is always complete.

    Raises:
      FileExistsError: if the file exists.
    """
    path = workdir / CSV
    if path.exists():
        raise FileExistsError(f'{path} already exists without {run_files.METRICS}; move it away')
    fields: dict[str, int] = {}  # field -> its number
    columns: dict[str, tuple[int, int]] = {}  # column -> number of its field, index in its list
    rows: list[dict[str, Any]] = []

    def cells(entry: Entry) -> Iterator[tuple[str, tuple[int, int], Any]]:
        """Yield the columns of an entry with their places and values."""
        for name, value in entry.items():
            place = fields.setdefault(name, len(fields))
            if isinstance(value, list):
                if not any(isinstance(v, list) for v in value):
                    yield from ((f'{name}_{i}', (place, i), v) for i, v in enumerate(value))
            elif value is not None and not isinstance(value, dict):
                yield name, (place, -1), value

    def in_order(row: dict[str, Any], header: list[str]) -> list[Any]:
        return [row.get(column, '') for column in header]

    def track(entry: Entry) -> None:
        row, known = {}, len(columns)
        for column, place, value in cells(entry):
            row[column] = value
            columns.setdefault(column, place)
        rows.append(row)
        header = sorted(columns, key=columns.__getitem__)
        if len(columns) > known:
            write_atomic(path, csv_text([header, *(in_order(row, header) for row in rows)]))
        else:
            with path.open('a', newline='') as file:
                file.write(csv_text([in_order(row, header)]))

    yield track


@contextlib.contextmanager
def tensorboard(workdir: Path, config: dict[str, Any]) -> Iterator[Tracker]:
    """Write an event file in WORKDIR/tensorboard, with the settings as hyper-parameters."""
    # EventsWriter writes in this thread, so a full disk raises an error in the same round.
    # SummaryWriter's thread ends at an error, and training then waits for its queue forever.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.summary import hparams

    folder = workdir / 'tensorboard'
    folder.mkdir(exist_ok=True)
    with contextlib.closing(EventsWriter(str(folder / 'events'))) as writer:

        def write(summary: Any, step: int) -> None:
            writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))
            writer.flush()

        _, session_start, _ = hparams(hyperparameters(config), {})
        write(session_start, 0)
        yield lambda entry: write(
            Summary(
                value=[Summary.Value(tag=k, simple_value=v) for k, v in scalars(entry).items()]
            ),
            entry['round'],
        )


def hyperparameters(config: dict[str, Any]) -> dict[str, str | int | float | bool]:
    """Flatten config.json to plain values, with names such as 'fedlmd.beta'; omit None."""
    flat = run_files.flat_settings(config)
    return {name: value for name, value in flat.items() if isinstance(value, str | int | float)}


@contextlib.contextmanager
def wandb(workdir: Path, config: dict[str, Any]) -> Iterator[Tracker]:
    """Log to a run of Weights & Biases with its files in WORKDIR/wandb.

    W&B's environment variables set project, entity and mode; WANDB_MODE=offline needs no network
    and no login.
    """
    import wandb as library

    run = library.init(
        project=os.environ.get('WANDB_PROJECT', 'jaxfed'),
        name=os.environ.get('WANDB_NAME', workdir.name),
        dir=workdir,
        config=config,
        # W&B must not capture output; experiments in one program have a run each at the same time.
        settings=library.Settings(console='off', reinit='create_new'),
    )
    exit_code = 1
    try:
        yield lambda entry: run.log(scalars(entry), step=entry['round'])
        exit_code = 0
    finally:
        run.finish(exit_code=exit_code)


@contextlib.contextmanager
def mlflow(workdir: Path, config: dict[str, Any]) -> Iterator[Tracker]:
    """Log to a run of MLflow, in WORKDIR/mlruns unless MLFLOW_TRACKING_URI names another store.

    MLFLOW_EXPERIMENT_NAME and MLFLOW_RUN_NAME name the experiment and the run.
    """
    os.environ.setdefault('MLFLOW_ALLOW_FILE_STORE', 'true')  # it prefers a database
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    # A client, because experiments in one program have a run each at the same time.
    store = (workdir / 'mlruns').absolute().as_uri()
    client = MlflowClient(tracking_uri=os.environ.get('MLFLOW_TRACKING_URI', store))
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'jaxfed')
    known = client.get_experiment_by_name(name)
    number = known.experiment_id if known else client.create_experiment(name)
    run = client.create_run(number, run_name=os.environ.get('MLFLOW_RUN_NAME', workdir.name))
    params = [Param(key, str(value)) for key, value in hyperparameters(config).items()]
    client.log_batch(run.info.run_id, params=params)
    status = 'FAILED'

    def track(entry: Entry) -> None:
        time_ = int(1000 * time.time())
        values = [Metric(k, v, time_, entry['round']) for k, v in scalars(entry).items()]
        client.log_batch(run.info.run_id, metrics=values)

    try:
        yield track
        status = 'FINISHED'
    finally:
        client.set_terminated(run.info.run_id, status)


# Those that may need a network are first: they fail before the others create files.
OPEN: dict[str, Open] = {
    'wandb': wandb,
    'mlflow': mlflow,
    'tensorboard': tensorboard,
    'csv': csv_file,
}
