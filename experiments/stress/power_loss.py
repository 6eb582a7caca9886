"""Damage the files of interrupted and finished runs, as a power loss does, and continue.

    python -m experiments.stress.power_loss --output=experiments/results/power_loss_cpu.json

A run, and two seeds in one program, stop before their last rounds, the seeds also before one of
their summaries and after both. Then each of their files is emptied, cut in half, filled with
zeros or removed, alone and in pairs. The same command must continue with the results of an
undisturbed run, or name a damaged file and say what to do. Programs are compiled once, and no
pictures are drawn.
"""

import contextlib
import itertools
import json
import logging
import random
import re
import shutil
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
from experiments.benchmarks import reporting
from jaxfed import Config
from jaxfed.internal import files
from jaxfed.recording import run_files
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.runs import simulate
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.prepare import Prepared
from jaxfed.runs.simulate import Result
from jaxfed.sweeps import runner, training

ROUNDS, STOP = 5, 4  # rounds in all, and before the interruption; checkpoints hold 2 and 3
# State on server and clients, measures that depend on earlier rounds, a checkpoint a round.
JOB: dict[str, Any] = {
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
}
TOLERANCE = 1e-5  # of a run that starts again alone, in another program
Damage = Callable[[Path], object]


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
def cheap_runs() -> Iterator[None]:
    """Runs draw no pictures, and those of the same work directories share programs."""
    prepared: dict[tuple[Path, ...], Prepared] = {}
    prepare = simulate.prepare

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
        for picture in ('draw_heatmap', 'draw_accuracy'):
            stack.enter_context(mock.patch.object(simulate, picture))
        yield


def experiments_in(folder: Path, seeds: int) -> dict[str, Config]:
    """Name -> settings of the experiments of a folder."""
    return {f's{s}': Config(**JOB, seed=s, workdir=str(folder / f's{s}')) for s in range(seeds)}


def train(folder: Path, seeds: int, after: Callable[[int], object]) -> list[Any]:
    """Trains the experiments of a folder; `after` is called with the number of each round."""

    def stop(round_: int, *_: object) -> Sequence[int]:
        after(round_)
        return ()

    experiments = runner.set_up_all(experiments_in(folder, seeds).values())
    return training.train_group(experiments, folder, stop_of=lambda numbers: stop)


def interrupt(folder: Path, seeds: int) -> None:
    """Trains the experiments of a folder and stops after `STOP` rounds."""

    def after(round_: int) -> None:
        if round_ == STOP:
            raise Stopped

    with contextlib.suppress(Stopped):
        train(folder, seeds, after)


def omit_summary(folder: Path, seeds: int) -> None:
    """Trains the experiments of a folder and stops before the summary of the last."""

    def write_json(path: Path, value: Any) -> None:
        if path == folder / f's{seeds - 1}' / run_files.SUMMARY:
            raise Stopped
        files.write_json(path, value)

    with contextlib.suppress(Stopped), mock.patch.object(run_files, 'write_json', write_json):
        train(folder, seeds, lambda round_: None)


def finish(folder: Path, seeds: int) -> list[Result]:
    """Trains the experiments of a folder to their last round, or reads their results."""
    configs = experiments_in(folder, seeds)
    if seeds == 1:
        return [jaxfed.simulate(config) for config in configs.values()]
    results = jaxfed.simulate_all(configs, folder).values()
    return [result for result in results if isinstance(result, Result)]


def are_equal(results: Sequence[Result], others: Sequence[Result], tolerance: float = 0) -> bool:
    """Whether metrics, except for times, and final parameters are the same."""

    def values(result: Result) -> tuple[Any, Any]:
        metrics = [{k: v for k, v in e.items() if 'seconds' not in k} for e in result.metrics]
        return metrics, result.params

    def close(a: Any, b: Any) -> bool:
        return np.allclose(a, b, rtol=tolerance, atol=tolerance)

    # Of trees of another structure jax.tree.map raises a ValueError.
    pairs = zip(results, others, strict=True)
    same = [jax.tree.leaves(jax.tree.map(close, values(a), values(b))) for a, b in pairs]
    return all(map(all, same))


def outcome(folder: Path, damaged: Iterable[Path], reference: Sequence[Result]) -> str:
    """What a damaged folder leads to.

    Args:
      folder: holds the experiments.
      damaged: files relative to it.
      reference: the results of undisturbed experiments.

    Returns:
      'continued', 'named' if an error names a damaged file and says what to do, else a description
      of the failure.
    """
    try:
        results = finish(folder, len(reference))
    except (ValueError, OSError) as error:
        message = str(error)
        named = any(_is_named(path, message) for path in damaged)
        clear = '\n' not in message and named and ADVICE.search(message)
        return 'named' if clear else f'unclear: {message}'
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    tolerance = TOLERANCE if len(reference) > 1 else 0
    return 'continued' if are_equal(results, reference, tolerance) else 'other results'


def _is_named(path: Path, message: str) -> bool:
    """Whether a message names a file, or says which folder lacks it."""
    if FOLDER in path.parts:  # the files of a checkpoint belong together
        return FOLDER in message
    lacking = f'{path.parent} ' in message and f' without {path.name}' in message
    return lacking or str(path) in message


def cases(
    folder: Path, damages: Iterable[str], pairs: int, rng: random.Random
) -> list[tuple[Damaged, ...]]:
    """Each damage of every file alone, and `pairs` pairs of damages of two files, or all."""
    paths = [path for path in sorted(folder.rglob('*')) if path.is_file() and path.stat().st_size]
    each = [Damaged(path.relative_to(folder), damage) for path in paths for damage in damages]
    both = [(a, b) for a, b in itertools.combinations(each, 2) if a.path != b.path]
    return [*((one,) for one in each), *rng.sample(both, min(pairs, len(both)))]


# Name -> seeds, and what precedes the damage.
KINDS: dict[str, tuple[int, Callable[[Path, int], object]]] = {
    'run': (1, interrupt),
    'sweep': (2, interrupt),
    'sweep without a summary': (2, omit_summary),
    'finished sweep': (2, finish),
}


def survive(
    kind: str, pairs: int, seed: int = 0, damages: Iterable[str] = DAMAGES
) -> dict[str, Any]:
    """Damages the files of a kind of folder in turn.

    Args:
      kind: of `KINDS`.
      pairs: pairs of files to damage, next to every single file.
      seed: of the choice of pairs.
      damages: names of `DAMAGES`.

    Returns:
      Numbers of cases by outcome, and the failures in words.
    """
    seeds, begin = KINDS[kind]
    counts = {'singles': 0, 'pairs': 0, 'continued': 0, 'named': 0}
    failures = []
    with cheap_runs(), tempfile.TemporaryDirectory() as temporary:
        folder, original = Path(temporary, 'folder'), Path(temporary, 'original')
        reference = finish(folder, seeds)
        shutil.rmtree(folder)
        begin(folder, seeds)
        folder.rename(original)
        for case in cases(original, [*damages], pairs, random.Random(seed)):
            shutil.copytree(original, folder)  # at the same place, because records name it
            for path, damage in case:
                DAMAGES[damage](folder / path)
            result = outcome(folder, [path for path, _ in case], reference)
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
    found = {kind: survive(kind, args.pairs, args.seed) for kind in KINDS}
    print(json.dumps(found, indent=2))
    seconds = round(time.monotonic() - began)
    described = {'machine': reporting.machine(), 'job': JOB, 'seconds': seconds}
    reporting.write(described | found, args.output)
    if any(result['failures'] for result in found.values()):
        raise SystemExit(1)


if __name__ == '__main__':
    flags.DEFINE_integer('pairs', 200, 'Pairs of damaged files for each kind.', lower_bound=0)
    flags.DEFINE_integer('seed', 0, 'Seed of the choice of pairs.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
