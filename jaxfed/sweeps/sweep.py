"""A grid of settings times seeds, as --sweep and --seeds name it, and its table of results."""

import csv
import dataclasses
import difflib
import io
import itertools
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed import methods
from jaxfed.config import FIELDS, SETTINGS, Config, settings_that_affect
from jaxfed.internal import console, files
from jaxfed.metrics import mean_and_deviation
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.recording import display, run_files
from jaxfed.runs import checks
from jaxfed.runs.experiment import look
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.memory import size_in_words
from jaxfed.runs.prepare import prepare
from jaxfed.sweeps.runner import is_done, run_groups, set_up_all, share_images
from jaxfed.sweeps.training import TRACER_ERRORS, group

TABLE = 'sweep.csv'

Point = tuple[tuple[str, float], ...]  # (name, value) of each swept parameter


class Member(NamedTuple):
    """One experiment of a sweep."""

    point: Point
    seed: int
    config: Config  # with its work directory


class Outcome(NamedTuple):
    """The results of all seeds at one point; None where nothing was evaluated."""

    point: Point
    final: list[float | None]
    best: list[float | None]
    rounds: list[int]  # that were trained
    given_up: int  # seeds that halving gave up
    failed: int  # seeds that diverged, did not fit or are not done


def parse_grid(text: str, config: Config) -> list[Point]:
    """Reads --sweep.

    Args:
      text: as 'beta=.1,.3,1 tau=1,3'; '' for the grid of one point, that of the settings.
      config: the settings that it changes.

    Returns:
      Every combination of values, the last parameter changing fastest.

    Raises:
      ValueError: for a parameter that does not exist, is no number or is named twice, or a value
        that is no number.
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
    kinds = sweepable(config)
    if name in kinds:
        return kinds[name]
    if name == 'seed':
        raise ValueError(f'--sweep={text}: --seeds=3 sets the seeds, from --seed on.')
    if owners := [other for other in PARTITIONS if name in partition_settings(other)]:
        raise ValueError(
            f'--sweep={text}: {name} belongs to --partition={" or ".join(owners)}, but '
            f'--partition={config.partition}; leave one of them out.'
        )
    if name in FIELDS:
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


def sweepable(config: Config) -> dict[str, type[float] | type[int]]:
    """Flag -> int or float, of the parameters of this method and partition that are numbers."""
    found: dict[str, Any] = {}
    parts = methods.resolve(config.method, config.hyperparameters)
    names = [key for _, values, _ in parts for key in values]
    for name, _, _ in parts:
        for key, parameter in methods.hyperparameters(name).items():
            # A short name is unambiguous if one part alone has it, and no setting.
            short = names.count(key) == 1 and key not in FIELDS
            found |= {flag: parameter.annotation for flag in [key] * short + [f'{name}.{key}']}
    chosen = partition_settings(config.partition)
    for name, parameter in chosen.items():
        found.setdefault(name, parameter.annotation)
    unread = {key for other in PARTITIONS for key in partition_settings(other)} - set(chosen)
    types = typing.get_type_hints(Config)
    for name in settings_that_affect('training', 'randomness'):
        kinds = set(typing.get_args(types[name]) or (types[name],)) - {type(None)}
        if len(kinds) == 1 and name != 'seed' and name not in unread:
            found.setdefault(name, kinds.pop())
    return {name: kind for name, kind in found.items() if kind in (int, float)}


def expand(config: Config, points: Sequence[Point], seeds: int, folder: Path) -> list[Member]:
    """Makes the experiments of a sweep and checks their settings as far as needs no data.

    Args:
      config: the settings that they have in common.
      points: from `parse_grid`.
      seeds: of each point, from that of `config` on.
      folder: of their work directories.

    Returns:
      The experiments, those of one point one after another.

    Raises:
      ValueError: for invalid settings.
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
    for point, number in itertools.product(points, range(seeds)):
        seed = config.seed + number
        name = '_'.join([*(f'{key}{shortest(value)}' for key, value in point), f'seed{seed}'])
        changed = _change(config, dict(point), seed, folder / name)
        checks.check(changed)
        parts = methods.resolve(changed.method, changed.hyperparameters)
        methods.build(parts, switch_round=changed.switch_round)
        members.append(Member(point, seed, changed))
    return members


def shortest(value: float) -> str:
    """The shortest text of a finite number that is not the text of another one."""
    short = f'{value:g}'
    return short if float(short) == value else repr(value)


def _change(config: Config, values: dict[str, float], seed: int, workdir: Path) -> Config:
    """The settings with other values of swept parameters, another seed and work directory."""
    fields: dict[str, Any] = {name: value for name, value in values.items() if name in SETTINGS}
    of_partition = {*partition_settings(config.partition)} - {*SETTINGS}
    hyperparameters = {**config.hyperparameters}
    for name in values.keys() - fields.keys() - of_partition:
        # A hyper-parameter may be in the settings under its other name.
        bare = name.rpartition('.')[2]
        for other in [other for other in hyperparameters if other.rpartition('.')[2] == bare]:
            if name in (other, bare) or other == bare:
                del hyperparameters[other]
        hyperparameters[name] = values[name]
    return dataclasses.replace(
        config,
        **fields,
        partition_settings={
            **config.partition_settings,
            **{name: value for name, value in values.items() if name in of_partition},
        },
        hyperparameters=hyperparameters,
        seed=seed,
        workdir=str(workdir),
    )


def check_together(most: int) -> int:
    """Checks --together."""
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
      rungs: rounds after which the worse half of the points in a program is given up.
      most: experiments in a program; 0 for all of them if there are rungs, because points in
        different programs are not compared, and else as `training.group` chooses.
      quiet: show nothing.

    Returns:
      The outcome of each point.

    Raises:
      ValueError: for invalid data, a folder that holds something else, or one that another process
        works in.
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
    with files.exclusive_lock(folder):
        run_groups(
            [member.config for member in left],
            folder,
            groups,
            experiments.__getitem__,
            lambda places: describe([left[i] for i in places]),
            points=[member.point for member in left],
            rungs=rungs,
            quiet=quiet,
        )
        outcomes = summarise(members)
        write_table(folder / TABLE, outcomes)
    return outcomes


def _groups(
    members: Sequence[Member], folder: Path, *, rungs: Sequence[int], most: int
) -> tuple[list[Member], list[list[int]]]:
    """The experiments that are not done, and their groups by program."""
    left = [member for member in members if not is_done(member.config)]
    most = most or len(left) * bool(rungs)
    return left, group([member.config for member in left], folder, most=most)


def show_dry_run(
    members: Sequence[Member], folder: Path, *, rungs: Sequence[int] = (), most: int = 0
) -> None:
    """Prints what a sweep would train, and the memory that it takes; arguments as of `run`."""
    left, groups = _groups(members, folder, rungs=rungs, most=most)
    experiments = share_images(look(member.config) for member in left)
    for places in groups:
        chosen = [left[i] for i in places]
        try:
            with console.status('compiling', quiet=False):
                prepared = prepare([experiments[i] for i in places])
            memory = (
                f'about {size_in_words(prepared.needed)} of {size_in_words(prepared.available)} on '
                f'each of {prepared.mesh.size} device(s)'
            )
        except TooLarge as error:
            memory = 'more memory than there is; ' + (
                'it would be trained in smaller groups' if len(chosen) > 1 else str(error)
            )
        except TRACER_ERRORS:
            memory = 'a program for each of its hyper-parameters, which it takes as Python numbers'
        console.say(
            f'{describe(chosen)}: {len(chosen)} experiment(s) at once, '
            f'{sum(member.config.rounds for member in chosen)} rounds in all, {memory}',
            quiet=False,
        )
    console.say(
        f'{len(members) - len(left)} of {len(members)} experiments are done, {len(left)} would be '
        f'trained in {len(groups)} group(s). Nothing was trained.',
        quiet=False,
    )


def describe(members: Sequence[Member]) -> str:
    """What experiments are, in a line such as 'fedlmd: beta 0.1 to 3, 2 seeds'."""
    words = []
    for name, _ in members[0].point:
        values = sorted({dict(member.point)[name] for member in members})
        last = f' to {shortest(values[-1])}' * (len(values) > 1)
        words.append(f'{name} {shortest(values[0])}{last}')
    seeds = len({member.seed for member in members})
    words += [f'{seeds} seeds'] if seeds > 1 else [f'seed {members[0].seed}']
    return f'{members[0].config.method}: ' + ', '.join(words)


def summarise(members: Sequence[Member]) -> list[Outcome]:
    """The outcome of each point, in the order of the grid, from what its experiments recorded."""
    outcomes = []
    for point in dict.fromkeys(member.point for member in members):
        final, best, rounds, given_up, failed = [], [], [], 0, 0
        for member in members:
            if member.point != point:
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
        outcomes.append(Outcome(point, final, best, rounds, given_up, failed))
    return outcomes


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes a CSV file with a row for each point, whole or not at all."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator='\n')
    names = [name for name, _ in outcomes[0].point]
    numbers = ('final_accuracy', 'final_sd', 'best_accuracy', 'best_sd')
    table.writerow([*names, 'seeds', 'failed', 'given_up', 'rounds', *numbers])
    for point, final, best, rounds, given_up, failed in outcomes:
        found = [*mean_and_deviation(final), *mean_and_deviation(best)]
        accuracies = ['' if number is None else f'{number:.6f}' for number in found]
        values = [shortest(value) for _, value in point]
        counts = [len(final), failed, given_up, max(rounds, default=0)]
        table.writerow([*values, *counts, *accuracies])
    files.write_atomic(path, text.getvalue().encode())


def show_outcomes(outcomes: Sequence[Outcome], folder: Path, config: Config) -> None:
    """Prints a table with a line for each point."""

    def percent(values: Sequence[float | None]) -> str:
        mean, deviation = mean_and_deviation(values)
        spread = '' if deviation is None else f' ± {100 * deviation:.2f}'
        return '-' if mean is None else f'{100 * mean:.2f}{spread}'

    rows = []
    for point, final, best, rounds, given_up, failed in outcomes:
        notes = ['given up'] * bool(given_up) + [f'{failed} failed'] * bool(failed)
        values = [shortest(value) for _, value in point]
        trained = str(max(rounds, default='-'))
        rows.append([*values, percent(final), percent(best), trained, ', '.join(notes)])
    where = 'held-out training examples' if config.validation else 'test examples'
    display.show_sweep(
        f'{config.method} on {config.dataset}, accuracy in % on {where}',
        [*(name for name, _ in outcomes[0].point), 'final', 'best', 'rounds', ''],
        rows,
    )
    if not config.validation and len(outcomes) > 1:
        console.say(
            'To choose among these is to choose by test data; --validation=0.1 judges by training '
            'data held out.',
            quiet=False,
        )
    console.say(f'files: {folder}/', quiet=False)
