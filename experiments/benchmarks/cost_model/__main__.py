"""Predicts time, memory and traffic of a round, and tests the model on cases not used in the fit.

The cores work for a round

  seconds = a + b S + c M P + K (d + e F + f A + g P) (1 + h (D - 1)) + i D P

with M = S clients of the cohort and their K steps, P parameters (millions), F operations (GFLOP)
and A bytes (GB) of a step by the plain algorithm, as XLA counts them, and D devices. The round
lasts as long as the busiest device works, computed with the M and K of that device. For an
evaluation the cores work

  seconds = j + (k F' + l A') m (1 + h' (D - 1))

with m images in all, in whole chunks of each device; it lasts as long as one device's m. Everything
but h and h' is fitted to the work, which other programs on the machine lengthen less than the
wall-clock time, by least squares of relative errors without negative coefficients; h and h', the
slowdown of devices that share caches and memory, are the best of a grid. A device's memory without
the images is

  bytes = n + L (o P + p A) + q P

Cases are measured in turns, on a core of a CPU for each device; those with a new
property, `held_out`, are not fitted.

python -m experiments.benchmarks.cost_model --output=experiments/results/cost_model_cpu
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure
from scipy.optimize import nnls

from experiments.benchmarks.cost_model import cases
from experiments.benchmarks.cost_model.cases import (
    CASES,
    TESTED,
    Case,
    Counts,
    Measured,
    Turn,
    step_of,
)
from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.measuring.timing import seconds
from experiments.benchmarks.programs.rounds import CLASSES, SHAPE
from jaxfed import methods
from jaxfed.engine.evaluation import chunk_size
from jaxfed.engine.lanes import choose_lanes, schedule
from jaxfed.internal.files import read_json
from jaxfed.methods.costs import method_cost
from jaxfed.models import make_model
from jaxfed.recording.style import COLOURS, save, style

COHORTS = (10**2, 10**3, 10**4, 10**5)
CONTENTION = np.arange(0, 1.01, 0.02)  # h
TERMS = {
    'round': ('1', 'S', 'M P', 'K', 'K F', 'K A', 'K P', 'D P'),
    'test': ('1', 'F', 'A'),
    'memory': ('1', 'L P', 'L A', 'P'),
}


def time_columns(measured: Measured, contention: float, *, wall_clock: bool = False) -> np.ndarray:
    """The terms of a round as in `TERMS`; P in millions, F in GFLOP, A in GB.

    Args:
      measured: a case.
      contention: h.
      wall_clock: of the time of the busiest device, not of all cores' work.

    Returns:
      [terms].
    """
    case, counts, step = measured.case, measured.counts, step_of(measured.case.model)
    clients, steps = counts.busiest if wall_clock else (case.clients, counts.executed)
    slowed = steps * (1 + contention * (case.devices - 1))
    size = step.parameters / 1e6
    flops, moved = (case.batch_size * x / 1e9 for x in (step.train_flops, step.train_bytes))
    by_step = [slowed * x for x in (1, flops, moved, size)]
    return np.array([1, case.clients, clients * size, *by_step, case.devices * size])


def test_columns(measured: Measured, contention: float, *, wall_clock: bool = False) -> np.ndarray:
    """The terms of an evaluation as in `TERMS`, [terms]; arguments as for `time_columns`."""
    step, devices = step_of(measured.case.model), measured.case.devices
    share = -(-TESTED // devices)
    chunk = chunk_size(share)
    images = -(-share // chunk) * chunk * (1 if wall_clock else devices)
    slowed = images * (1 + contention * (devices - 1)) / 1e9
    return np.array([1, slowed * step.test_flops, slowed * step.test_bytes])


def memory_columns(measured: Measured, _: float = 0) -> np.ndarray:
    """The terms of a device's memory as in `TERMS`, [terms]; P in 4 bytes, A in bytes."""
    case, step = measured.case, step_of(measured.case.model)
    size = 4 * step.parameters
    by_lane = [case.lanes * size, case.lanes * case.batch_size * step.train_bytes]
    return np.array([2**20, *by_lane, size])


class Fit(NamedTuple):
    """A fitted model."""

    values: np.ndarray  # [terms]
    contention: float = 0.0


def fit(columns: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares of relative errors without negative coefficients.

    Args:
      columns: [n, terms].
      wanted: [n].

    Returns:
      (the coefficients, root of the mean squared relative error).
    """
    # Scaled, so that the columns have one size for any unit.
    scale = np.where(columns.any(axis=0), np.abs(columns).max(axis=0), 1)
    values, residual = nnls(columns / scale / wanted[:, None], np.ones(len(wanted)))
    return values / scale, residual / len(wanted) ** 0.5


def fit_all(measured: Sequence[Measured]) -> dict[str, Fit]:
    """Fits the models of `TERMS` to the cases that are not held out."""
    fitted = [m for m in measured if not m.case.held_out]

    def best(
        columns: Callable[[Measured, float], np.ndarray], wanted: list[float], grid: np.ndarray
    ) -> Fit:
        fits = {h: fit(np.stack([columns(m, h) for m in fitted]), np.array(wanted)) for h in grid}
        h = min(fits, key=lambda h: fits[h][1])
        return Fit(fits[h][0], float(h))

    return {
        'round': best(time_columns, [m.median('work') for m in fitted], CONTENTION),
        'test': best(test_columns, [m.median('test_work') for m in fitted], CONTENTION),
        'memory': best(memory_columns, [m.counts.memory for m in fitted], np.zeros(1)),
    }


def compare(measured: Sequence[Measured], fits: dict[str, Fit]) -> list[dict[str, Any]]:
    """An entry for each case: measured, predicted, and `error`, predicted over measured less 1."""
    h, h_test = fits['round'].contention, fits['test'].contention
    entries = []
    for m in measured:
        entry: dict[str, Any] = m.case._asdict() | {
            'busiest': m.counts.busiest,
            'executed': m.counts.executed,
            'needed_bytes': m.counts.needed,
        }
        for name, model, values, columns in (
            ('work', 'round', m.all('work'), time_columns(m, h)),
            ('round', 'round', m.all('round'), time_columns(m, h, wall_clock=True)),
            ('test_work', 'test', m.all('test_work'), test_columns(m, h_test)),
            ('test', 'test', m.all('test'), test_columns(m, h_test, wall_clock=True)),
            ('memory', 'memory', [m.counts.memory], memory_columns(m)),
        ):
            median = statistics.median(values)
            predicted = float(columns @ fits[model].values)
            entry[name] = {
                'measured': median,
                'predicted': predicted,
                'error': predicted / median - 1,
                'measurements': values,
            }
        entries.append(entry)
    return entries


def errors(entries: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and largest |error| of each quantity, for the fitted cases and each kind held out."""
    sums: dict[str, dict[str, float]] = {}
    for held_out in dict.fromkeys(entry['held_out'] for entry in entries):
        group = [entry for entry in entries if entry['held_out'] == held_out]
        sums[held_out or 'fitted'] = {
            f'{name}, {label}': float(reduce([abs(entry[name]['error']) for entry in group]))
            for name in ('work', 'round', 'test_work', 'test', 'memory')
            for label, reduce in (('mean', np.mean), ('largest', np.max))
        }
    return sums


def read(entry: dict[str, Any]) -> Measured:
    """Reads a measured case back from an entry of `compare`."""
    case = Case(**{name: entry[name] for name in Case._fields})
    counts = Counts(
        entry['memory']['measured'],
        entry['needed_bytes'],
        tuple(entry['busiest']),
        entry['executed'],
    )
    fields = [entry[name]['measurements'] for name in Turn._fields]
    return Measured(case, counts, [Turn(*values) for values in zip(*fields, strict=True)])


def traffic(name: str, method: str, *, clients: int, devices: int) -> dict[str, float]:
    """Bytes that a round of network `name` sends, and a client's state.

    Args:
      name: of the network.
      method: of `jaxfed.methods`.
      clients: S, of the cohort.
      devices: D.

    Returns:
      Bytes that each device sends in a ring all-reduce of the sums, 2 (D - 1) / D of theirs; that a
      federation's server sends and receives, S (download + upload); of a client's state.
    """
    built = methods.build(methods.resolve(method, {}))
    model = make_model(name, input_shape=SHAPE, num_classes=CLASSES)
    cost = method_cost(built, model, input_shape=SHAPE, num_classes=CLASSES)
    # The sums are over what clients upload: the update, and further messages.
    return {
        'all_reduce_bytes_per_device': 2 * (devices - 1) / devices * cost.upload_bytes,
        'federation_bytes': clients * (cost.download_bytes + cost.upload_bytes),
        'client_state_bytes': cost.client_state_bytes,
    }


def host_seconds(cohort_size: int) -> dict[str, float]:
    """Seconds of the host: scheduling a cohort on 4 devices or S / 8 lanes, choosing lanes."""
    steps = np.random.default_rng(0).integers(1, 200, cohort_size)
    calls = {
        'four_devices_s': lambda: schedule(steps, lanes=1, devices=4),
        'one_device_s': lambda: schedule(steps, lanes=max(cohort_size // 8, 1)),
        'choose_lanes_s': lambda: choose_lanes(
            [np.tile(steps, 10)], cohort_size=cohort_size, most=cohort_size
        ),
    }
    return {'clients': cohort_size, **{name: seconds(call) for name, call in calls.items()}}


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws predicted against measured."""
    panels = {
        'work': ('work of a round', 'ms', 1e3),
        'round': ('time of a round', 'ms', 1e3),
        'test_work': (f'work for {TESTED} test images', 'ms', 1e3),
        'memory': ('memory of a device', 'MiB', 2**-20),
    }
    entries = report['cases']
    models = list(dict.fromkeys(entry['model'] for entry in entries))
    with style():
        figure = Figure(figsize=(13, 4), layout='constrained')
        for axes, (name, (title, unit, scale)) in zip(
            figure.subplots(1, 4), panels.items(), strict=True
        ):
            for entry in entries:
                colour = COLOURS[models.index(entry['model']) % len(COLOURS)]
                axes.plot(
                    scale * entry[name]['measured'],
                    scale * entry[name]['predicted'],
                    's' if entry['held_out'] else 'o',
                    color=colour,
                    markerfacecolor='white' if entry['held_out'] else colour,
                    label=entry['model'] + (', held out' if entry['held_out'] else ''),
                )
            ends = [scale * end(e[name]['measured'] for e in entries) for end in (min, max)]
            axes.plot(ends, ends, color='0.4', linewidth=0.8)
            axes.set(xscale='log', yscale='log', title=title)
            axes.set(xlabel=f'measured, {unit}', ylabel=f'predicted, {unit}')
        labelled = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(labelled.values(), labelled, loc='outside lower center', ncols=6)
        save(figure, path)


def show(report: dict[str, Any]) -> None:
    """Prints the table, the errors, the model and the host's seconds."""
    rows = []
    scales = {'work': 1e3, 'round': 1e3, 'test': 1e3, 'memory': 2**-20}
    for entry in report['cases']:
        sizes = (entry[key] for key in ('batch_size', 'clients', 'steps', 'devices', 'lanes'))
        cells = [
            f'{scale * entry[name]["measured"]:.1f} ({100 * entry[name]["error"]:+.0f} %)'
            for name, scale in scales.items()
        ]
        rows.append([f'{entry["model"]} ' + '/'.join(map(str, sizes)), entry['held_out'], *cells])
    columns = ('case', 'held out', 'work, ms', 'round, ms', 'test, ms', 'MiB')
    table = reporting.make_table('Measured, and error of the model', columns, rows)
    reporting.console.print(table)

    def line(values: dict[str, float], form: str) -> str:
        return ', '.join(f'{key}: {value:{form}}' for key, value in values.items())

    for name, values in report['errors'].items():
        reporting.console.print(name, line(values, '.0%'))
    for name, values in report['model'].items():
        reporting.console.print(name, line(values, '.4g'))
    for values in report['host']:
        reporting.console.print(line(values, '.4g'))


def main(args: flags.FlagValues) -> None:
    """Measures, fits, prints, writes and draws."""
    if args.measured:
        if not Path(args.measured).is_file():
            raise app.UsageError(f'--measured={args.measured}: there is no such file.')
        earlier = read_json(Path(args.measured))
        measured = [read(entry) for entry in earlier['cases']]
        machine, host = earlier['machine'], earlier['host']
    else:
        measured = cases.measure(args.repeats)
        machine, host = reporting.machine(), [host_seconds(size) for size in COHORTS]
    fits = fit_all(measured)
    entries = compare(measured, fits)
    report: dict[str, Any] = {
        'machine': machine,
        'model': {
            name: dict(zip(terms, fits[name].values.tolist(), strict=True))
            | ({} if name == 'memory' else {'contention': fits[name].contention})
            for name, terms in TERMS.items()
        },
        'steps': {case.model: step_of(case.model)._asdict() for case in CASES},
        'errors': errors(entries),
        'cases': entries,
        'host': host,
        'traffic': {
            f'{model}, {method}': traffic(model, method, clients=1000, devices=4)
            for model in ('cnn', 'resnet18')
            for method in ('fedavg', 'fedlmd', 'scaffold')
        },
    }
    show(report)
    reporting.write(report, args.output, draw)


if __name__ == '__main__':
    reporting.define_positive('repeats', 7, 'Measurements of each case.')
    flags.DEFINE_string('measured', None, 'File of earlier measurements, to fit them again.')
    flags.DEFINE_string('output', None, reporting.JSON_AND_PICTURE)
    reporting.run(main)
