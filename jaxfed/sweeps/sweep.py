"""Trains a grid of settings times seeds, and writes the table of its results."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxfed.config import PART_SEEDS, SETTINGS, Config
from jaxfed.internal import console, files
from jaxfed.internal.csv_text import csv_text
from jaxfed.internal.locks import exclusive_lock
from jaxfed.metrics import mean_and_deviation
from jaxfed.partition import partition_settings
from jaxfed.recording import display, run_files
from jaxfed.runs import checks
from jaxfed.runs.experiment import make_experiment, method_of
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.notices import show_notices
from jaxfed.runs.prepare import memory_in_words, prepare
from jaxfed.runs.shared_program import TRACER_ERROR
from jaxfed.sweeps.claims import finish_programs
from jaxfed.sweeps.grid import Point
from jaxfed.sweeps.halving import (
    check_compared,
    check_halving,
    check_together,
    halving,
    record_halving,
    warn_of_lone_settings,
)
from jaxfed.sweeps.runner import check_same_data, is_done, run_groups, set_up_all, share_images
from jaxfed.sweeps.training import group, unwritten


class Member(NamedTuple):
    """One experiment of a sweep."""

    point: Point
    seed: int
    config: Config  # with its work directory


class Outcome(NamedTuple):
    """The results of all seeds at one point.

    An accuracy is None if no round was evaluated, or if halving has stopped only some of the seeds.
    """

    point: Point
    final: list[float | None]
    best: list[float | None]
    rounds: list[int]  # trained rounds
    stopped: int  # seeds that halving stopped early
    failed: int  # seeds that diverged, do not fit into memory or are unfinished
    personal: Sequence[float | None] = ()  # of local models on their clients' held-out examples
    judged: Literal['final', 'personal'] = 'final'  # the accuracy that ranks the points

    @property
    def score(self) -> float | None:
        """The mean of the accuracy that ranks the points."""
        return mean_and_deviation(getattr(self, self.judged))[0]


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
        name = '_'.join([*(f'{key}{shortest(value)}' for key, value in point), f'seed{seed}'])
        changed = with_values(config, dict(point), seed=seed, workdir=str(folder / name))
        checks.check(changed)
        if seeds > 1 and all(getattr(changed, part) is not None for part in PART_SEEDS):
            raise ValueError(
                f'--seeds={seeds} changes nothing, because --{", --".join(PART_SEEDS)} are all '
                'set; remove one of them, or --seeds.'
            )
        method_of(changed)
        members.append(Member(point, seed, changed))
    return members


def shortest(value: float) -> str:
    """Return the shortest text of a finite number that no other number has."""
    short = f'{value:g}'
    return short if float(short) == value else repr(value)


def with_values(config: Config, values: dict[str, float], **fields: Any) -> Config:
    """Return the settings with new fields, and new values of swept parameters."""
    partition = dict(config.partition_settings)
    hyperparameters = dict(config.hyperparameters)
    for name, value in values.items():
        if name in SETTINGS:
            fields[name] = value
        elif name in partition_settings(config.partition):
            partition[name] = value
        else:  # replaces the hyper-parameter under its short and its long name
            for other in config.hyperparameters:
                if other == name or other.endswith(f'.{name}') or name.endswith(f'.{other}'):
                    hyperparameters.pop(other, None)
            hyperparameters[name] = value
    return dataclasses.replace(
        config, partition_settings=partition, hyperparameters=hyperparameters, **fields
    )


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
    """Describe experiments in a line such as 'fedlmd: beta 0.1 to 3, 2 seeds'."""
    words = []
    for name, _ in members[0].point:
        values = sorted({dict(member.point)[name] for member in members})
        last = f' to {shortest(values[-1])}' * (len(values) > 1)
        words.append(f'{name} {shortest(values[0])}{last}')
    seeds = len({member.seed for member in members})
    words.append(f'{seeds} seeds' if seeds > 1 else f'seed {members[0].seed}')
    return f'{members[0].config.method}: ' + ', '.join(words)


def summarise(members: Sequence[Member]) -> list[Outcome]:
    """Return the outcome of each point, in the order of the grid, from the recorded summaries.

    Methods with a model for each client are judged by these models, if they were evaluated.
    """
    outcomes = []
    judged_locally = method_of(members[0].config).has_local_models
    for point, seeds in itertools.groupby(members, key=lambda member: member.point):
        paths = [Path(str(member.config.workdir)) / run_files.SUMMARY for member in seeds]
        summaries = [run_files.read_summary(path) for path in paths if path.exists()]
        finished = [summary for summary in summaries if not summary['failed']]
        stopped = sum(bool(summary.get('stopped_early')) for summary in finished)
        unequal = len({summary['rounds'] for summary in finished}) > 1
        measured = any(summary['personal_accuracy'] is not None for summary in finished)
        outcome = Outcome(
            point,
            [None if unequal else summary['final_accuracy'] for summary in finished],
            [None if unequal else summary['best_accuracy'] for summary in finished],
            [summary['rounds'] for summary in finished],
            stopped=stopped,
            failed=len(paths) - len(finished),
            personal=[None if unequal else summary['personal_accuracy'] for summary in finished],
            judged='personal' if judged_locally and measured else 'final',
        )
        outcomes.append(outcome)
    return outcomes


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a CSV file with a row for each point."""
    names = [name for name, _ in outcomes[0].point]
    numbers = [
        f'{score}_{number}'
        for score in ('final', 'best', 'personal')
        for number in ('accuracy', 'sd')
    ]
    rows: list[list[Any]] = [[*names, 'seeds', 'failed', 'given_up', 'trained_rounds', *numbers]]
    for point, final, best, rounds, stopped, failed, personal, _ in outcomes:
        statistics = itertools.chain(*map(mean_and_deviation, (final, best, personal)))
        accuracies = ['' if number is None else f'{number:.6f}' for number in statistics]
        values = [shortest(value) for _, value in point]
        counts = [len(final), failed, stopped, max(rounds, default=0)]
        rows.append([*values, *counts, *accuracies])
    files.write_atomic(path, csv_text(rows))


def best_point(outcomes: Sequence[Outcome]) -> Point | None:
    """Return the point with the highest score; None if there is no choice, or several have it.

    The mean of a point with a failed seed covers fewer seeds, and that of a point that halving
    stopped fewer rounds: neither can be the best.
    """
    known = [outcome for outcome in outcomes if not outcome.failed and outcome.score is not None]
    scores = {o.point: score for o in known if (score := o.score) is not None and not o.stopped}
    first = [point for point, score in scores.items() if score == max(scores.values())]
    return first[0] if len(known) > 1 and len(first) == 1 else None


def best_points(outcomes: Sequence[Outcome], config: Config) -> list[Point]:
    """Return the best point of each problem: of the points with one partition, rounds and so on."""
    problems: dict[Point, list[Outcome]] = {}
    for outcome in outcomes:
        named = of_problem([name for name, _ in outcome.point], config)
        problem = tuple(pair for pair in outcome.point if pair[0] in named)
        problems.setdefault(problem, []).append(outcome)
    return [best for same in problems.values() if (best := best_point(same)) is not None]


def of_problem(names: Sequence[str], config: Config) -> list[str]:
    """The settings that belong to the problem, as the partition, so that they are no choice."""
    fixed = {name for name, setting in SETTINGS.items() if not setting.searched}
    return [name for name in names if name in fixed | {*partition_settings(config.partition)}]


def show_outcomes(outcomes: Sequence[Outcome], folder: Path, config: Config) -> None:
    """Print a table with a line for each point, and a mark on the best."""

    def percent(values: Sequence[float | None]) -> str:
        mean, deviation = mean_and_deviation(values)
        spread = '' if deviation is None else f' ± {100 * deviation:.2f}'
        return '-' if mean is None else f'{100 * mean:.2f}{spread}'

    best_of_each = best_points(outcomes, config)
    swept = [name for name, _ in outcomes[0].point]
    given = of_problem(swept, config)
    with_personal = any(value is not None for outcome in outcomes for value in outcome.personal)
    rows = []
    for point, final, best, rounds, stopped, failed, personal, _ in outcomes:
        notes = ['best'] * (point in best_of_each)
        some = f'{stopped} of {len(final)} ' * (stopped < len(final))
        notes += [f'{some}stopped early'] * bool(stopped) + [f'{failed} failed'] * bool(failed)
        values = [shortest(value) for _, value in point]
        count = str(max(rounds, default='-'))
        scores = [percent(final), percent(best), *([percent(personal)] * with_personal)]
        rows.append([*values, *scores, count, ', '.join(notes)])
    trained = 'trained rounds' if 'rounds' in swept else 'rounds'
    names = [*swept, 'final %', 'best round %', *(['personal %'] * with_personal), trained, 'note']
    if not any(row[-1] for row in rows):
        names, rows = names[:-1], [row[:-1] for row in rows]
    where = 'held-out training examples' if config.validation else 'test examples'
    seeds = max(len(outcome.final) for outcome in outcomes)
    caption = f'mean ± standard deviation of {seeds} seeds' if seeds > 1 else ''
    if best_of_each:
        judged = next(o.judged for o in outcomes if o.point in best_of_each)
        caption += '; ' * bool(caption) + f'best: the highest {judged} accuracy'
        caption += f' for each value of {", ".join(given)}' if given else ''
        caption += ' of those not stopped' * any(outcome.stopped for outcome in outcomes)
    display.show_sweep(
        f'{config.method} on {config.dataset}: accuracy on {where}', names, rows, caption
    )
    if not config.validation and best_of_each:
        console.say(
            'A choice among these settings uses test data; --validation=0.1 compares them on '
            'held-out training data.'
        )
    console.say(f'files: {folder}/')
