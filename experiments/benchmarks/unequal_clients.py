"""How much of the executed work is real when clients hold unequal numbers of examples.

CIFAR-10's labels are dealt by a Dirichlet distribution, and random cohorts are scheduled in
different ways. As many lanes as clients on one device is the padded engine: every client of the
round runs for as many steps as its longest. Counted are examples: a short last batch is executed in
full, but only its real examples count. "executed" is the real share of what the program executes,
"busy" the real share of what all lanes could have executed until the last of them is done.

A round of the middle cohort is then timed, padded on one device and as `jaxfed.main` would train it
here, in turns, and both must give the same parameters.
"""

import functools
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.machine import machine
from experiments.benchmarks.single_experiment import round_arguments, run_round
from jaxfed.data.augment import normalise
from jaxfed.engine.cohorts import everyone
from jaxfed.engine.devices import make_mesh, replicate, use_every_core
from jaxfed.engine.execution import compile_round
from jaxfed.engine.lanes import choose_lanes, schedule
from jaxfed.engine.local import LocalSettings, steps_per_epoch
from jaxfed.engine.round import ServerState, TrainingData, make_round
from jaxfed.methods.method import Method
from jaxfed.models import make_model
from jaxfed.partition import make_partition
from jaxfed.types import PyTree

CLASSES = 10
CLIENTS, COHORT = 100, 10
BATCH_SIZE, EPOCHS = 50, 5
SHAPE = (32, 32, 3)
TOLERANCE = 1e-4
# (lanes, devices); the first is the padded engine.
ARRANGEMENTS = [(10, 1), (2, 1), (3, 1), (4, 1), (5, 1), (8, 1), (1, 2), (1, 4), (1, 8)]
# Colour-blind-safe: blue, vermilion, green.
COLOURS = {0.05: '#0072b2', 0.1: '#d55e00', 0.5: '#009e73'}

_ROUNDS = flags.DEFINE_integer('rounds', 200, 'Random cohorts.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the partition and the cohorts.', lower_bound=0)
_MODEL = flags.DEFINE_enum('model', 'lenet', ['cnn', 'lenet', 'mlp'], 'Network that is timed.')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Timed rounds of each; 0 for none.', lower_bound=0)
_OUTPUT = flags.DEFINE_string('output', None, 'File to write the measurements to, as JSON.')
_FIGURE = flags.DEFINE_string('figure', None, 'File to draw the shares to, as PNG.')


class Share(NamedTuple):
    """Real work as a share of other work, over all cohorts."""

    lanes: int
    devices: int
    executed: float
    busy: float


def client_steps(sizes: np.ndarray) -> np.ndarray:
    """Local steps of clients with so many examples."""
    return EPOCHS * steps_per_epoch(sizes, BATCH_SIZE)


def share(cohorts: np.ndarray, *, lanes: int, devices: int) -> Share:
    """Counts the work of all rounds.

    Args:
      cohorts: [R, S] examples of the clients of each round.
      lanes: of each device.
      devices: that share the clients out.

    Returns:
      The shares.
    """
    plans = [schedule(client_steps(own), lanes=lanes, devices=devices) for own in cohorts]
    real = EPOCHS * cohorts.sum() / BATCH_SIZE
    room = sum(plan.length for plan in plans) * lanes * devices
    return Share(lanes, devices, real / sum(plan.executed for plan in plans), real / room)


def round_program(
    sizes: np.ndarray, *, lanes: int, devices: int
) -> tuple[Callable[[], PyTree], PyTree]:
    """Makes a round of clients of these sizes on random images.

    Args:
      sizes: [S] examples of each.
      lanes: of each device.
      devices: that train.

    Returns:
      A function that runs it and gives the parameters after it, and the parameters before.
    """
    rng = np.random.default_rng(0)
    n = int(sizes.sum())
    y = rng.integers(0, CLASSES, n, np.int32)
    start = np.cumsum(sizes) - sizes
    arrays = (
        rng.integers(0, 256, (n, *SHAPE), np.uint8),
        y,
        np.arange(n, dtype=np.int32),
        start.astype(np.int32),
        sizes.astype(np.int32),
        np.stack([np.bincount(own, minlength=CLASSES) for own in np.split(y, start[1:])]),
    )
    mesh = make_mesh(devices)
    x, y, order, begin, size, counts = replicate(arrays, mesh)
    model = make_model(_MODEL.value, input_shape=SHAPE, num_classes=CLASSES)
    settings = LocalSettings(
        local_epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        momentum=0.9,
        weight_decay=1e-5,
        aggregation='size',
        longest=int(sizes.max()),
    )
    to_input = functools.partial(normalise, mean=np.full(3, 128.0), std=np.full(3, 64.0))
    parts = make_round(model, Method(), settings, lambda _, x: to_input(x), to_input, mesh=mesh)
    params = model.init(jax.random.key(0))
    server = ServerState(params, (), jnp.zeros((), jnp.int32))
    arguments = round_arguments(
        replicate(server, mesh),
        (),
        everyone(np.arange(len(sizes)), EPOCHS),
        schedule(client_steps(sizes), lanes=lanes, devices=devices),
        0.01,
        replicate(jax.random.key(1), mesh),
        TrainingData(x, y, order, begin, size, counts),
    )
    programs = compile_round(parts, mesh, *arguments)
    return lambda: jax.block_until_ready(run_round(programs, mesh, *arguments)[0].params), params


def furthest(a: PyTree, b: PyTree) -> float:
    """Largest absolute difference of two trees of arrays."""
    apart = jax.tree.map(lambda x, y: np.abs(np.asarray(x) - np.asarray(y)).max(), a, b)
    return float(np.max(jax.tree.leaves(apart)))


def compare(cohorts: np.ndarray, *, lanes: int, devices: int) -> dict[str, Any]:
    """Times a round of the middle cohort, padded and dealt, in turns.

    Args:
      cohorts: [R, S] examples of the clients of each round.
      lanes: of each device.
      devices: that train.

    Returns:
      What was measured, for the file.
    """
    useful = cohorts.mean(axis=1) / cohorts.max(axis=1)
    sizes = cohorts[np.argsort(useful, kind='stable')[len(useful) // 2]]
    padded, before = round_program(sizes, lanes=len(sizes), devices=1)
    dealt, _ = round_program(sizes, lanes=lanes, devices=devices)
    after_padded, after_dealt = padded(), dealt()
    seconds: dict[str, list[float]] = {'padded': [], 'dealt': []}
    for _ in range(_REPEATS.value):
        for name, run in (('padded', padded), ('dealt', dealt)):
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return {
        'client_examples': sizes.tolist(),
        'client_steps': int(client_steps(sizes).sum()),
        'lanes': lanes,
        'devices': devices,
        'seconds': seconds,
        'ratio': statistics.median(seconds['padded']) / statistics.median(seconds['dealt']),
        'largest_difference': furthest(after_padded, after_dealt),
        'largest_update': furthest(after_padded, before),
    }


def draw(shares: dict[float, list[Share]], path: Path) -> None:
    """Draws the real share of executed examples as bars."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout='constrained')
    axes = figure.add_subplot(ylabel='real share of executed examples (%)')
    width = 0.8 / len(shares)
    for i, (alpha, own) in enumerate(shares.items()):
        places = np.arange(len(own)) + (i - (len(shares) - 1) / 2) * width
        heights = [100 * each.executed for each in own]
        bars = axes.bar(places, heights, width, color=COLOURS[alpha], label=f'alpha {alpha:g}')
        axes.bar_label(bars, fmt='%.0f', fontsize=7)
    axes.axhline(85, color='0.4', linewidth=0.8, linestyle='--')
    labels = [
        f'{each.lanes} lanes,\npadded' if not i else f'{each.lanes} lanes' if each.devices == 1
        else f'{each.devices} devices'
        for i, each in enumerate(own)
    ]  # fmt: skip
    axes.set_xticks(range(len(own)), labels, fontsize=8)
    axes.set_ylim(0, 110)
    axes.set_title(f'CIFAR-10, {CLIENTS} clients, {COHORT} a round, batches of {BATCH_SIZE}')
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(ncols=3, frameon=False, loc='upper center')
    figure.savefig(path, dpi=150)


def main(argv: list[str]) -> None:
    """Counts and measures, prints the tables, writes the file and draws the picture."""
    if len(argv) > 1:
        raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
    # absl shows what libraries log; theirs of a missing TPU is nothing to the user.
    logging.getLogger('jax').setLevel(logging.WARNING)
    use_every_core()
    console = Console(highlight=False)
    devices = make_mesh(most=COHORT).size
    shares, cohorts, chosen = {}, {}, {}
    for alpha in COLOURS:
        sizes = partition_sizes(alpha)
        rng = np.random.default_rng(_SEED.value)
        drawn = [rng.choice(sizes, COHORT, replace=False) for _ in range(_ROUNDS.value)]
        cohorts[alpha] = np.stack(drawn)
        shares[alpha] = [
            share(cohorts[alpha], lanes=lanes, devices=count) for lanes, count in ARRANGEMENTS
        ]
        chosen[alpha] = choose_lanes([client_steps(sizes)], cohort_size=COHORT, most=COHORT)

    table = Table(
        title='Real share of executed examples / of the time of all lanes, %',
        caption=f'CIFAR-10, {CLIENTS} clients, {COHORT} a round, batches of {BATCH_SIZE}, '
        f'{EPOCHS} epochs, {_ROUNDS.value} random rounds. Lanes that would be chosen on one '
        'accelerator: ' + ', '.join(f'{n} (alpha {a:g})' for a, n in chosen.items()) + '.',
    )
    table.add_column('devices')
    table.add_column('lanes')
    for alpha in shares:
        table.add_column(f'alpha {alpha:g}', justify='right')
    for i, (lanes, count) in enumerate(ARRANGEMENTS):
        cells = [
            f'{100 * own[i].executed:.1f} / {100 * own[i].busy:.1f}' for own in shares.values()
        ]
        table.add_row(str(count), f'{lanes}, padded' if not i else str(lanes), *cells)
    console.print(table)
    if _FIGURE.value:
        draw(shares, Path(_FIGURE.value))
        console.print(f'Drawn to {_FIGURE.value}.')

    timed = {}
    for alpha in (0.05, 0.1) if _REPEATS.value else ():
        lanes = 1 if jax.default_backend() == 'cpu' else chosen[alpha]
        with console.status(f'measuring alpha {alpha:g}'):
            timed[alpha] = own = compare(cohorts[alpha], lanes=lanes, devices=devices)
        console.print(
            f'alpha {alpha:g}, {_MODEL.value}, {devices} device(s) with {lanes} lane(s): padded on '
            f'one device takes {own["ratio"]:.2f} times as long; parameters differ by '
            f'{own["largest_difference"]:.1e}, the round changed them by '
            f'{own["largest_update"]:.1e}.'
        )
    if _OUTPUT.value:
        report = {
            'machine': machine(),
            'settings': {flag.name: flag.value for flag in (_ROUNDS, _SEED, _MODEL, _REPEATS)},
            'shares': {f'{a:g}': [s._asdict() for s in own] for a, own in shares.items()},
            'lanes_chosen_on_one_device': {f'{a:g}': n for a, n in chosen.items()},
            'timed': {f'{alpha:g}': own for alpha, own in timed.items()},
        }
        Path(_OUTPUT.value).write_text(json.dumps(report, indent=2) + '\n')
        console.print(f'Written to {_OUTPUT.value}.')
    # Written so that NaN fails, too.
    if not all(own['largest_difference'] <= TOLERANCE for own in timed.values()):
        console.print(f'FAILED: the parameters must not differ by more than {TOLERANCE:g}.')
        sys.exit(1)


def partition_sizes(alpha: float) -> np.ndarray:
    """Examples of each client, [N], when CIFAR-10's labels are dealt with this alpha."""
    parts = make_partition(
        'dirichlet',
        np.repeat(np.arange(CLASSES), 5000),
        num_clients=CLIENTS,
        seed=_SEED.value,
        alpha=alpha,
        min_size=10,
    )
    return np.array([len(part) for part in parts])


if __name__ == '__main__':
    app.run(main)
