"""The page of a benchmark, one HTML file without external resources."""

import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.benchmark.answers import Answer, diverged, further, make_answers, missing
from experiments.benchmark.ranks import (
    LEAST_BLOCKS,
    LEAST_METHODS,
    Ranks,
    rank,
    rank_sentence,
)
from experiments.benchmark.records import COLUMNS, COSTS
from experiments.benchmark.results import (
    LEVEL,
    Row,
    largest_rates,
    learning_rate,
    tables,
    verdicts,
)
from experiments.benchmark.suite import BASELINE, Place, Suite
from jaxfed.metrics import mean_and_deviation
from jaxfed.metrics.intervals import Interval
from jaxfed.recording.style import style
from jaxfed.report.render import policy
from jaxfed.report.tables import format_number

PAGE = 'benchmark.html'
WIDTH = 10.0  # of a picture, inches
_BYTES = 'MiB a client'  # of `COSTS`
PARTS = {'quarter': 0.25, 'half': 0.5, 'final': 1.0}  # column -> part of the rounds


def render(suite: Suite, rows: Sequence[Row], *, command: str, flags: Sequence[str] = ()) -> str:
    """Render the page of a benchmark.

    Args:
      suite: the suite.
      rows: its finished methods, at least one.
      command: makes all runs of the suite.
      flags: of all runs, beside those of the suite.
    """
    report = PackageLoader('jaxfed.report', 'page')
    loader = ChoiceLoader([PackageLoader('experiments.benchmark', 'page'), report])
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    ranks = rank(rows)
    css, script = (report.get_source(pages, name)[0] for name in ('page.css', 'page.js'))
    return pages.get_template('page.html').render(
        suite=suite,
        css=Markup(css),
        script=Markup(script),
        policy=policy(script),
        answers=[
            *map(sentence, make_answers(suite, rows)),
            *further(suite, rows),
            *filter(None, [diverged(rows), rank_sentence(ranks)]),
        ],
        missing=missing(suite, rows),
        command=command,
        tables=tables(rows),
        verdicts=verdicts(suite, rows),
        settings=settings(suite, flags),
        columns=COLUMNS,
        score=COLUMNS[suite.score],
        skipped=sorted({row.eval_every for row in rows} - {1}),
        costs=COSTS,
        level=LEVEL,
        anchor=anchor,
        shown=shown,
        scattered=scattered,
        mean_cost=mean_cost,
        ranks=Markup(diagram(ranks)),
        bytes=Markup(picture(lambda: draw_bytes(rows))),
        sensitivity=Markup(picture(lambda: draw_sensitivity(rows))),
        rates=learning_rates(suite),
        largest_rates=largest_rates(rows),
        diverged=diverged_trials(rows),
        budget=len(next(iter(suite.trials.values()))),
        machines=machines(rows),
    )


def settings(suite: Suite, flags: Sequence[str]) -> list[str]:
    """The flags of all runs; later ones replace the suite's."""
    by_name = {flag.partition('=')[0]: flag for flag in (*suite.flags, *flags)}
    return [flag for name, flag in by_name.items() if name != '--data_dir']


def sentence(answer: Answer) -> str:
    """An answer in words."""
    if answer.diverged:
        return f'{answer.where}: a run of FedAvg diverged, so nothing is compared.'
    if answer.baseline is None or not answer.baseline.complete:
        return f'{answer.where}: not all seeds of FedAvg are there, so nothing is compared.'
    if not answer.compared:
        text = 'not enough seeds to compare with it'
    elif answer.above:
        text = f'better beyond chance: {", ".join(answer.above)}'
    else:
        text = f'none of the {answer.compared} compared methods is better beyond chance'
    return f'{answer.where}: FedAvg {shown(answer.baseline.interval("final"))} %, {text}.'


def machines(rows: Sequence[Row]) -> list[str]:
    """The devices and versions that the trials and runs were made with."""
    trials = [trial.record for row in rows for trial in row.trials.values()]
    made = [*trials, *(run for row in rows for run in row.runs.values())]
    return sorted({f'{run.machine}; {run.versions}' for run in made})


def anchor(place: Place) -> str:
    """The anchor of a method's command."""
    return '-'.join(place).replace('.', '_')


def shown(interval: Interval | None, sign: str = '') -> str:
    """A mean and the half of its interval."""
    if interval is None:
        return '–'
    half = '' if interval.half is None else f' ± {interval.half:.2f}'
    mean = round(interval.mean, 2) + 0.0  # without the sign of a small negative number
    return f'{mean:{sign}.2f}{half}'


def scattered(row: Row, column: str) -> str:
    """A mean and the sample standard deviation over the seeds."""
    mean, deviation = mean_and_deviation(list(row.values(column).values()))
    if mean is None:
        return '–'
    return f'{mean:.2f}' if deviation is None else f'{mean:.2f} ± {deviation:.2f}'


def mean_cost(row: Row) -> list[str]:
    """The means of `COSTS`."""
    return [format_number(_mean(row, name)) for name in COSTS]


def diagram(ranks: Ranks | None) -> str:
    """The critical-difference diagram as HTML, or why there is none."""
    if ranks is None:
        return (
            f'<p>A diagram needs {LEAST_METHODS} methods that are complete in the same '
            f'{LEAST_BLOCKS} tables.</p>'
        )

    def draw() -> Figure:
        import scikit_posthocs

        figure = Figure(figsize=(WIDTH, 1.5 + 0.22 * len(ranks.mean)), layout='constrained')
        drawn = scikit_posthocs.critical_difference_diagram(
            ranks.mean, ranks.nemenyi, ax=figure.add_subplot()
        )
        for bar in itertools.chain.from_iterable(drawn['crossbars']):
            bar.set_xdata(sorted(bar.get_xdata()))  # it joins the points in the order of a set
        return figure

    text = (
        f'Mean rank over {ranks.tables} tables, 1 is best. Friedman test: p = '
        f'{ranks.friedman:.2g}. Methods joined by a bar do not differ by the Nemenyi test (5 %).'
    )
    return f'<figure class="wide"><figcaption>{text}</figcaption>{picture(draw)}</figure>'


def draw_bytes(rows: Sequence[Row]) -> Figure:
    """Accuracy by bytes after a part of the rounds, an axis for each table."""
    every, others = tables(rows), _other_bytes(rows)
    columns = min(len(every), 3)
    lines = -(-len(every) // columns)
    figure = Figure(figsize=(WIDTH, 2.6 * lines), layout='constrained')
    axes: Any = figure.subplots(lines, columns, squeeze=False)
    for ax in axes.flat[len(every) :]:
        ax.set_axis_off()
    for ax, ((dataset, skew), table) in zip(axes.flat, every.items(), strict=False):
        ax.set_title(f'{dataset}, {skew.replace("_", " ")}', fontsize=9)
        named = {row.place.method: 'C2' for row in table[:1] if row.complete} | {BASELINE: 'C1'}
        colors = others | named
        for row in reversed(table):  # the best is drawn last
            intervals = [row.interval(column) for column in PARTS]
            size, method = _mean(row, _BYTES), row.place.method
            ax.plot(
                [size * evaluated(row, part) for part in PARTS.values()],
                [np.nan if interval is None else interval.mean for interval in intervals],
                'o-', ms=3, lw=1, color=colors.get(method, '0.75'),
                label=method if method in named else None, zorder=2 + (method in colors),
            )  # fmt: skip
        ax.legend(fontsize=8, loc='best')
        ax.tick_params(labelsize=8)
    if others:
        handles = [Line2D([], [], color=color, label=name) for name, color in others.items()]
        figure.legend(handles=handles, fontsize=8, ncols=6, loc='outside upper center')
    figure.supxlabel('MiB of a client that takes part in every round', fontsize=9)
    figure.supylabel('accuracy (%)', fontsize=9)
    return figure


def _mean(row: Row, cost: str) -> float:
    """The mean of one of `COSTS` over the runs."""
    return float(np.mean([run.numbers[cost] for run in row.runs.values()]))


def _other_bytes(rows: Sequence[Row]) -> dict[str, str]:
    """Methods whose clients send and receive other bytes than those of FedAvg -> color."""
    sizes = {row.place: _mean(row, _BYTES) for row in rows}
    other = dict.fromkeys(
        place.method
        for place, size in sizes.items()
        if not np.isclose(size, sizes.get(place._replace(method=BASELINE), size), rtol=0.01)
    )
    return {method: f'C{3 + i}' for i, method in enumerate(other)}


def evaluated(row: Row, part: float) -> int:
    """The last evaluated round of a part of the rounds."""
    last = int(row.rounds * part)
    return last if part == 1 else last - last % row.eval_every


def draw_sensitivity(rows: Sequence[Row]) -> Figure:
    """The trials of every method below its chosen one, by learning rate."""
    trials = [trial for row in rows for trial in row.trials]
    rates = sorted({rate for rate in map(learning_rate, trials) if rate is not None})
    colors: dict[float | None, str] = {rate: f'C{i}' for i, rate in enumerate(rates)}
    methods = list(dict.fromkeys(row.place.method for row in rows))
    figure = Figure(figsize=(WIDTH, 1 + 0.22 * len(methods)), layout='constrained')
    ax = figure.add_subplot()
    ax.set_xlabel('points below the chosen trial', fontsize=9)
    for y, method in enumerate(methods):
        for row in rows:
            known = {
                flags: trial.percent
                for flags, trial in row.trials.items()
                if trial.percent is not None and row.place.method == method
            }
            for flags, percent in known.items():
                color = colors.get(learning_rate(flags), '0.5')
                ax.plot(percent - max(known.values()), y, '.', color=color, alpha=0.6)
    ax.set_xscale('symlog', linthresh=1)
    ticks = [-100, -30, -10, -3, -1, 0]
    ax.set_xticks(ticks, map(str, ticks))
    ax.set_xlim(right=0.1)
    if len(colors) > 1:
        handles = [
            Line2D([], [], color=color, marker='.', ls='', label=f'learning rate {rate:g}')
            for rate, color in colors.items()
        ]
        figure.legend(handles=handles, fontsize=9, ncols=6, loc='outside upper center')
    ax.set_yticks(range(len(methods)), methods)
    ax.tick_params(labelsize=9)
    ax.invert_yaxis()
    return figure


def learning_rates(suite: Suite) -> dict[str, list[str]]:
    """Learning rates of the trials, as text -> the methods that have them."""
    found: dict[str, list[str]] = {}
    for method, trials in suite.trials.items():
        rates = dict.fromkeys(rate for rate in map(learning_rate, trials) if rate is not None)
        text = ', '.join(f'{rate:g}' for rate in rates)
        found.setdefault(text or "the suite's", []).append(method)
    return found


def diverged_trials(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """(row, flags) of the trials without a number."""
    return [
        (row, ' '.join(flags))
        for row in rows
        for flags, trial in row.trials.items()
        if trial.percent is None
    ]


def picture(draw: Callable[[], Figure]) -> str:
    """A figure as SVG inside of a page."""
    with style():
        text = io.StringIO()
        draw().savefig(text, format='svg', metadata={'Date': None})
    return text.getvalue().partition('<svg')[1] + text.getvalue().partition('<svg')[2]
