"""Time, memory and traffic of a round from a small model, fitted here and tested on what it has not
seen.

The cores work for a round

  seconds = a + b S + c M P + K (d + e F + f A + g P) (1 + h (D - 1)) + i D P

with M = S clients of the cohort and their K steps, P parameters (millions), F operations (GFLOP)
and A bytes (GB) of a step by the plain algorithm, as XLA counts them, and D devices. It lasts as
long as the busiest device works: the same with its own M and K. For an evaluation they work

  seconds = j + (k F' + l A') m (1 + h' (D - 1))

with m images that the devices go through, whole chunks, and it lasts as long as one device's m.
Everything but h and h' is fitted to the work, which others on the machine lengthen less than the
time that passes, by least squares of relative errors without negative values; h and h', how much
devices that share caches and memory slow each other down, are the best of a grid. A device's memory
without the images is

  bytes = n + L (o P + p A) + q P

Cases are measured in turns, on a core of a CPU for each device; those with something new in them,
`held_out`, are not fitted.

python -m experiments.benchmarks.cost_model --output=experiments/results/cost_model_cpu
"""

import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import nnls

from experiments.benchmarks.machine import machine
from experiments.benchmarks.rounds import Played, images_file, ready
from experiments.benchmarks.workers import process, serve, take_cores
from jaxfed import Config, methods
from jaxfed.engine.devices import cores
from jaxfed.engine.evaluation import chunk_size
from jaxfed.engine.execution import peak_memory
from jaxfed.engine.lanes import choose_lanes, schedule
from jaxfed.internal import command_line
from jaxfed.internal.files import read_json, write_json
from jaxfed.methods.costs import method_cost
from jaxfed.models import make_model
from jaxfed.models.ops import convolution
from jaxfed.recording.style import COLOURS, save, style
from jaxfed.runs.experiment import make_experiment
from jaxfed.types import Array, PyTree

SHAPE, CLASSES = (32, 32, 3), 10
EXAMPLES, TESTED = 8000, 1000
MODULE = 'experiments.benchmarks.cost_model'
COHORTS = (10**2, 10**3, 10**4, 10**5)
CONTENTION = np.arange(0, 1.01, 0.02)  # h
TIME = ('1', 'S', 'M P', 'K', 'K F', 'K A', 'K P', 'D P')
TEST = ('1', 'F', 'A')
MEMORY = ('1', 'L P', 'L A', 'P')


class Case(NamedTuple):
    """What is measured."""

    model: str
    batch_size: int
    clients: int  # a round
    steps: int  # local steps of each
    devices: int
    lanes: int = 1
    held_out: str = ''  # what is new in it, of one that is not fitted


# A step of each network in small and large batches, and each quantity varied.
CASES = (
    Case('mlp', 10, 4, 10, 4),
    Case('mlp', 50, 4, 10, 4),
    Case('mlp', 50, 32, 5, 4),
    Case('mlp', 10, 200, 1, 4),
    Case('mlp', 50, 4, 20, 1),
    Case('mlp', 50, 8, 10, 2),
    Case('mlp', 50, 8, 5, 1, 4),
    Case('lenet', 10, 4, 10, 4),
    Case('lenet', 50, 8, 10, 4),
    Case('lenet', 50, 2, 20, 1),
    Case('lenet', 100, 6, 5, 2),
    Case('lenet', 10, 100, 2, 4),
    Case('lenet', 50, 4, 5, 1, 2),
    Case('cnn', 10, 4, 10, 4),
    Case('cnn', 50, 4, 5, 4),
    Case('cnn', 50, 1, 5, 1),
    Case('cnn', 10, 16, 2, 2),
    Case('cnn', 10, 4, 4, 1, 2),
    Case('resnet8', 10, 4, 5, 4),
    Case('resnet8', 50, 2, 2, 2),
    Case('resnet8', 10, 2, 4, 1, 2),
    Case('lenet', 20, 40, 8, 4, held_out='size'),
    Case('cnn', 25, 10, 8, 4, held_out='size'),
    Case('mlp', 20, 60, 4, 3, held_out='size and devices'),
    Case('resnet8', 25, 8, 4, 4, held_out='size'),
    Case('cnn', 20, 3, 4, 1, 3, held_out='size and lanes'),
    Case('mobilenet', 10, 4, 4, 4, held_out='network'),
    Case('vgg11', 10, 4, 4, 4, held_out='network'),
)


class Step(NamedTuple):
    """What a network takes by the plain algorithm, of an image where nothing else is said."""

    parameters: int
    train_flops: float
    train_bytes: float
    test_flops: float
    test_bytes: float


class Measured(NamedTuple):
    """A case and what it took."""

    case: Case
    seconds: list[float]  # of a round without evaluation
    test_seconds: list[float]
    work: list[float]  # seconds that all cores worked for a round
    test_work: list[float]
    memory: int  # of the round's program on each device, without the images
    needed: int  # told before training, of each device
    busiest: tuple[int, int]  # clients and steps on the busiest device, idle lanes counted in
    executed: int  # steps on all devices


@functools.cache
def step_of(name: str) -> Step:
    """Counts operations and bytes of a network.

    Args:
      name: of the network.

    Returns:
      The counts; those of an image are what one more costs.
    """
    model = make_model(
        name, input_shape=SHAPE, num_classes=CLASSES, convolution=convolution('grouped')
    )
    params = jax.eval_shape(model.init, jax.random.key(0))

    def train(params: PyTree, x: Array) -> Array:
        return jnp.sum(model.train(params, x, model.stats, jnp.ones(len(x), bool)).logits)

    def test(params: PyTree, x: Array) -> Array:
        return model.evaluate(params, x, model.stats).logits

    def counts(function: Callable[..., Any], images: int) -> np.ndarray:
        x = jax.ShapeDtypeStruct((images, *SHAPE), jnp.float32)
        analysis = jax.jit(function).lower(params, x).cost_analysis()
        assert analysis is not None
        return np.array([analysis['flops'], analysis['bytes accessed']])

    one = [counts(f, 3) - counts(f, 2) for f in (jax.grad(train), test)]
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    return Step(total, *one[0].tolist(), *one[1].tolist())


def compile_cases(
    cases: Sequence[Case], folder: Path, *, rounds: int
) -> list[tuple[Played, Measured]]:
    """Compiles the rounds of cases, and plays one of each.

    Args:
      cases: that this process measures.
      folder: for the images.
      rounds: that are to be played at most.

    Returns:
      What plays each case, and where the measurements go.
    """
    path = images_file(folder / 'x.npz', examples=EXAMPLES, tested=TESTED, shape=SHAPE)
    every = []
    for case in cases:
        clients, rest = divmod(EXAMPLES, case.batch_size * case.steps)
        assert clients >= case.clients and not rest, case
        experiment = make_experiment(
            Config(
                dataset='npz', npz=str(path), model=case.model, partition='iid',
                num_clients=clients, clients_per_round=case.clients, local_epochs=1,
                batch_size=case.batch_size, rounds=rounds + 2, devices=str(case.devices),
                lanes=case.lanes,
            )
        )  # fmt: skip
        played = ready([experiment])
        played.train()
        played.test()
        plan = schedule([case.steps] * case.clients, lanes=case.lanes, devices=case.devices)
        memory = peak_memory(played.prepared.programs.train)
        memory -= experiment.dealt.dataset.x_train.nbytes
        busiest = int(plan.clients.max()), plan.length * case.lanes
        needed = played.prepared.needed
        own = Measured(case, [], [], [], [], memory, needed, busiest, plan.executed)
        every.append((played, own))
    return every


def measure_in_turns(devices: int, rounds: int) -> None:
    """Measures a round and an evaluation of one of the cases with so many devices when asked.

    Args:
      devices: how many, each a core of this process.
      rounds: that are to be measured at most.
    """
    cases = [case for case in CASES if case.devices == devices]
    with tempfile.TemporaryDirectory() as folder:
        every = compile_cases(cases, Path(folder), rounds=rounds)
        told = [[own.memory, own.needed, own.busiest, own.executed] for _, own in every]
        serve(told, lambda i: take(every[i][0]))


def take(played: Played) -> list[float]:
    """Measures a round and an evaluation.

    Args:
      played: of a case.

    Returns:
      Seconds of the round and of the evaluation, and seconds that the cores worked for each.
    """
    ticks = [time.process_time()]
    seconds = []
    for run in (played.train, played.test):
        seconds.append(run())
        ticks.append(time.process_time())
    return [*seconds, *np.diff(ticks).tolist()]


def measure(cases: Sequence[Case], *, repeats: int) -> list[Measured]:
    """Measures rounds and evaluations, in turns, cases of D devices in a process of D cores.

    Args:
      cases: what to measure.
      repeats: measurements of each.

    Returns:
      The cases with what they took.
    """
    counts = list(dict.fromkeys(case.devices for case in cases))
    with contextlib.ExitStack() as stack:
        asked = {
            devices: stack.enter_context(
                process(MODULE, [f'--worker={devices}', f'--repeats={repeats}'])
            )
            for devices in track(counts, 'compiling', transient=True)
        }
        found: list[Measured] = []
        places = []
        for case in cases:
            place = sum(each.case.devices == case.devices for each in found)
            memory, needed, busiest, executed = asked[case.devices].first[place]
            own = Measured(case, [], [], [], [], memory, needed, tuple(busiest), executed)
            found.append(own)
            places.append(place)
        for _ in track(range(repeats), 'measuring', transient=True):
            for own, place in zip(found, places, strict=True):
                add(own, asked[own.case.devices].ask(place))
    return found


def add(measured: Measured, taken: Sequence[float]) -> None:
    """Adds what `take` gave to a case's measurements."""
    lists = measured.seconds, measured.test_seconds, measured.work, measured.test_work
    for values, value in zip(lists, taken, strict=True):
        values.append(value)


def time_columns(measured: Measured, contention: float, *, passed: bool = False) -> np.ndarray:
    """What a round is made of, as in `TIME`; P in millions, F in GFLOP, A in GB.

    Args:
      measured: a case.
      contention: h.
      passed: of the time that passes, not of all cores' work.

    Returns:
      [terms].
    """
    case, step = measured.case, step_of(measured.case.model)
    clients, steps = measured.busiest if passed else (case.clients, measured.executed)
    slowed = steps * (1 + contention * (case.devices - 1))
    size = step.parameters / 1e6
    flops, moved = (case.batch_size * x / 1e9 for x in (step.train_flops, step.train_bytes))
    return np.array(
        [1, case.clients, clients * size, *(slowed * x for x in (1, flops, moved, size)),
         case.devices * size]
    )  # fmt: skip


def test_columns(measured: Measured, contention: float, *, passed: bool = False) -> np.ndarray:
    """What an evaluation is made of, as in `TEST`; F in GFLOP, A in GB.

    Args:
      measured: a case.
      contention: h'.
      passed: of the time that passes, not of all cores' work.

    Returns:
      [terms].
    """
    step, devices = step_of(measured.case.model), measured.case.devices
    share = -(-TESTED // devices)
    chunk = chunk_size(share)
    images = -(-share // chunk) * chunk * (1 if passed else devices)
    slowed = images * (1 + contention * (devices - 1)) / 1e9
    return np.array([1, slowed * step.test_flops, slowed * step.test_bytes])


def memory_columns(measured: Measured, _: float = 0) -> np.ndarray:
    """What a device's memory is made of, as in `MEMORY`; P in 4 bytes, A in bytes."""
    case, step = measured.case, step_of(measured.case.model)
    size = 4 * step.parameters
    return np.array(
        [2**20, case.lanes * size, case.lanes * case.batch_size * step.train_bytes, size]
    )


class Fit(NamedTuple):
    """Coefficients of a model."""

    values: np.ndarray
    contention: float = 0.0

    def predict(self, columns: np.ndarray) -> float:
        """What the model says of a case."""
        return float(columns @ self.values)


def fit(columns: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares of relative errors without negative coefficients.

    Args:
      columns: [n, terms].
      wanted: [n].

    Returns:
      (the coefficients, root of the mean squared relative error).
    """
    # Scaled, so that the columns are of one size whatever the unit.
    scale = np.where(columns.any(axis=0), np.abs(columns).max(axis=0), 1)
    values, residual = nnls(columns / scale / wanted[:, None], np.ones(len(wanted)))
    return values / scale, residual / len(wanted) ** 0.5


def fit_all(found: Sequence[Measured]) -> dict[str, Fit]:
    """Fits the three models to the cases that are not held out.

    Args:
      found: measured cases.

    Returns:
      Models of `round`, `test` and `memory`.
    """
    fitted = [each for each in found if not each.case.held_out]

    def best(
        columns: Callable[[Measured, float], np.ndarray],
        wanted: Sequence[float],
        grid: np.ndarray,
    ) -> Fit:
        tried = {
            h: fit(np.stack([columns(each, h) for each in fitted]), np.array(wanted)) for h in grid
        }
        h = min(tried, key=lambda h: tried[h][1])
        return Fit(tried[h][0], float(h))

    work = [statistics.median(each.work) for each in fitted]
    tests = [statistics.median(each.test_work) for each in fitted]
    return {
        'round': best(time_columns, work, CONTENTION),
        'test': best(test_columns, tests, CONTENTION),
        'memory': best(memory_columns, [each.memory for each in fitted], np.zeros(1)),
    }


def compare(found: Sequence[Measured], fits: dict[str, Fit]) -> list[dict[str, Any]]:
    """Puts what the models say beside what was measured.

    Args:
      found: measured cases.
      fits: from `fit_all`.

    Returns:
      An entry for each case; `error` is predicted over measured, less 1.
    """
    entries = []
    for each in found:
        entry: dict[str, Any] = each.case._asdict() | {
            'busiest': each.busiest,
            'executed': each.executed,
            'needed_bytes': each.needed,
        }
        h, of_test = fits['round'].contention, fits['test'].contention
        columns: dict[str, tuple[str, np.ndarray, Sequence[float]]] = {
            'work': ('round', time_columns(each, h), each.work),
            'round': ('round', time_columns(each, h, passed=True), each.seconds),
            'test_work': ('test', test_columns(each, of_test), each.test_work),
            'test': ('test', test_columns(each, of_test, passed=True), each.test_seconds),
            'memory': ('memory', memory_columns(each), [each.memory]),
        }
        for name, (fitted, own, measured) in columns.items():
            median = statistics.median(measured)
            predicted = fits[fitted].predict(own)
            entry[name] = {'measured': median, 'predicted': predicted}
            entry[name] |= {'error': predicted / median - 1, 'measurements': list(measured)}
        entries.append(entry)
    return entries


def errors(entries: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Sums the errors up.

    Args:
      entries: from `compare`.

    Returns:
      What is new in the cases -> mean and largest |error| of each model; '' for those fitted.
    """
    found: dict[str, dict[str, float]] = {}
    for new in dict.fromkeys(entry['held_out'] for entry in entries):
        own = [entry for entry in entries if entry['held_out'] == new]
        found[new or 'fitted'] = {
            f'{name}, {what}': float(pick([abs(entry[name]['error']) for entry in own]))
            for name in ('work', 'round', 'test_work', 'test', 'memory')
            for what, pick in (('mean', np.mean), ('largest', np.max))
        }
    return found


def read(entry: dict[str, Any]) -> Measured:
    """Reads a measured case back.

    Args:
      entry: from `compare`.

    Returns:
      The case with what it took.
    """
    return Measured(
        Case(**{name: entry[name] for name in Case._fields}),
        entry['round']['measurements'],
        entry['test']['measurements'],
        entry['work']['measurements'],
        entry['test_work']['measurements'],
        entry['memory']['measured'],
        entry['needed_bytes'],
        tuple(entry['busiest']),
        entry['executed'],
    )


def traffic(name: str, method: str, *, clients: int, devices: int) -> dict[str, float]:
    """Bytes that a round sends.

    Args:
      name: of the network.
      method: of `jaxfed.methods`.
      clients: S, of the cohort.
      devices: D.

    Returns:
      What each device sends in a ring all-reduce of the sums, 2 (D - 1) / D of their bytes; what a
      federation's server sends and receives, S (download + upload); a client's state.
    """
    built = methods.build(methods.resolve(method, {}))
    model = built.adapt(make_model(name, input_shape=SHAPE, num_classes=CLASSES))
    cost = method_cost(built, model, input_shape=SHAPE, num_classes=CLASSES)
    # What is summed up is the update, and what clients send besides.
    return {
        'all_reduce_bytes_per_device': 2 * (devices - 1) / devices * cost.upload_bytes,
        'federation_bytes': clients * (cost.download_bytes + cost.upload_bytes),
        'client_state_bytes': cost.client_state_bytes,
    }


def host_seconds(cohort_sizes: Sequence[int]) -> list[dict[str, float]]:
    """Times what the host computes for a cohort.

    Args:
      cohort_sizes: S.

    Returns:
      For each, seconds of dealing it to four devices of one lane, to one device of S / 8 lanes, and
      of choosing the lanes of one device.
    """
    rng = np.random.default_rng(0)
    found = []
    for size in cohort_sizes:
        steps = rng.integers(1, 200, size)
        ticks = [time.perf_counter()]
        schedule(steps, lanes=1, devices=4)
        ticks.append(time.perf_counter())
        schedule(steps, lanes=max(size // 8, 1))
        ticks.append(time.perf_counter())
        choose_lanes([np.tile(steps, 10)], cohort_size=size, most=size)
        ticks.append(time.perf_counter())
        names = ('four_devices_s', 'one_device_s', 'choose_lanes_s')
        found.append({'clients': size, **dict(zip(names, np.diff(ticks).tolist(), strict=True))})
    return found


def draw(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws predicted against measured.

    Args:
      entries: from `compare`.
      path: of the picture, without suffix.
    """
    from matplotlib.figure import Figure

    panels = {
        'work': ('work of a round', 'ms', 1e3),
        'round': ('time of a round', 'ms', 1e3),
        'test_work': (f'work for {TESTED} test images', 'ms', 1e3),
        'memory': ('memory of a device', 'MiB', 2**-20),
    }
    models = list(dict.fromkeys(entry['model'] for entry in entries))
    with style():
        figure = Figure(figsize=(13, 4), layout='constrained')
        for axes, name in zip(figure.subplots(1, 4), panels, strict=True):
            title, unit, scale = panels[name]
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
            ends = [scale * pick(e[name]['measured'] for e in entries) for pick in (min, max)]
            axes.plot(ends, ends, color='0.4', linewidth=0.8)
            axes.set(xscale='log', yscale='log', title=title)
            axes.set(xlabel=f'measured, {unit}', ylabel=f'predicted, {unit}')
        labelled = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(labelled.values(), labelled, loc='outside lower center', ncols=6)
        save(figure, path)


def show(found: dict[str, Any], console: Console) -> None:
    """Prints what was found.

    Args:
      found: what is written as JSON.
      console: to print to.
    """
    table = Table(title='Measured, and what the model says')
    for column in ('case', 'new in it', 'work, ms', 'round, ms', 'test, ms', 'MiB'):
        table.add_column(column, justify='right')
    for entry in found['cases']:
        cells = []
        for name, scale in (('work', 1e3), ('round', 1e3), ('test', 1e3), ('memory', 2**-20)):
            own = entry[name]
            cells.append(f'{scale * own["measured"]:.1f} ({100 * own["error"]:+.0f} %)')
        size = (entry[key] for key in ('batch_size', 'clients', 'steps', 'devices', 'lanes'))
        case = f'{entry["model"]} ' + '/'.join(map(str, size))
        table.add_row(case, entry['held_out'], *cells)
    console.print(table)
    for name, own in found['errors'].items():
        console.print(name, ', '.join(f'{key}: {100 * value:.0f} %' for key, value in own.items()))
    for name, own in found['model'].items():
        console.print(name, ', '.join(f'{term}: {value:.4g}' for term, value in own.items()))
    for own in found['host']:
        console.print(', '.join(f'{key} {value:.4g}' for key, value in own.items()))


def main(_: Sequence[str]) -> None:
    """Measures, fits, prints, writes and draws."""
    values = flags.FLAGS
    command_line.quiet_libraries()
    if values.worker:
        take_cores(values.worker)
        measure_in_turns(values.worker, values.repeats)
        return
    if values.measured:
        earlier = read_json(Path(values.measured))
        measured = [read(entry) for entry in earlier['cases']]
    else:
        measured = measure(CASES, repeats=values.repeats)
    fits = fit_all(measured)
    names = {'round': TIME, 'test': TEST, 'memory': MEMORY}
    found: dict[str, Any] = {
        'machine': earlier['machine'] if values.measured else machine() | {'cores': cores()},
        'model': {
            name: dict(zip(names[name], own.values.tolist(), strict=True))
            | ({'contention': own.contention} if name != 'memory' else {})
            for name, own in fits.items()
        },
        'steps': {name: step_of(name)._asdict() for name in {case.model for case in CASES}},
        'errors': errors(compare(measured, fits)),
        'cases': compare(measured, fits),
        'host': earlier['host'] if values.measured else host_seconds(COHORTS),
        'traffic': {
            f'{model}, {method}': traffic(model, method, clients=1000, devices=4)
            for model in ('cnn', 'resnet18')
            for method in ('fedavg', 'fedlmd', 'scaffold')
        },
    }
    show(found, Console(highlight=False))
    if values.output:
        path = Path(values.output)
        write_json(path.with_name(f'{path.name}.json'), found)
        draw(found['cases'], path)


if __name__ == '__main__':
    # Here, because tests import this module beside jaxfed's own flags.
    flags.DEFINE_integer('repeats', 7, 'Measurements of each case.', lower_bound=1)
    flags.DEFINE_string('measured', None, 'File of earlier measurements, to fit them again.')
    flags.DEFINE_integer('worker', 0, 'Internal: devices of the process that measures.')
    flags.DEFINE_string('output', None, 'Files without suffix: .json, .png and .svg.')
    app.run(main)
