"""The results of a sweep: the mean of each point, the best ones, and tables of them."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.internal.csv_text import csv_text
from jaxfed.metrics import mean_and_deviation
from jaxfed.recording import display, run_files
from jaxfed.runs.experiment import method_of
from jaxfed.sweeps.grid import Member, Point, in_words, of_problem


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


def summarise(members: Sequence[Member]) -> list[Outcome]:
    """Return the outcome of each point, in the order of the grid, from the recorded summaries.

    If a method has a model for each client, all are judged by these, where they were evaluated.
    """
    outcomes = []
    for point, seeds in itertools.groupby(members, key=lambda member: member.point):
        paths = [Path(str(member.config.workdir)) / run_files.SUMMARY for member in seeds]
        summaries = [run_files.read_summary(path) for path in paths if path.exists()]
        finished = [summary for summary in summaries if not summary['failed']]
        stopped = sum(bool(summary.get('stopped_early')) for summary in finished)
        unequal = len({summary['rounds'] for summary in finished}) > 1
        outcome = Outcome(
            point,
            [None if unequal else summary['final_accuracy'] for summary in finished],
            [None if unequal else summary['best_accuracy'] for summary in finished],
            [summary['rounds'] for summary in finished],
            stopped=stopped,
            failed=len(paths) - len(finished),
            personal=[None if unequal else summary['personal_accuracy'] for summary in finished],
        )
        outcomes.append(outcome)
    measured = any(value is not None for outcome in outcomes for value in outcome.personal)
    if measured and any(method_of(member.config).has_local_models for member in members):
        outcomes = [outcome._replace(judged='personal') for outcome in outcomes]
    return outcomes


def swept_names(outcomes: Sequence[Outcome]) -> list[str]:
    """The swept parameters; a point may lack some. Those of the points with most come first."""
    longest_first = sorted(outcomes, key=lambda outcome: -len(outcome.point))
    return list(dict.fromkeys(name for outcome in longest_first for name, _ in outcome.point))


def _values(point: Point, names: Sequence[str]) -> list[str]:
    return [in_words(dict(point)[name]) if name in dict(point) else '' for name in names]


def _problem(point: Point, config: Config) -> Point:
    """The parameters of a point that are the problem, such as the partition."""
    names = of_problem(point, config)
    return tuple(pair for pair in point if pair[0] in names)


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a CSV file with a row for each point."""
    names = swept_names(outcomes)
    numbers = [
        f'{score}_{number}'
        for score in ('final', 'best', 'personal')
        for number in ('accuracy', 'sd')
    ]
    rows: list[list[Any]] = [[*names, 'seeds', 'failed', 'given_up', 'trained_rounds', *numbers]]
    for point, final, best, rounds, stopped, failed, personal, _ in outcomes:
        statistics = itertools.chain(*map(mean_and_deviation, (final, best, personal)))
        accuracies = ['' if number is None else f'{number:.6f}' for number in statistics]
        values = _values(point, names)
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
        problems.setdefault(_problem(outcome.point, config), []).append(outcome)
    return [best for same in problems.values() if (best := best_point(same)) is not None]


def subject(points: Sequence[Point], config: Config) -> tuple[str, str]:
    """The data set and the method of a sweep in words."""
    swept = {name for point in points for name, _ in point}
    dataset = 'several data sets' if 'dataset' in swept else config.dataset
    return dataset, 'methods' if 'method' in swept else config.method


def _percent(values: Sequence[float | None]) -> str:
    mean, deviation = mean_and_deviation(values)
    spread = '' if deviation is None else f' ± {100 * deviation:.2f}'
    return '-' if mean is None else f'{100 * mean:.2f}{spread}'


def _long_table(outcomes: Sequence[Outcome], best: Sequence[Point]) -> list[list[str]]:
    """A header, then a row for each point, with a note on the best and those that failed."""
    swept = swept_names(outcomes)
    with_personal = any(value is not None for outcome in outcomes for value in outcome.personal)
    trained = 'trained rounds' if 'rounds' in swept else 'rounds'
    header = ['final %', 'best round %', *(['personal %'] * with_personal), trained, 'note']
    rows = [[*swept, *header]]
    for point, final, highest, rounds, stopped, failed, personal, _ in outcomes:
        notes = ['best'] * (point in best)
        some = f'{stopped} of {len(final)} ' * (stopped < len(final))
        notes += [f'{some}stopped early'] * bool(stopped) + [f'{failed} failed'] * bool(failed)
        scores = map(_percent, [final, highest, *([personal] * with_personal)])
        count = str(max(rounds, default='-'))
        rows.append([*_values(point, swept), *scores, count, ', '.join(notes)])
    return rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]


def _cross_table(
    outcomes: Sequence[Outcome], best: Sequence[Point], config: Config
) -> list[list[str]] | None:
    """A header, then a row for each choice with a column for each problem.

    None if there is one problem or no choice, or the terminal is too narrow.
    """

    def words(point: Point) -> list[str]:
        return [str(v) if name in display.PLAIN else f'{name} {in_words(v)}' for name, v in point]

    cells: dict[str, dict[Point, str]] = {}
    problems = dict.fromkeys(_problem(outcome.point, config) for outcome in outcomes)
    for outcome in outcomes:
        problem = _problem(outcome.point, config)
        notes = ['*'] * (outcome.point in best)
        notes += [f'{outcome.failed} failed:'] * bool(outcome.failed)
        text = ' '.join([*notes, _percent(getattr(outcome, outcome.judged))])
        choice = ', '.join(words(tuple(pair for pair in outcome.point if pair not in problem)))
        cells.setdefault(choice, {})[problem] = text
    rows = [['', *('\n'.join(words(problem)) for problem in problems)]]
    rows += [[choice, *(row.get(p, '') for p in problems)] for choice, row in cells.items()]
    lines = (
        [line for cell in column for line in cell.split('\n')] for column in zip(*rows, strict=True)
    )
    fits = 1 + sum(3 + max(map(len, column)) for column in lines) <= console.TERMINAL.width
    return rows if len(problems) > 1 and len(cells) > 1 and fits else None


def show_outcomes(outcomes: Sequence[Outcome], folder: Path, config: Config) -> None:
    """Print the accuracies, of several problems if possible in a column for each."""
    best = best_points(outcomes, config)
    crossed = _cross_table(outcomes, best, config)
    dataset, method = subject([outcome.point for outcome in outcomes], config)
    where = 'held-out training examples' if config.validation else 'test examples'
    personal = outcomes[0].judged == 'personal'
    if personal and crossed:
        where = "the clients' test examples"
    accuracy = f'{outcomes[0].judged} accuracy in percent' if crossed else 'accuracy'
    seeds = max(len(outcome.final) for outcome in outcomes)
    caption = [f'mean ± standard deviation of {seeds} seeds'] * (seeds > 1)
    if best:
        points = [_problem(outcome.point, config) for outcome in outcomes]
        given = ', '.join(dict.fromkeys(name for point in points for name, _ in point))
        text = f'{"*" if crossed else "best"}: the highest {outcomes[0].judged} accuracy'
        text += f' for each value of {given}' * bool(given)
        caption.append(text + ' of those not stopped' * any(o.stopped for o in outcomes))
    names, *rows = crossed or _long_table(outcomes, best)
    title = f'{method} on {dataset}: {accuracy} on {where}'
    display.show_sweep(title, names, rows, '; '.join(caption))
    if personal and best:
        console.say("A choice among these settings uses the clients' test examples.")
    elif not config.validation and best:
        console.say(
            'A choice among these settings uses test data; --validation=0.1 compares them on '
            'held-out training data.'
        )
    console.say(f'files: {folder}/')
