"""Damage the files of interrupted and finished jobs, as a power loss does, and continue.

    python -m experiments.stress.power_loss --output=experiments/results/power_loss_cpu.json

A run, two seeds in one program, and a sweep with halving stop before their last rounds, the seeds
also before one of their summaries, both also after the end. Then each of their files is emptied,
cut in half, filled with zeros or removed, alone and in pairs. The same command must continue with
the results of an undisturbed job, or name a damaged file and say what to do. Programs are compiled
once, and no true pictures are drawn.
"""

import contextlib
import functools
import itertools
import json
import logging
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import jaxfed
from experiments.benchmarks.measuring import reporting
from jaxfed import Config
from jaxfed.internal import console, files
from jaxfed.recording import run_files
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.runs import simulate
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.prepare import Prepared
from jaxfed.runs.rounds import Stop
from jaxfed.runs.simulate import Result
from jaxfed.sweeps import grid, runner, sweep, training

ROUNDS, STOP = 5, 4  # rounds in all, and before the interruption; checkpoints hold 2 and 3
# State on server and clients, measures that depend on earlier rounds, a checkpoint a round.
SETTINGS: dict[str, Any] = {
    'method': 'scaffold+fedavgm',
    'model': 'mlp',
    'rounds': ROUNDS,
    'num_clients': 6,
    'clients_per_round': 2,
    'local_epochs': 1,
    'measure': 'forgetting',
    'devices': '1',
    'lanes': 1,
    'checkpoint_every': 1,
    'csv': True,
}
GRID, HALVING = 'learning_rate=0.01,0.03', (3,)  # one of the sweep's two runs stops early
TOLERANCE = 1e-5  # of a run that starts again alone, in another program
After = Callable[[int], object]  # called with the number of each round that was trained
Damage = Callable[[Path], object]


class Job(NamedTuple):
    """Experiments in a folder, and what their results are compared by."""

    train: Callable[[Path, After], list[Any] | None]  # the results, if it reads them
    finish: Callable[[Path], list[Any]]  # trains to the last round, or reads; returns the results
    last: str  # the folder of the last experiment
    tolerance: float


class Stopped(Exception):
    """Training was stopped between two rounds."""


class Damaged(NamedTuple):
    """A file, and what happens to it."""

    path: Path  # relative to the folder
    damage: str  # of `DAMAGES`


def empty(path: Path) -> None:
    """Leaves a file without content."""
    path.write_bytes(b'')


def halve(path: Path) -> None:
    """Cuts the second half of a file off."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    """Replaces the content of a file by zeros, as file systems do that had only kept its size."""
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES: dict[str, Damage] = {
    'emptied': empty, 'halved': halve, 'zeroed': zero, 'removed': Path.unlink,
}  # fmt: skip
ADVICE = re.compile(r'remove|use a copy|another copy|another directory|start again|move ')


@contextlib.contextmanager
def fast_runs(*, pictures: bool = False) -> Iterator[None]:
    """Runs of the same work directories share programs, and draw true pictures only if wanted."""
    prepared: dict[tuple[Path, ...], Prepared] = {}
    prepare = simulate.prepare

    def draw(_: Any, path: Path, **title: str) -> None:
        path.write_text('a picture')

    def prepare_once(experiments: Sequence[Experiment]) -> Prepared:
        key = tuple(experiment.workdir for experiment in experiments)
        if key not in prepared:
            prepared[key] = prepare(experiments)
        made = prepared[key]
        return made._replace(
            server=jax.tree.map(jnp.copy, made.server),
            client_states=jax.tree.map(np.copy, made.client_states),
        )

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(simulate, 'prepare', prepare_once))
        for picture in () if pictures else ('draw_heatmap', 'draw_accuracy'):
            stack.enter_context(mock.patch.object(simulate, picture, draw))
        yield


def experiments_in(folder: Path, seeds: int) -> dict[str, Config]:
    """Name -> settings of the seeds in a folder."""
    return {
        f's{s}': Config(**SETTINGS, seed=s, workdir=str(folder / f's{s}')) for s in range(seeds)
    }


def train_seeds(seeds: int, folder: Path, after: After) -> None:
    """Trains the seeds of a folder in one program."""

    def stop(round_: int, *_: object) -> Sequence[int]:
        after(round_)
        return ()

    experiments = runner.set_up_all(experiments_in(folder, seeds).values())
    training.train_group(experiments, folder, stop_of=lambda numbers: stop)


def finish_run(folder: Path) -> list[Any]:
    """Trains the run of a folder, or reads its results."""
    [config] = experiments_in(folder, 1).values()
    return [values(jaxfed.simulate(config))]


def finish_seeds(folder: Path) -> list[Any]:
    """Trains the two seeds of a folder, or reads their results."""
    results = jaxfed.simulate_all(experiments_in(folder, 2), folder).values()
    return [values(result) for result in results if isinstance(result, Result)]


def train_sweep(folder: Path, after: After) -> list[Any]:
    """Trains the sweep of a folder, or reads its results and its table.

    Raises:
      ValueError: with the first error that the sweep has shown.
    """
    config = Config(**SETTINGS, validation=0.2)
    members = sweep.expand(config, grid.parse_grid(GRID, config), 1, folder)

    inner = sweep.halving

    def halving(rungs: Sequence[int], points: Sequence[grid.Point]) -> Stop:
        halve = inner(rungs, points)

        def stop(round_: int, *others: Any) -> Sequence[int]:
            after(round_)
            return halve(round_, *others)

        return stop

    errors: list[str] = []
    with (
        mock.patch.object(sweep, 'halving', halving),
        mock.patch.object(console, 'show_error', errors.append),
    ):
        sweep.run(members, folder, rungs=HALVING)
    if errors:
        raise ValueError(errors[0])
    results = [values(runner.read_result(Path(str(m.config.workdir)))) for m in members]
    table = (folder / run_files.TABLE).read_text().splitlines()[1:]
    return [*results, [float(cell) for row in table for cell in row.split(',') if cell]]


def values(result: Result) -> tuple[Any, Any]:
    """The metrics of a run, except for times, and its final parameters."""
    metrics = [{k: v for k, v in e.items() if 'seconds' not in k} for e in result.metrics]
    return metrics, result.params


JOBS = {
    'run': Job(functools.partial(train_seeds, 1), finish_run, 's0', 0),
    'seeds': Job(functools.partial(train_seeds, 2), finish_seeds, 's1', TOLERANCE),
    'sweep': Job(
        train_sweep,
        functools.partial(train_sweep, after=lambda round_: None),
        'learning_rate0.03_seed0',
        TOLERANCE,
    ),
}


def interrupt(job: Job, folder: Path) -> None:
    """Trains a job and stops after `STOP` rounds."""

    def after(round_: int) -> None:
        if round_ == STOP:
            raise Stopped

    with contextlib.suppress(Stopped):
        job.train(folder, after)


def omit_summary(job: Job, folder: Path) -> None:
    """Trains a job and stops before its last summary."""

    def write_json(path: Path, value: Any) -> None:
        if path == folder / job.last / run_files.SUMMARY:
            raise Stopped
        files.write_json(path, value)

    with contextlib.suppress(Stopped), mock.patch.object(run_files, 'write_json', write_json):
        job.finish(folder)


def are_equal(results: Sequence[Any], others: Sequence[Any], tolerance: float = 0) -> bool:
    """Whether the results of two jobs are the same."""

    def close(a: Any, b: Any) -> bool:
        return np.allclose(a, b, rtol=tolerance, atol=tolerance)

    try:
        return jax.tree.all(jax.tree.map(close, results, others))
    except ValueError:  # of trees of another structure
        return False


def outcome(job: Job, folder: Path, damaged: Iterable[Path], reference: Sequence[Any]) -> str:
    """What a damaged folder leads to.

    Args:
      job: its experiments.
      folder: holds them.
      damaged: files relative to it.
      reference: the results of an undisturbed job.

    Returns:
      'continued', 'named' if an error names a damaged file and says what to do, else a description
      of the failure.
    """
    try:
        results = job.finish(folder)
    except (ValueError, OSError) as error:
        message = str(error)
        named = any(_is_named(path, message) for path in damaged)
        clear = '\n' not in message and named and ADVICE.search(message)
        return 'named' if clear else f'unclear: {message}'
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    return 'continued' if are_equal(results, reference, job.tolerance) else 'other results'


def _is_named(path: Path, message: str) -> bool:
    """Whether a message names a file, or says which folder lacks it."""
    if FOLDER in path.parts:  # the files of a checkpoint belong together
        return FOLDER in message
    lacking = str(path.parent) in message and f' without {path.name}' in message
    return lacking or str(path) in message


def cases(
    folder: Path, damages: Iterable[str], singles: int, pairs: int, rng: random.Random
) -> list[tuple[Damaged, ...]]:
    """`singles` damages of one file alone, and `pairs` pairs of damages of two files, or all."""
    paths = [path for path in sorted(folder.rglob('*')) if path.is_file() and path.stat().st_size]
    each = [Damaged(path.relative_to(folder), damage) for path in paths for damage in damages]
    both = [(a, b) for a, b in itertools.combinations(each, 2) if a.path != b.path]
    together = rng.sample(both, min(pairs, len(both)))
    alone = each if singles >= len(each) else rng.sample(each, singles)
    return [*((one,) for one in alone), *together]


# Name -> job, and what precedes the damage.
KINDS: dict[str, tuple[Job, Callable[[Job, Path], object]]] = {
    'run': (JOBS['run'], interrupt),
    'seeds': (JOBS['seeds'], interrupt),
    'seeds without a summary': (JOBS['seeds'], omit_summary),
    'finished seeds': (JOBS['seeds'], lambda job, folder: job.finish(folder)),
    'sweep': (JOBS['sweep'], interrupt),
    'finished sweep': (JOBS['sweep'], lambda job, folder: job.finish(folder)),
}


def survive(
    kind: str, *, singles: int, pairs: int, seed: int = 0, damages: Iterable[str] = DAMAGES
) -> dict[str, Any]:
    """Damages the files of a kind of folder in turn.

    Args:
      kind: of `KINDS`.
      singles: the most damages of one file.
      pairs: the most damages of two files.
      seed: of the choice of both.
      damages: names of `DAMAGES`.

    Returns:
      Numbers of cases by outcome, and the failures in words.
    """
    job, begin = KINDS[kind]
    counts = {'singles': 0, 'pairs': 0, 'continued': 0, 'named': 0}
    failures = []
    with fast_runs(), tempfile.TemporaryDirectory() as temporary:
        folder, original = Path(temporary, 'folder'), Path(temporary, 'original')
        reference = job.finish(folder)
        shutil.rmtree(folder)
        begin(job, folder)
        folder.rename(original)
        for case in cases(original, [*damages], singles, pairs, random.Random(seed)):
            shutil.copytree(original, folder)  # at the same place, because records name it
            for path, damage in case:
                DAMAGES[damage](folder / path)
            result = outcome(job, folder, [path for path, _ in case], reference)
            shutil.rmtree(folder)
            counts['singles' if len(case) == 1 else 'pairs'] += 1
            if result in counts:
                counts[result] += 1
            else:
                words = ', '.join(f'{path} {damage}' for path, damage in case)
                failures.append(f'{words}: {result}')
    return {**counts, 'failures': failures}


def main(args: flags.FlagValues) -> None:
    """Damages, prints and writes."""
    logging.getLogger('jaxfed').setLevel(logging.ERROR)  # warnings of damaged checkpoints
    began = time.monotonic()
    found = {
        kind: survive(kind, singles=sys.maxsize, pairs=args.pairs, seed=args.seed) for kind in KINDS
    }
    print(json.dumps(found, indent=2))
    seconds = round(time.monotonic() - began)
    described = {'machine': reporting.machine(), 'settings': SETTINGS, 'seconds': seconds}
    reporting.write(described | found, args.output)
    if any(result['failures'] for result in found.values()):
        raise SystemExit(1)


if __name__ == '__main__':
    flags.DEFINE_integer('pairs', 200, 'Pairs of damaged files for each kind.', lower_bound=0)
    flags.DEFINE_integer('seed', 0, 'Seed of the choice of pairs.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
