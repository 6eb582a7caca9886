"""How the time of a compiled round grows with clients, examples, epochs and parameters.

Each is varied alone around a base point, a small perceptron on 8x8 images with equal clients, and a
line is fitted to every sweep: seconds = fixed + slope x client-steps (in the sweep of parameters:
x client-steps x parameters). Its least squares are of relative errors, so that the short rounds,
which tell the fixed cost, count as much as the long ones. The points of a sweep are measured in
turns, so that what else the machine does at the time falls on all of them alike. Rounds whose
clients make one step on one example measure the fixed cost directly.

What a client costs apart from its steps is in the slope where clients are varied, and in the fixed
cost elsewhere.
"""

import functools
import itertools
import json
import logging
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.machine import machine
from experiments.benchmarks.single_experiment import round_arguments, run_round
from jaxfed.data.augment import make_augment, normalise
from jaxfed.engine.cohorts import everyone
from jaxfed.engine.devices import check_devices, make_mesh, replicate, use_every_core
from jaxfed.engine.execution import compile_round
from jaxfed.engine.lanes import schedule
from jaxfed.engine.local import LocalSettings, steps_per_epoch
from jaxfed.engine.round import ServerState, TrainingData, make_round
from jaxfed.methods.method import Method
from jaxfed.models import make_model
from jaxfed.types import Array, Model, Outputs, PyTree

SHAPE = (8, 8, 1)
CLASSES = 10
LEARNING_RATE = 0.01
MOMENTUM = 0.9
AT_LEAST = 0.05  # seconds of a measurement; a shorter round is repeated in it
TITLES = {
    'clients': 'clients a round',
    'examples': 'examples of each client',
    'epochs': 'local epochs',
    'width': 'parameters',
}
# Colour-blind-safe: blue and vermilion.
MEASURED, FITTED = '#0072b2', '#d55e00'

_CLIENTS = flags.DEFINE_integer('clients', 8, 'Base: clients a round.', lower_bound=1)
_EXAMPLES = flags.DEFINE_integer('examples', 50, 'Base: examples of each client.', lower_bound=1)
_EPOCHS = flags.DEFINE_integer('local_epochs', 1, 'Base: local epochs.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 10, 'Examples in a batch.', lower_bound=1)
_DEVICES = flags.DEFINE_string('devices', 'all', "How many devices, or 'all'.")
_CLIENTS_SWEEP = flags.DEFINE_list(
    'clients_sweep',
    ['1', '2', '4', '8', '16', '32', '64', '128', '256', '512', '1000'],
    'Numbers of clients a round.',
)
_EXAMPLES_SWEEP = flags.DEFINE_list(
    'examples_sweep',
    ['10', '20', '50', '100', '200', '500', '1000', '2000'],
    'Numbers of examples of each client.',
)
_EPOCHS_SWEEP = flags.DEFINE_list(
    'epochs_sweep', ['1', '2', '5', '10', '20', '50', '100'], 'Numbers of local epochs.'
)
_WIDTH_SWEEP = flags.DEFINE_list(
    'width_sweep',
    ['25', '50', '100', '200', '400', '800', '1600'],
    'Units of each of the two hidden layers; 200 is the mlp of the other sweeps.',
)
_REPEATS = flags.DEFINE_integer('repeats', 7, 'Measurements of each point.', lower_bound=1)
_OUTPUT = flags.DEFINE_string('output', None, 'File to write the measurements to, as JSON.')
_FIGURE = flags.DEFINE_string('figure', None, 'File to draw the sweeps to, as PNG.')


class Point(NamedTuple):
    """A round's size."""

    clients: int
    examples: int  # of each client
    epochs: int
    batch_size: int
    most_devices: int
    width: int | None = None  # of the hidden layers; None for the mlp of `make_model`

    @property
    def devices(self) -> int:
        """Devices that have a client to train."""
        return min(self.most_devices, self.clients)

    @property
    def steps(self) -> int:
        """Local steps of each client."""
        return self.epochs * steps_per_epoch(self.examples, min(self.batch_size, self.examples))

    @property
    def client_steps(self) -> int:
        """Local steps of all clients."""
        return self.clients * self.steps


class Program(NamedTuple):
    """A compiled round."""

    run: Callable[[], None]  # returns when the round is done
    parameters: int
    compile_seconds: float


class Timing(NamedTuple):
    """What a round took."""

    point: Point
    parameters: int
    compile_seconds: float
    seconds: list[float]

    @property
    def median(self) -> float:
        """Median of the measurements."""
        return statistics.median(self.seconds)


class Line(NamedTuple):
    """seconds = fixed + slope x work."""

    fixed: float
    slope: float
    r_squared: float  # of the seconds
    worst: float  # largest |measured / fitted - 1|


class Sweep(NamedTuple):
    """One quantity varied alone."""

    name: str  # the field of `Point`
    timings: list[Timing]
    line: Line

    @property
    def by_parameters(self) -> bool:
        """Whether the work of a step varies, not the number of steps."""
        return self.name == 'width'


def own_width(width: int) -> Model:
    """Makes the perceptron of two hidden layers with a width of one's own.

    Args:
      width: units of each hidden layer.

    Returns:
      The network.
    """
    units = (int(np.prod(SHAPE)), width, width, CLASSES)

    def init(key: Array) -> PyTree:
        rng = np.random.default_rng(0)
        del key  # drawn by NumPy, which has nothing to compile
        return [
            {
                'kernel': jnp.asarray(rng.uniform(-1, 1, (a, b)) / a**0.5, jnp.float32),
                'bias': jnp.zeros(b, jnp.float32),
            }
            for a, b in itertools.pairwise(units)
        ]

    def apply(params: PyTree, x: Array) -> Outputs:
        x = x.reshape(x.shape[0], -1)
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer['kernel'] + layer['bias'])
        return Outputs(logits=x @ params[-1]['kernel'] + params[-1]['bias'], features=x)

    return Model(init=init, apply=apply)


def images(point: Point) -> TrainingData:
    """Makes random images and labels of equal clients.

    Args:
      point: clients and their examples.

    Returns:
      The data.
    """
    rng = np.random.default_rng(0)
    n = point.clients * point.examples
    y = rng.integers(0, CLASSES, (point.clients, point.examples), np.int32)
    held = np.full(point.clients, point.examples, np.int32)
    return TrainingData(
        x=jnp.asarray(rng.integers(0, 256, (n, *SHAPE), np.uint8)),
        y=jnp.asarray(y.reshape(-1)),
        order=jnp.arange(n, dtype=jnp.int32),
        start=jnp.asarray(np.cumsum(held) - held, jnp.int32),
        size=jnp.asarray(held),
        label_counts=jnp.asarray([np.bincount(own, minlength=CLASSES) for own in y], jnp.int32),
    )


def round_program(point: Point) -> Program:
    """Compiles the round of a point.

    Args:
      point: its size.

    Returns:
      The program.
    """
    if point.width is None:
        model = make_model('mlp', input_shape=SHAPE, num_classes=CLASSES)
    else:
        model = own_width(point.width)
    settings = LocalSettings(
        local_epochs=point.epochs,
        batch_size=point.batch_size,
        momentum=MOMENTUM,
        weight_decay=0.0,
        aggregation='size',
        longest=point.examples,
    )
    mean, std = np.full(1, 128.0, np.float32), np.full(1, 64.0, np.float32)
    mesh = make_mesh(_DEVICES.value, most=point.clients)
    parts = make_round(
        model,
        Method(),
        settings,
        make_augment((), mean=mean, std=std),
        functools.partial(normalise, mean=mean, std=std),
        mesh=mesh,
    )
    params = model.init(jax.random.key(0))
    server = ServerState(params, (), jnp.zeros((), jnp.int32))
    server, data, key = replicate((server, images(point), jax.random.key(1)), mesh)
    cohort = everyone(np.arange(point.clients), settings.local_epochs)
    plan = schedule([point.steps] * point.clients, lanes=1, devices=mesh.size)
    arguments = round_arguments(server, (), cohort, plan, LEARNING_RATE, key, data)
    began = time.perf_counter()
    programs = compile_round(parts, mesh, *arguments)
    seconds = time.perf_counter() - began

    def run() -> None:
        jax.block_until_ready(run_round(programs, mesh, *arguments)[0])

    return Program(run, sum(leaf.size for leaf in jax.tree.leaves(params)), seconds)


def seconds_of(program: Program, calls: int) -> float:
    """Mean time of a number of rounds."""
    began = time.perf_counter()
    for _ in range(calls):
        program.run()
    return (time.perf_counter() - began) / calls


def measure(points: list[Point], name: str, *, repeats: int) -> list[Timing]:
    """Measures rounds in turn, after one run of each.

    Args:
      points: sizes of the rounds.
      name: of what is varied, to show.
      repeats: measurements of each.

    Returns:
      Their timings, in the same order.
    """
    programs = [round_program(p) for p in track(points, f'compiling, {name}', transient=True)]
    timings = [
        Timing(point, program.parameters, program.compile_seconds, [])
        for point, program in zip(points, programs, strict=True)
    ]
    for program in programs:
        program.run()
    calls = [math.ceil(AT_LEAST / max(seconds_of(program, 1), 1e-6)) for program in programs]
    for _ in track(range(repeats), f'measuring, {name}', transient=True):
        for timing, program, number in zip(timings, programs, calls, strict=True):
            timing.seconds.append(seconds_of(program, number))
    return timings


def fit(work: np.ndarray, seconds: np.ndarray) -> Line:
    """Fits a line by least squares of the relative errors.

    Args:
      work: [P] of each point.
      seconds: [P] measured.

    Returns:
      The line; NaNs if fewer than two points differ in their work.
    """
    if len(np.unique(work)) < 2:
        return Line(*[float('nan')] * 4)
    # Scaled, so that the columns are of one size whatever the unit.
    scale = work.max()
    columns = np.stack([np.ones(len(work)), work / scale], axis=1) / seconds[:, None]
    (fixed, slope), *_ = np.linalg.lstsq(columns, np.ones(len(work)))
    fitted = fixed + slope * work / scale
    residual = ((seconds - fitted) ** 2).sum() / ((seconds - seconds.mean()) ** 2).sum()
    worst = np.abs(seconds / fitted - 1).max()
    return Line(float(fixed), float(slope / scale), float(1 - residual), float(worst))


def work_of(timing: Timing, *, by_parameters: bool) -> float:
    """What a round's time is fitted against."""
    return float(timing.point.client_steps * (timing.parameters if by_parameters else 1))


def all_busy(timing: Timing) -> bool:
    """Whether every device has a client; with fewer clients a client-step takes another time."""
    return timing.point.devices == timing.point.most_devices


def sweep(name: str, values: list[int], base: Point, *, repeats: int) -> Sweep:
    """Varies one field of the base point and fits a line to the points that keep all devices busy.

    Args:
      name: of the field.
      values: that it takes.
      base: the other fields.
      repeats: measurements of each point.

    Returns:
      The timings and the line.
    """
    points = [base._replace(**{name: value}) for value in values]
    timings = measure(points, name, repeats=repeats)
    fitted = [timing for timing in timings if all_busy(timing)] or timings
    work = np.array([work_of(t, by_parameters=name == 'width') for t in fitted])
    return Sweep(name, timings, fit(work, np.array([t.median for t in fitted])))


def point_table(own: Sweep) -> Table:
    """Shows the points of a sweep.

    Args:
      own: the sweep.

    Returns:
      The table.
    """
    table = Table(title=TITLES[own.name])
    columns = ('client-steps', 'ms a round', 'min-max', 'us a step', 'fit, ms')
    for column in (own.name, *(('parameters',) if own.by_parameters else ()), *columns):
        table.add_column(column, justify='right', no_wrap=True)
    for timing in own.timings:
        low, high = 1e3 * min(timing.seconds), 1e3 * max(timing.seconds)
        work = work_of(timing, by_parameters=own.by_parameters)
        fitted = 1e3 * (own.line.fixed + own.line.slope * work)
        table.add_row(
            str(getattr(timing.point, own.name)),
            *((str(timing.parameters),) if own.by_parameters else ()),
            str(timing.point.client_steps),
            f'{1e3 * timing.median:.2f}',
            f'{low:.2f}-{high:.2f}',
            f'{1e6 * timing.median / timing.point.client_steps:.1f}',
            f'{fitted:.2f}' if all_busy(timing) else '-',
        )
    return table


def line_table(sweeps: list[Sweep], caption: str) -> Table:
    """Shows the fitted lines.

    Args:
      sweeps: all of them.
      caption: of the table.

    Returns:
      The table.
    """
    table = Table(
        title='seconds = fixed + slope x client-steps (x million parameters)', caption=caption
    )
    table.add_column('varied', no_wrap=True)
    for column in ('fixed, ms', 'slope, us', 'R^2', 'farthest'):
        table.add_column(column, justify='right', no_wrap=True)
    for own in sweeps:
        line = own.line
        slope = f'{1e12 * line.slope:.0f} x million' if own.by_parameters else ''
        table.add_row(
            TITLES[own.name],
            f'{1e3 * line.fixed:.3f}',
            slope or f'{1e6 * line.slope:.2f}',
            f'{line.r_squared:.5f}',
            f'{100 * line.worst:.1f} %',
        )
    return table


def draw_sweeps(sweeps: list[Sweep], path: Path) -> None:
    """Draws the measured points and the fitted lines, a panel for each sweep, as a PNG.

    Args:
      sweeps: all of them.
      path: of the PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout='constrained')
    for axes, own in zip(figure.subplots(2, 2).flat, sweeps, strict=True):
        timings = sorted(own.timings, key=lambda timing: varied(timing, own.name))
        x = np.array([varied(timing, own.name) for timing in timings])
        work = np.array([work_of(timing, by_parameters=own.by_parameters) for timing in timings])
        fitted = np.array([all_busy(timing) for timing in timings])
        median = 1e3 * np.array([timing.median for timing in timings])
        low = median - 1e3 * np.array([min(timing.seconds) for timing in timings])
        high = 1e3 * np.array([max(timing.seconds) for timing in timings]) - median
        kinds = ((fitted, MEASURED, 'measured'), (~fitted, 'white', 'measured, idle devices'))
        for some, fill, label in kinds:
            if some.any():
                axes.errorbar(
                    x[some],
                    median[some],
                    (low[some], high[some]),
                    fmt='o',
                    color=MEASURED,
                    markerfacecolor=fill,
                    capsize=3,
                    label=label,
                )
        along = np.geomspace(x[fitted].min() if fitted.any() else x.min(), x.max(), 100)
        line = 1e3 * (own.line.fixed + own.line.slope * np.interp(along, x, work))
        axes.plot(along, line, color=FITTED, zorder=1, label=size_in_words(own))
        axes.set(xscale='log', yscale='log', xlabel=TITLES[own.name], ylabel='ms a round')
        axes.set_title(f'{TITLES[own.name]}: R² = {own.line.r_squared:.4f}', fontsize='medium')
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
        axes.legend(loc='upper left', frameon=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter('{x:,.7g}')
            axis.set_minor_formatter('')
    figure.savefig(path, dpi=150, format='png')


def varied(timing: Timing, name: str) -> int:
    """The value that a sweep varies, at one of its points."""
    return timing.parameters if name == 'width' else int(getattr(timing.point, name))


def size_in_words(own: Sweep) -> str:
    """The fitted line of a sweep."""
    fixed = f'{1e3 * own.line.fixed:.2f} ms'
    if own.by_parameters:
        return f'{fixed} + {1e12 * own.line.slope:.0f} µs a step x M parameters'
    return f'{fixed} + {1e6 * own.line.slope:.0f} µs a client-step'


def describe_timing(timing: Timing) -> dict[str, Any]:
    """Describes a point for the file."""
    return {
        **timing.point._asdict(),
        'devices': timing.point.devices,
        'parameters': timing.parameters,
        'client_steps': timing.point.client_steps,
        'compile_s': timing.compile_seconds,
        'median_s': timing.median,
        'min_s': min(timing.seconds),
        'max_s': max(timing.seconds),
        'measurements_s': timing.seconds,
    }


def describe_sweep(own: Sweep) -> dict[str, Any]:
    """Describes a sweep for the file."""
    unit = 'slope_us_per_client_step'
    slope = 1e6 * own.line.slope
    if own.by_parameters:
        unit, slope = unit + '_and_million_parameters', 1e6 * slope
    fitted = {
        'fixed_ms': 1e3 * own.line.fixed,
        unit: slope,
        'r_squared': own.line.r_squared,
        'largest_relative_error': own.line.worst,
    }
    return {
        'varied': own.name,
        # JSON has no NaN.
        'fit': {key: value if np.isfinite(value) else None for key, value in fitted.items()},
        'points': [describe_timing(t) | {'fitted': all_busy(t)} for t in own.timings],
    }


def numbers(flag: flags.FlagHolder) -> list[int]:
    """Reads a list of positive integers from a flag.

    Args:
      flag: the flag.

    Returns:
      The numbers, each once, in ascending order.

    Raises:
      UsageError: if there is none, or one is not a positive integer.
    """
    if not flag.value or not all(text.isdecimal() and int(text) for text in flag.value):
        raise app.UsageError(f'--{flag.name}={",".join(flag.value)} must be integers from 1 on.')
    return sorted({int(text) for text in flag.value})


def main(argv: list[str]) -> None:
    """Measures, prints the tables, writes the file and draws the picture."""
    if len(argv) > 1:
        raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
    varied_by = {
        'clients': _CLIENTS_SWEEP,
        'examples': _EXAMPLES_SWEEP,
        'epochs': _EPOCHS_SWEEP,
        'width': _WIDTH_SWEEP,
    }
    values = {name: numbers(flag) for name, flag in varied_by.items()}
    for flag in (_OUTPUT, _FIGURE):
        if flag.value and not Path(flag.value).absolute().parent.is_dir():
            raise app.UsageError(f'--{flag.name}={flag.value} is in a folder that does not exist.')
    # absl shows what libraries log; theirs of a missing TPU is nothing to the user.
    logging.getLogger('jax').setLevel(logging.WARNING)
    use_every_core()
    try:
        check_devices(_DEVICES.value)
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    console = Console(highlight=False)
    described = machine()
    base = Point(
        clients=_CLIENTS.value,
        examples=_EXAMPLES.value,
        epochs=_EPOCHS.value,
        batch_size=_BATCH_SIZE.value,
        most_devices=make_mesh(_DEVICES.value).size,
    )
    smallest = base._replace(examples=1, batch_size=1, epochs=1)
    sweeps = []
    for name, own in values.items():
        sweeps.append(sweep(name, own, base, repeats=_REPEATS.value))
        console.print(point_table(sweeps[-1]))
    direct = measure(
        [smallest._replace(clients=n) for n in sorted({1, base.clients})],
        'one step on one example',
        repeats=_REPEATS.value,
    )
    around = ', '.join(f'{key} {own}' for key, own in base._asdict().items() if own is not None)
    caption = f'Base: {around}.\n' + ', '.join(f'{key} {own}' for key, own in described.items())
    console.print(line_table(sweeps, caption))
    for timing in direct:
        console.print(
            f'Measured: one step on one example, clients {timing.point.clients}: a round '
            f'takes {1e3 * timing.median:.3f} ms '
            f'({1e3 * min(timing.seconds):.3f}-{1e3 * max(timing.seconds):.3f}).'
        )
    if _FIGURE.value:
        draw_sweeps(sweeps, Path(_FIGURE.value))
        console.print(f'Drawn to {_FIGURE.value}.')
    if _OUTPUT.value:
        report = {
            'machine': described,
            'settings': {**base._asdict(), 'repeats': _REPEATS.value},
            'sweeps': [describe_sweep(own) for own in sweeps],
            'fixed_measured': [describe_timing(timing) for timing in direct],
        }
        Path(_OUTPUT.value).write_text(json.dumps(report, indent=2) + '\n')
        console.print(f'Written to {_OUTPUT.value}.')


if __name__ == '__main__':
    app.run(main)
