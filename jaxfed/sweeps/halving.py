"""Successive halving: the worse half of the settings stops early."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.internal.messages import printable
from jaxfed.recording import run_files
from jaxfed.runs.experiment import method_of, parts_of
from jaxfed.runs.rounds import Stop
from jaxfed.runs.shared_program import program_key
from jaxfed.sweeps.training import has_checkpoints

SETTINGS_FILE = 'sweep.json'  # the settings of a sweep that are not those of a run


def parse_halving(text: str | None, config: Config) -> list[int]:
    """Return the rounds of --halving, as [10, 20] for '10,20'; [] for None and ''."""
    if not text:
        return []
    words = text.split(',')
    if not all(word.isdecimal() and 0 < int(word) < config.rounds for word in words):
        raise ValueError(
            f'--halving must be rounds below --rounds={config.rounds}, joined by commas as in '
            f'--halving=10,20, got {text}.'
        )
    if not config.validation:
        raise ValueError(
            f'--halving={text} compares settings on held-out training data, but --validation=0; '
            'set it, as in --validation=0.1.'
        )
    if method_of(config).has_local_models:
        raise ValueError(
            f'--halving={text} compares global models, but --method={config.method} has a model '
            'for each client; remove the flag.'
        )
    rounds = sorted({int(word) for word in words})
    if rounds[0] < config.eval_every:
        raise ValueError(
            f'--halving={text}: no round up to {rounds[0]} is evaluated with '
            f'--eval_every={config.eval_every}; halve later, or evaluate more often.'
        )
    return rounds


def check_together(config: Config, rungs: Sequence[int], *, seeds: int, most: int) -> None:
    """Raise a ValueError if no program can hold two settings, which halving compares.

    Args:
      config: the settings of one experiment.
      rungs: the rounds after which settings stop; () without halving.
      seeds: of a setting.
      most: the largest number of experiments in a program, 0 for all.
    """
    if rungs and config.stream == 'on':
        raise ValueError(
            f'--halving={joined(rungs)} compares settings in one program, but --stream=on '
            'trains every experiment alone; remove one of the two.'
        )
    if rungs and 0 < most < 2 * seeds:
        raise ValueError(
            f'--halving={joined(rungs)} compares settings in one program: --together must be at '
            f'least {2 * seeds}, two settings with {console.counted(seeds, "seed")}, got {most}.'
        )


def halving(rounds: Sequence[int], settings: Sequence[Hashable]) -> Stop:
    """Successive halving: after each of these rounds the worse half of the settings stops.

    The score of a setting is the mean over its seeds of the last accuracy on held-out training
    examples; a seed that diverged counts as minus infinity. Of an odd number the larger half
    continues, and as many as if none had diverged.

    Args:
      rounds: the rounds after which settings stop.
      settings: X, one for each experiment, equal for the seeds of a setting.

    Returns:
      The `stop` of `simulate.train_experiments`.

    Reference:
      Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter
      Optimization, AISTATS 2016, figure 2.
    """

    def stop(
        round_: int, metrics: Sequence[list[dict[str, Any]]], running: Sequence[int]
    ) -> list[int]:
        if round_ not in rounds:
            return []
        last = [_last_accuracy(m) if x in running else -np.inf for x, m in enumerate(metrics)]

        def score(setting: Hashable) -> float:
            return float(np.mean([a for a, s in zip(last, settings, strict=True) if s == setting]))

        ranked = sorted(dict.fromkeys(settings[x] for x in running), key=score, reverse=True)
        kept = len(set(settings))
        for _ in range(1 + sorted(rounds).index(round_)):
            kept = (kept + 1) // 2
        return [x for x in running if settings[x] in ranked[kept:]]

    return stop


def _last_accuracy(metrics: Sequence[dict[str, Any]]) -> float:
    accuracy = (entry['test_accuracy'] for entry in reversed(metrics))
    return next((value for value in accuracy if value is not None), -np.inf)


def warn_of_lone_settings(groups: Sequence[Sequence[int]], settings: Sequence[Hashable]) -> None:
    """Warn if a setting is alone in its program, as none stops early there.

    Args:
      groups: numbers of experiments, one group a program.
      settings: of each experiment.
    """
    alone = sum(len({settings[i] for i in numbers}) == 1 for numbers in groups)
    if not alone:
        return
    missing = 'no two of these can share one, so none stops early'
    if alone < len(groups):
        lone = console.counted(alone, 'setting')
        missing = f'{lone} of these can share none and will not stop early'
    console.show_warning(f'--halving compares settings in one program, but {missing}.')


def check_halving(folder: Path, rungs: Sequence[int]) -> None:
    """Raise a ValueError if a folder holds a sweep with another --halving."""
    if (folder / SETTINGS_FILE).exists():
        there = files.read_json(folder / SETTINGS_FILE).get('halving')
        if there != joined(rungs):
            raise ValueError(
                f'--halving={joined(rungs)}: --workdir={folder} holds a sweep with --halving='
                f'{printable(str(there))}; repeat it, or name another directory.'
            )


def record_halving(folder: Path, rungs: Sequence[int]) -> None:
    """Write the rounds of halving into the folder of a sweep; errors as of `check_halving`."""
    check_halving(folder, rungs)  # another process may have begun in the meantime
    files.write_json(folder / SETTINGS_FILE, {'halving': joined(rungs)})


def joined(rungs: Sequence[int]) -> str:
    """The rounds as the value of --halving."""
    return ','.join(map(str, rungs))


def check_compared(unfinished: Sequence[Config], done: Sequence[Config], folder: Path) -> None:
    """Raise a ValueError if a run that begins again was to be compared with runs that have ended.

    Args:
      unfinished: the settings of runs without a summary, each with its work directory.
      done: those of the other runs of the sweep.
      folder: the parent of the work directories.
    """

    def key(config: Config) -> str:
        return program_key(config, parts_of(config))

    ended = {key(config) for config in done}
    for config in unfinished:
        workdir = Path(str(config.workdir))
        # A run that diverged was never finished; alone it diverges again.
        finished = any((workdir / name).exists() for name in (run_files.MODEL, run_files.CURVE))
        begun = (workdir / run_files.CONFIG).exists() and not has_checkpoints(workdir, folder)
        lost = finished and begun and not (workdir / run_files.SUMMARY).exists()
        if lost and key(config) in ended:
            raise ValueError(
                f'{workdir} holds a finished run without {run_files.SUMMARY}, and those that '
                '--halving compares it with have ended: use a copy of the file, or move '
                f'{workdir} away to train it alone.'
            )
