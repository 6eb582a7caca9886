"""Trains a grid of settings times seeds, and writes the table of its results."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jaxfed.config import PART_SEEDS, Config
from jaxfed.internal import console, files
from jaxfed.internal.locks import exclusive_lock
from jaxfed.recording import run_files
from jaxfed.runs import checks
from jaxfed.runs.experiment import make_experiment, method_of
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.notices import show_notices
from jaxfed.runs.prepare import memory_in_words, prepare
from jaxfed.runs.shared_program import TRACER_ERROR
from jaxfed.sweeps.claims import finish_programs
from jaxfed.sweeps.grid import Member, Point, Value, in_words, with_values
from jaxfed.sweeps.halving import (
    check_compared,
    check_halving,
    check_together,
    halving,
    record_halving,
    warn_of_lone_settings,
)
from jaxfed.sweeps.outcomes import Outcome, summarise, write_table
from jaxfed.sweeps.runner import (
    check_same_data,
    is_done,
    run_groups,
    set_up_all,
    share_images,
    warn_of_copies,
)
from jaxfed.sweeps.training import group, unwritten


def expand(config: Config, points: Sequence[Point], seeds: int, folder: Path) -> list[Member]:
    """Make the experiments of a sweep, and check their settings without loading data.

    Args:
      config: the common settings.
      points: from `grid.parse_grid`.
      seeds: the number of seeds of each point; they start at `config.seed`.
      folder: the parent of the work directories.

    Returns:
      The experiments; those of a point are consecutive.

    Raises:
      ValueError: for invalid settings.
    """
    if seeds < 1:
        raise ValueError(f'--seeds must be at least 1, got {seeds}.')
    if config.resume is not None:
        raise ValueError(
            f'--resume={config.resume}: a sweep always continues unfinished experiments; remove '
            'the flag, or name another --workdir.'
        )
    files.check_writable(folder, '--workdir')
    if (folder / run_files.CONFIG).exists():
        raise ValueError(f'--workdir={folder} holds a run; name another directory for a sweep.')
    members = []
    for point, seed in itertools.product(points, range(config.seed, config.seed + seeds)):
        name = '_'.join([*map(_folder_name, point), f'seed{seed}'])
        changed = with_values(config, dict(point), seed=seed, workdir=str(folder / name))
        checks.check(changed)
        if seeds > 1 and all(getattr(changed, part) is not None for part in PART_SEEDS):
            raise ValueError(
                f'--seeds={seeds} changes nothing, because --{", --".join(PART_SEEDS)} are all '
                'set; remove one of them, or --seeds.'
            )
        method_of(changed)
        members.append(Member(point, seed, changed))
    for path, number in Counter(member.config.workdir for member in members).items():
        if number > 1:
            raise ValueError(
                f'--sweep: two experiments would have the work directory {path}; sweep over one of '
                'the two values, and over the other in another --workdir.'
            )
    return members


def _folder_name(pair: tuple[str, Value]) -> str:
    """The part of a work directory's name that has the value of a parameter."""
    name, value = pair
    text = re.sub(r'[^\w.+,-]+', '_', in_words(value))
    return f'{name}-{text}' if isinstance(value, str | bool) else f'{name}{text}'


def run(
    members: Sequence[Member],
    folder: Path,
    *,
    rungs: Sequence[int] = (),
    most: int = 0,
    quiet: bool = True,
) -> list[Outcome]:
    """Train the unfinished experiments of a sweep, and write a table of all.

    Args:
      members: from `expand`.
      folder: the parent of the work directories.
      rungs: the rounds after which the worse half of the points of a program stops.
      most: the largest number of experiments in a program. 0 chooses: all of them with rungs,
        because halving compares points of one program only, else as `training.group`.
      quiet: show nothing.

    Returns:
      The outcome of each point.

    Raises:
      ValueError: for invalid data, or a folder that holds something else or is used by another
        process.
      OSError: if data cannot be read, or the table cannot be written.
    """
    finish_programs(folder)
    done, unfinished, groups = _plan(members, folder, rungs=rungs, most=most)
    if unfinished:
        check_same_data(member.config for member in done)
    warn_of_copies(member.config for member in done)
    experiments = set_up_all(member.config for member in unfinished)
    folder.mkdir(parents=True, exist_ok=True)
    console.say(
        f'{len(done)} of {len(members)} experiments done, '
        f'{len(unfinished)} to train in {console.counted(len(groups), "group")}.',
        quiet=quiet,
    )
    if not quiet:
        show_notices(experiments)
    with exclusive_lock(folder):
        record_halving(folder, rungs)
        run_groups(
            [member.config for member in unfinished],
            folder,
            groups,
            experiments.__getitem__,
            lambda numbers: describe([unfinished[i] for i in numbers]),
            settings=[member.point for member in unfinished] if rungs else (),
            stop_of=lambda numbers: halving(rungs, [unfinished[i].point for i in numbers]),
            quiet=quiet,
        )
        outcomes = summarise(members)
        write_table(folder / run_files.TABLE, outcomes)
    return outcomes


def _plan(
    members: Sequence[Member], folder: Path, *, rungs: Sequence[int], most: int
) -> tuple[list[Member], list[Member], list[list[int]]]:
    """Return finished experiments, unfinished ones, and groups of their indices, one a program."""
    if most < 0:
        raise ValueError(f'--together must be at least 1, or 0 to choose, got {most}.')
    check_halving(folder, rungs)
    seeds = len({member.seed for member in members})
    check_together(members[0].config, rungs, seeds=seeds, most=most)
    done, unfinished = list[Member](), list[Member]()
    for member in members:
        (done if is_done(member.config) else unfinished).append(member)
    configs = [member.config for member in unfinished]
    if rungs:
        check_compared(configs, [member.config for member in done], folder)
    settings = [member.point for member in unfinished] if rungs else []
    groups = group(configs, folder, most=most or len(settings), settings=settings)
    if rungs:
        warn_of_lone_settings(groups, settings)
    return done, unfinished, groups


def show_dry_run(
    members: Sequence[Member], folder: Path, *, rungs: Sequence[int] = (), most: int = 0
) -> None:
    """Print the experiments that a sweep would train, and their memory; arguments as of `run`."""
    done, unfinished, groups = _plan(members, folder, rungs=rungs, most=most)
    experiments = share_images(make_experiment(member.config) for member in unfinished)
    show_notices(experiments)
    for numbers in groups:
        chosen = [unfinished[i] for i in numbers]
        try:
            with console.status('compiling', quiet=False):
                prepared = prepare([experiments[i] for i in numbers])
            memory = memory_in_words(prepared)
        except TooLarge as error:
            smaller = 'unless begun, they would train in smaller groups'
            rest = smaller if len(chosen) > 1 else error
            memory = f'not enough memory; {rest}'
        except TRACER_ERROR:
            memory = 'one program for each hyper-parameter: the method may take Python numbers only'
        rounds = sum(member.config.rounds for member in chosen)
        console.say(
            f'{describe(chosen)}: {console.counted(len(chosen), "experiment")} at once, '
            f'{console.counted(rounds, "round")} in all, {memory}'
        )
    console.say(
        f'{len(done)} of {len(members)} experiments done, '
        f'{len(unfinished)} would train in {console.counted(len(groups), "group")}. '
        'Nothing was trained.'
    )
    if unwritten(folder):
        console.say(
            'Of these, some are trained, but ended before their summaries were written; the next '
            'call writes them.'
        )


def describe(members: Sequence[Member]) -> str:
    """Describe experiments of a program in a line such as 'fedlmd: beta 0.1 to 3, 2 seeds'."""
    found: dict[str, list[Value]] = {}
    for name, value in itertools.chain(*(member.point for member in members)):
        found.setdefault(name, []).append(value)
    words = []
    for name, values in found.items():
        texts = any(isinstance(value, str | bool) for value in values)
        ends = dict.fromkeys(values if texts else (min(values), max(values)))
        if name != 'method':
            words.append(f'{name} {(", " if texts else " to ").join(map(in_words, ends))}')
    seeds = len({member.seed for member in members})
    words.append(f'{seeds} seeds' if seeds > 1 else f'seed {members[0].seed}')
    return f'{members[0].config.method}: ' + ', '.join(words)
