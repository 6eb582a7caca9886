"""The useful share of the executed work if clients hold unequal numbers of examples.

CIFAR-10's labels are partitioned by a Dirichlet distribution, and random cohorts are scheduled in
different ways. As many lanes as clients on one device is the padded engine: every client of the
round runs for as many steps as its longest. The unit is an example: a short last batch is executed
in full, but only its real examples count. "executed" is the real share of what the program
executes, "busy" the real share of what all lanes could have executed until the last of them ends.

Then a round of the cohort with the median useful share is timed, padded on one device and as
`jaxfed.main` trains it, in turns. Both must result in the same parameters.

python -m experiments.benchmarks.unequal_clients --output=FILE.json --figure=FILE.png
"""

import statistics
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags
from matplotlib.figure import Figure

from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.measuring.timing import time_in_turns
from experiments.benchmarks.programs.cohorts import (
    ALPHAS,
    BATCH_SIZE,
    CLIENTS,
    COHORT,
    EPOCHS,
    client_steps,
    partition_sizes,
    shares_of,
)
from experiments.benchmarks.programs.rounds import (
    CLASSES,
    SHAPE,
    CohortRound,
    compile_cohort,
    largest_difference,
)
from jaxfed.engine.devices import make_mesh, use_every_core
from jaxfed.engine.lanes import choose_lanes, schedule
from jaxfed.internal import console
from jaxfed.models import make_model
from jaxfed.recording.style import COLOURS, style

TIMED_ALPHAS = (0.05, 0.1)
TOLERANCE = 1e-4
# (lanes, devices); the first is the padded engine.
ARRANGEMENTS = [(10, 1), (2, 1), (3, 1), (4, 1), (5, 1), (8, 1), (1, 2), (1, 4), (1, 8)]


def count(cohorts: np.ndarray, *, lanes: int, devices: int) -> dict[str, Any]:
    """Real work as a share of other work, over rounds of clients with [R, S] examples."""
    plans = [schedule(client_steps(sizes), lanes=lanes, devices=devices) for sizes in cohorts]
    return shares_of(plans, EPOCHS * cohorts.sum() / BATCH_SIZE, lanes=lanes, devices=devices)


def compile_round(model: str, sizes: np.ndarray, *, lanes: int, devices: int) -> CohortRound:
    """Compiles a round of clients with `sizes` [S] examples."""
    return compile_cohort(
        make_model(model, input_shape=SHAPE, num_classes=CLASSES),
        sizes,
        mesh=make_mesh(devices),
        lanes=lanes,
        batch_size=BATCH_SIZE,
        local_epochs=EPOCHS,
        weight_decay=1e-5,
    )


def compare(
    model: str, cohorts: np.ndarray, *, lanes: int, devices: int, repeats: int
) -> dict[str, Any]:
    """Times a round of the median cohort of [R, S], padded and dealt; returns the file's entry."""
    useful = cohorts.mean(axis=1) / cohorts.max(axis=1)
    sizes = cohorts[np.argsort(useful, kind='stable')[len(useful) // 2]]
    padded = compile_round(model, sizes, lanes=len(sizes), devices=1)
    dealt = compile_round(model, sizes, lanes=lanes, devices=devices)
    after_padded, after_dealt = padded.run(), dealt.run()
    runs = {'padded': padded.run, 'dealt': dealt.run}
    seconds = time_in_turns(runs, repeats, warm_up=False)
    return {
        'client_examples': sizes.tolist(),
        'client_steps': int(client_steps(sizes).sum()),
        'lanes': lanes,
        'devices': devices,
        'seconds': seconds,
        'ratio': statistics.median(seconds['padded']) / statistics.median(seconds['dealt']),
        'largest_difference': largest_difference(after_padded, after_dealt),
        'largest_update': largest_difference(after_padded, padded.params),
    }


def draw(shares: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draws the real share of the executed examples as bars, to a PNG."""
    with style():
        figure = Figure(figsize=(8, 4), layout='constrained')
        axes = figure.add_subplot(ylabel='real share of executed examples (%)')
        width, places = 0.8 / len(shares), np.arange(len(ARRANGEMENTS))
        for i, (alpha, entries) in enumerate(shares.items()):
            offset = (i - (len(shares) - 1) / 2) * width
            heights = [100 * entry['executed'] for entry in entries]
            bars = axes.bar(
                places + offset, heights, width, color=COLOURS[i], label=f'alpha {alpha}'
            )
            axes.bar_label(bars, fmt='%.0f', fontsize=7)
        axes.axhline(85, color='0.4', linewidth=0.8, linestyle='--')
        labels = [
            f'{lanes} lanes' if devices == 1 else f'{devices} devices'
            for lanes, devices in ARRANGEMENTS
        ]
        axes.set_xticks(places, [f'{labels[0]},\npadded', *labels[1:]], fontsize=8)
        axes.set_ylim(0, 110)
        axes.set_title(f'CIFAR-10, {CLIENTS} clients, {COHORT} a round, batches of {BATCH_SIZE}')
        axes.legend(ncols=3, loc='upper center')
        figure.savefig(path, dpi=150, format='png')


def show_shares(shares: dict[str, list[dict[str, Any]]], chosen: dict[str, int]) -> None:
    """Prints the table of shares."""
    rows = []
    for i, (lanes, devices) in enumerate(ARRANGEMENTS):
        counts = [entries[i] for entries in shares.values()]
        cells = [
            f'{100 * count_["executed"]:.1f} / {100 * count_["busy"]:.1f}' for count_ in counts
        ]
        rows.append([str(devices), str(lanes) if i else f'{lanes}, padded', *cells])
    table = reporting.make_table(
        'Real share of executed examples / of the time of all lanes, %',
        ('devices', 'lanes', *(f'alpha {alpha}' for alpha in shares)),
        rows,
        caption=f'CIFAR-10, {CLIENTS} clients, {COHORT} a round, batches of {BATCH_SIZE}, '
        f'{EPOCHS} epochs, random rounds. Lanes that would be chosen on one accelerator: '
        + ', '.join(f'{lanes} (alpha {alpha})' for alpha, lanes in chosen.items()),
        left=2,
    )
    reporting.console.print(table)


def main(args: flags.FlagValues) -> None:
    """Counts and measures, prints the tables, writes the file and draws the picture."""
    use_every_core()
    devices = make_mesh(most=COHORT).size
    shares, cohorts, chosen = {}, {}, {}
    for alpha in ALPHAS:
        sizes, name = partition_sizes(alpha, args.seed), f'{alpha:g}'
        rng = np.random.default_rng(args.seed)
        sampled = [rng.choice(sizes, COHORT, replace=False) for _ in range(args.rounds)]
        cohorts[name] = np.stack(sampled)
        shares[name] = [count(cohorts[name], lanes=n, devices=d) for n, d in ARRANGEMENTS]
        chosen[name] = choose_lanes([client_steps(sizes)], cohort_size=COHORT, most=COHORT)
    show_shares(shares, chosen)
    if args.figure:
        draw(shares, Path(args.figure))
        reporting.console.print(f'Written to {args.figure}.')

    timed = {}
    for alpha in TIMED_ALPHAS if args.repeats else ():
        name = f'{alpha:g}'
        lanes = 1 if jax.default_backend() == 'cpu' else chosen[name]
        timed[name] = entry = compare(
            args.model, cohorts[name], lanes=lanes, devices=devices, repeats=args.repeats
        )
        machine = f'{console.counted(devices, "device")} with {console.counted(lanes, "lane")}'
        reporting.console.print(
            f'alpha {name}, {args.model}, {machine}: padded on one device takes '
            f'{entry["ratio"]:.2f} times as long; parameters differ by '
            f'{entry["largest_difference"]:.1e}, the round changed them by '
            f'{entry["largest_update"]:.1e}.'
        )
    report = {
        'machine': reporting.machine(),
        'settings': reporting.settings(args, 'rounds', 'seed', 'model', 'repeats'),
        'shares': shares,
        'lanes_chosen_on_one_device': chosen,
        'timed': timed,
    }
    reporting.write(report, args.output)
    # Written so that NaN also fails.
    if not all(entry['largest_difference'] <= TOLERANCE for entry in timed.values()):
        reporting.console.print(f'FAILED: the parameters differ by more than {TOLERANCE:g}.')
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_integer('rounds', 200, 'Random cohorts.', lower_bound=1)
    flags.DEFINE_integer('seed', 0, 'Seed of the partition and the cohorts.', lower_bound=0)
    flags.DEFINE_enum('model', 'lenet', ['cnn', 'lenet', 'mlp'], 'Network that is timed.')
    flags.DEFINE_integer('repeats', 3, 'Timed rounds of each; 0 for none.', lower_bound=0)
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    flags.DEFINE_string('figure', None, 'File to draw the shares to, as PNG.')
    reporting.run(main)
