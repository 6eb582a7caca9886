"""A grid of settings times seeds, as --sweep and --seeds name it, and what comes of it."""

import csv
import dataclasses
import difflib
import io
import itertools
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed import methods
from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.partition import partition_settings
from jaxfed.recording import display, run_files
from jaxfed.runs import checks
from jaxfed.runs.experiment import make_experiment
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.prepare import memory_in_words, prepare
from jaxfed.sweeps.halving import halving_of
from jaxfed.sweeps.training import group, is_done, set_up_all, share_images, train_group

TABLE = 'sweep.csv'

# Numbers that are no part of an experiment's outcome, or that have a flag of their own.
_NOT_SWEPT = ('checkpoint_every', 'eval_every', 'keep', 'lanes', 'local_eval_every', 'seed')

Setting = tuple[tuple[str, float], ...]  # (name, value) of each swept parameter


class Member(NamedTuple):
    """One experiment of a sweep."""

    setting: Setting
    seed: int
    config: Config  # with its own work directory


class Outcome(NamedTuple):
    """What the seeds of one setting came to; None where nothing was evaluated."""

    setting: Setting
    final: list[float | None]
    best: list[float | None]
    rounds: list[int]  # that were trained
    given_up: int  # seeds that halving gave up
    failed: int  # seeds that diverged, did not fit or are not done


def parse(text: str, config: Config) -> list[Setting]:
    """Reads a grid.

    Args:
      text: as 'beta=.1,.3,1 tau=1,3'; '' for a grid of one, that of the settings.
      config: the settings that it changes.

    Returns:
      Every combination of values, the last parameter changing fastest.

    Raises:
      ValueError: for a parameter that there is not, is no number or is named twice, or a value
        that is none.
    """
    grid: dict[str, list[float]] = {}
    for word in text.split():
        name, equals, listed = word.removeprefix('--').partition('=')
        if not equals or not name:
            raise ValueError(
                f'--sweep={text}: {word!r} must be a parameter and its values, as in beta=.1,.3,1.'
            )
        if name in grid:
            raise ValueError(f'--sweep={text}: {name} is named twice; put its values together.')
        kind = _kind(name, config, text)
        values = []
        for value in listed.split(','):
            try:
                values.append(kind(value))
            except ValueError:
                wanted = 'an integer' if kind is int else 'a number'
                raise ValueError(
                    f'--sweep={text}: {name}={value!r} must be {wanted}; values are joined by '
                    'commas, without spaces.'
                ) from None
        if len(set(values)) < len(values):
            raise ValueError(f'--sweep={text}: {name} has a value twice.')
        grid[name] = values
    return [tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _kind(name: str, config: Config, text: str) -> type[float] | type[int]:
    """Int or float, whichever a parameter is."""
    kinds = numeric(config)
    if name in kinds:
        return kinds[name]
    if name == 'seed':
        raise ValueError(f'--sweep={text}: seeds are told by --seeds=3 and --seed, the first.')
    if name in {field.name for field in dataclasses.fields(Config)}:
        raise ValueError(
            f'--sweep={text}: {name} is no number to sweep over; run it once for each value, or '
            'sweep over one of ' + ', '.join(kinds) + '.'
        )
    near = difflib.get_close_matches(name, kinds, n=3, cutoff=0.4)
    hint = f'did you mean {" or ".join(near)}? ' if near else ''
    raise ValueError(
        f'--sweep={text}: --method={config.method} and the settings have no {name}; {hint}There '
        f'are {", ".join(kinds)}.'
    )


def numeric(config: Config) -> dict[str, type[float] | type[int]]:
    """The parameters that can be swept over.

    Args:
      config: the settings; method and partition are read.

    Returns:
      Name, as of its flag -> int or float.
    """
    found: dict[str, Any] = {}
    parts = methods.resolve(config.method, config.hyperparameters)
    names = [key for _, values, _ in parts for key in values]
    fields = typing.get_type_hints(Config)
    for name, _, _ in parts:
        for key, parameter in methods.hyperparameters(name).items():
            # A short name says which only where it is one part's alone, and no setting's.
            plain = names.count(key) == 1 and key not in fields
            found |= {flag: parameter.annotation for flag in [key] * plain + [f'{name}.{key}']}
    own = partition_settings(config.partition)
    for name, parameter in own.items():
        found.setdefault(name, parameter.annotation)
    for name, kind in fields.items():
        kinds = set(typing.get_args(kind) or (kind,)) - {type(None)}
        unread = name in ('alpha', 'size_alpha') and name not in own
        if name not in _NOT_SWEPT and len(kinds) == 1 and not unread:
            found.setdefault(name, kinds.pop())
    return {name: kind for name, kind in found.items() if kind in (int, float)}


def expand(config: Config, settings: Sequence[Setting], seeds: int, folder: Path) -> list[Member]:
    """Makes the experiments of a sweep, their settings checked as far as that goes without data.

    Args:
      config: what they have in common.
      settings: from `parse`.
      seeds: of each setting, from that of `config` on.
      folder: of their work directories.

    Returns:
      The experiments, those of one setting one after another.

    Raises:
      ValueError: for settings that do not do.
    """
    if seeds < 1:
        raise ValueError(f'--seeds={seeds} must be at least 1.')
    if config.resume is not None:
        raise ValueError(
            f'--resume={config.resume}: a sweep goes on with what is not done, always; leave it '
            'out, or name another --workdir.'
        )
    files.check_writable(folder, '--workdir')
    if (folder / run_files.CONFIG).exists():
        raise ValueError(f'--workdir={folder} holds a run; name another directory for a sweep.')
    members = []
    for setting, number in itertools.product(settings, range(seeds)):
        seed = config.seed + number
        name = '_'.join([*(f'{key}{shown(value)}' for key, value in setting), f'seed{seed}'])
        own = _with(config, dict(setting), seed, folder / name)
        checks.check(own)
        parts = methods.resolve(own.method, own.hyperparameters)
        methods.build(parts, switch_round=own.switch_round)
        members.append(Member(setting, seed, own))
    return members


def shown(value: float) -> str:
    """A number in as few characters as tell it from all others.

    Args:
      value: finite.

    Returns:
      For instance '0.1', '-3' or '1e+30'.
    """
    short = f'{value:g}'
    return short if float(short) == value else repr(value)


def _with(config: Config, values: dict[str, float], seed: int, workdir: Path) -> Config:
    fields = {field.name for field in dataclasses.fields(Config)}
    own: dict[str, Any] = {name: value for name, value in values.items() if name in fields}
    extra = {*partition_settings(config.partition)} - fields
    hyper = {**config.hyperparameters}
    for name in values.keys() - fields - extra:
        # Given under its other name it would be given twice.
        bare = name.rpartition('.')[2]
        for other in [other for other in hyper if other.rpartition('.')[2] == bare]:
            if name in (other, bare) or other == bare:
                del hyper[other]
        hyper[name] = values[name]
    return dataclasses.replace(
        config,
        **own,
        partition_settings={
            **config.partition_settings,
            **{name: value for name, value in values.items() if name in extra},
        },
        hyperparameters=hyper,
        seed=seed,
        workdir=str(workdir),
    )


def check_together(most: int) -> int:
    """Checks --together.

    Args:
      most: experiments in a group.

    Returns:
      The same.

    Raises:
      ValueError: if it is negative.
    """
    if most < 0:
        raise ValueError(f'--together={most} must be at least 1, or 0 to choose.')
    return most


def run(
    members: Sequence[Member],
    folder: Path,
    *,
    rungs: Sequence[int] = (),
    most: int = 0,
    quiet: bool = True,
) -> list[Outcome]:
    """Trains the experiments of a sweep that are not done, and writes a table of all.

    Args:
      members: from `expand`.
      folder: of their work directories.
      rungs: rounds after which the worse half of the settings in a program is given up.
      most: experiments in a group; 0 for all where there are rungs, because settings of different
        groups are not compared, and else chooses as `together.group`.
      quiet: show nothing.

    Returns:
      What each setting came to.

    Raises:
      ValueError: for data that does not do, a folder that holds something else, or one in which
        another process is at work.
      OSError: if data cannot be read, or the table cannot be written.
    """
    left, groups = _groups(members, folder, rungs=rungs, most=most)
    experiments = set_up_all(member.config for member in left)
    folder.mkdir(parents=True, exist_ok=True)
    console.say(
        f'{len(members) - len(left)} of {len(members)} experiments are done, '
        f'{len(left)} are to be trained in {len(groups)} group(s).',
        quiet=quiet,
    )
    rounds = sum(member.config.rounds for member in left)
    progress = console.grid_progress(len(left), rounds, quiet=quiet)
    with files.alone(folder), progress as (begin, report):
        for places in groups:
            own = [left[i] for i in places]
            begin(name_of(own), sum(member.config.rounds for member in own), len(own))
            try:
                results = train_group(
                    [experiments[i] for i in places],
                    folder,
                    watch=lambda x, entry: report(entry),
                    stop_of=halving_of(rungs, [member.setting for member in own]),
                    quiet=quiet,
                )
            except (ValueError, OSError) as error:  # as of a full disk; other groups may do
                console.show_error(f'{name_of(own)}: {error}')
                continue
            for member, result in zip(own, results, strict=True):
                if isinstance(result, Exception):
                    console.show_error(f'{Path(str(member.config.workdir)).name}: {result}')
        outcomes = summarise(members)
        write_table(folder / TABLE, outcomes)
    return outcomes


def _groups(
    members: Sequence[Member], folder: Path, *, rungs: Sequence[int], most: int
) -> tuple[list[Member], list[list[int]]]:
    """The experiments that are not done, and which of them are trained together."""
    left = [member for member in members if not is_done(member.config)]
    all_of_them = len(left) if rungs else 0
    return left, group([member.config for member in left], folder, most=most or all_of_them)


def show_plan(
    members: Sequence[Member],
    folder: Path,
    *,
    rungs: Sequence[int] = (),
    most: int = 0,
) -> None:
    """Prints what a sweep would train, and the memory that it takes: `--dry_run`.

    Args:
      members: as for `run`, like all others.
      folder: see there.
      rungs: see there.
      most: see there.

    Raises:
      ValueError: as `run`.
    """
    left, groups = _groups(members, folder, rungs=rungs, most=most)
    experiments = share_images(make_experiment(member.config) for member in left)
    for places in groups:
        own = [left[i] for i in places]
        try:
            with console.status('compiling', quiet=False):
                prepared = prepare([experiments[i] for i in places])
            told = memory_in_words(prepared)
        except TooLarge as error:
            told = 'more memory than there is; ' + (
                'it would be trained in smaller groups' if len(own) > 1 else str(error)
            )
        except TypeError:
            told = 'a program for each of its hyper-parameters, which it takes as Python numbers'
        console.say(
            f'{name_of(own)}: {len(own)} experiment(s) at once, '
            f'{sum(member.config.rounds for member in own)} rounds in all, {told}',
            quiet=False,
        )
    console.say(
        f'{len(members) - len(left)} of {len(members)} experiments are done, {len(left)} would be '
        f'trained in {len(groups)} group(s). Nothing was trained.',
        quiet=False,
    )


def name_of(members: Sequence[Member]) -> str:
    """What experiments that share a program are, in a few words.

    Args:
      members: of a sweep.

    Returns:
      For instance 'fedlmd: beta 0.1 to 3, 2 seeds'.
    """
    words = []
    for name, _ in members[0].setting:
        values = sorted({dict(member.setting)[name] for member in members})
        several = f' to {shown(values[-1])}' * (len(values) > 1)
        words.append(f'{name} {shown(values[0])}{several}')
    seeds = len({member.seed for member in members})
    words += [f'{seeds} seeds'] if seeds > 1 else [f'seed {members[0].seed}']
    return f'{members[0].config.method}: ' + ', '.join(words)


def summarise(members: Sequence[Member]) -> list[Outcome]:
    """Reads what the experiments of a sweep recorded.

    Args:
      members: of the sweep, trained or not.

    Returns:
      What each setting came to, in the order of the grid.
    """
    outcomes = []
    for setting in dict.fromkeys(member.setting for member in members):
        final, best, rounds, given_up, failed = [], [], [], 0, 0
        for member in members:
            if member.setting != setting:
                continue
            path = Path(str(member.config.workdir)) / run_files.SUMMARY
            summary = files.read_json(path) if path.exists() else None
            if summary is None or summary['failed']:
                failed += 1
                continue
            final.append(summary['final_accuracy'])
            best.append(summary['best_accuracy'])
            rounds.append(summary['rounds'])
            given_up += bool(summary.get('stopped_early'))
        outcomes.append(Outcome(setting, final, best, rounds, given_up, failed))
    return outcomes


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean of what there is, and its deviation as of a sample.

    Args:
      values: one a seed.

    Returns:
      (mean, standard deviation), None where there are too few values.
    """
    there = [value for value in values if value is not None]
    deviation = float(np.std(there, ddof=1)) if len(there) > 1 else None
    return (float(np.mean(there)) if there else None), deviation


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes a row for each setting, whole or not at all.

    Args:
      path: of the CSV file.
      outcomes: from `summarise`.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator='\n')
    names = [name for name, _ in outcomes[0].setting]
    numbers = ('final_accuracy', 'final_sd', 'best_accuracy', 'best_sd')
    table.writerow([*names, 'seeds', 'failed', 'given_up', 'rounds', *numbers])
    for setting, final, best, rounds, given_up, failed in outcomes:
        told = [*mean_and_deviation(final), *mean_and_deviation(best)]
        accuracies = ['' if number is None else f'{number:.6f}' for number in told]
        values = [shown(value) for _, value in setting]
        counts = [len(final), failed, given_up, max(rounds, default=0)]
        table.writerow([*values, *counts, *accuracies])
    files.write_whole(path, text.getvalue().encode())


def show(outcomes: Sequence[Outcome], folder: Path, config: Config) -> None:
    """Prints a line for each setting.

    Args:
      outcomes: from `run`.
      folder: of the work directories.
      config: what the experiments have in common.
    """

    def percent(values: Sequence[float | None]) -> str:
        mean, deviation = mean_and_deviation(values)
        spread = '' if deviation is None else f' ± {100 * deviation:.2f}'
        return '-' if mean is None else f'{100 * mean:.2f}{spread}'

    rows = []
    for setting, final, best, rounds, given_up, failed in outcomes:
        told = ['given up'] * bool(given_up) + [f'{failed} failed'] * bool(failed)
        values = [shown(value) for _, value in setting]
        trained = str(max(rounds, default='-'))
        rows.append([*values, percent(final), percent(best), trained, ', '.join(told)])
    where = 'held-out training examples' if config.validation else 'test examples'
    display.show_sweep(
        f'{config.method} on {config.dataset}, accuracy in % on {where}',
        [*(name for name, _ in outcomes[0].setting), 'final', 'best', 'rounds', ''],
        rows,
    )
    if not config.validation and len(outcomes) > 1:
        console.say(
            'To choose among these is to choose by test data; --validation=0.1 judges by training '
            'data held out.',
            quiet=False,
        )
    console.say(f'files: {folder}/', quiet=False)
