"""Sixteen experiments in one program against the same ones one after another.

First the rounds: all programs are compiled, then they take turns, so that what else the machine
does at the time falls on all of them alike. Then whole runs, as users start them: data, compiling,
rounds, evaluation and records, without the start of Python, which one after another comes X times.
Last, without training, how much of the lanes' and devices' time goes to real steps.

python -m experiments.benchmarks.sweeps --data_dir=DIR --output=experiments/results/sweeps_cpu
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.machine import machine
from experiments.benchmarks.rounds import Played, ready
from jaxfed import Config, config
from jaxfed.engine.devices import use_every_core
from jaxfed.engine.lanes import choose_lanes, schedule
from jaxfed.engine.local import steps_per_epoch
from jaxfed.internal import command_line
from jaxfed.internal.files import write_json
from jaxfed.partition import make_partition
from jaxfed.recording.style import COLOURS, save, style
from jaxfed.runs.experiment import set_up
from jaxfed.runs.simulate import train
from jaxfed.sweeps.runner import set_up_all
from jaxfed.sweeps.sweep import Member, expand, parse_grid
from jaxfed.sweeps.training import train_group

GRID, SEEDS = 'beta=0.3,1,3,10 tau=1,3', 2
# Of the shares: a round of the papers.
ALPHAS = (0.05, 0.1, 0.5)
CLASSES, EXAMPLES, CLIENTS, COHORT = 10, 50_000, 100, 10
BATCH_SIZE, EPOCHS = 50, 5
LANES = (1, 2, 3, 4, 5, 8, 10, 16, 32, 64, 160)
DEVICES = (1, 2, 4, 8, 16, 32, 64)


class Share(NamedTuple):
    """Real steps as a share of others, over all rounds."""

    together: bool  # whether lanes are shared by experiments
    lanes: int  # of each device
    devices: int
    executed: float  # of the steps that are executed, idle lanes counted in
    busy: float  # of all lanes' and devices' time
    sequence: float  # steps one after another, of all experiments, a round


def settings(data_dir: str | None, model: str | None, rounds: int) -> Config:
    """What the experiments have in common.

    Args:
      data_dir: with CIFAR-10; None for the digits.
      model: the network; None for one that suits the data.
      rounds: to train.

    Returns:
      The settings, those of the papers but for one local epoch.
    """
    common: dict[str, Any] = {'method': 'fedlmd', 'rounds': rounds, 'local_epochs': 1}
    common |= {'eval_every': rounds, 'checkpoint_every': 0}
    if data_dir is None:
        return Config(model=model or 'mlp', **common)
    return Config(
        dataset='cifar10', data_dir=data_dir, model=model or 'lenet', num_clients=CLIENTS,
        clients_per_round=COHORT, **common,
    )  # fmt: skip


def members(base: Config, folder: Path, *, grid: str = GRID, seeds: int = SEEDS) -> list[Member]:
    """The experiments.

    Args:
      base: what they have in common.
      folder: of their work directories.
      grid: as for --sweep.
      seeds: of each setting.

    Returns:
      X experiments.
    """
    return expand(base, parse_grid(grid, base), seeds, folder)


def time_rounds(base: Config, folder: Path, *, repeats: int, grid: str = GRID) -> dict[str, Any]:
    """Times rounds of all experiments in one program and of each alone, in turns.

    Args:
      base: what the experiments have in common.
      folder: for their work directories.
      repeats: rounds of each that are timed, after one that is not.
      grid: as for --sweep.

    Returns:
      Of `together` and `alone`: seconds of compiling, and of a round of all X experiments for each
      repeat; their ratio.
    """
    # The last round of a run is evaluated; none of these is the last.
    longer = config.dataclasses.replace(base, rounds=repeats + 2, eval_every=repeats + 2)
    configs = [member.config for member in members(longer, folder, grid=grid)]
    experiments = set_up_all(configs)
    together = ready(experiments)
    alone = [ready([each]) for each in track(experiments, 'compiling', transient=True)]

    def once() -> tuple[float, float]:
        return together.play(), sum(each.play() for each in alone)

    once()
    taken = [once() for _ in track(range(repeats), 'rounds', transient=True)]
    seconds = {'together': [a for a, _ in taken], 'alone': [b for _, b in taken]}
    return {
        'experiments': len(experiments),
        'together': told([together]) | {'round_s': seconds['together']},
        'alone': told(alone) | {'round_s': seconds['alone']},
        'round_ratio': statistics.median(a / b for a, b in taken),
    }


def told(every: Sequence[Played]) -> dict[str, Any]:
    """What compiling took and chose.

    Args:
      every: what was compiled.

    Returns:
      For the file.
    """
    prepared = [each.prepared for each in every]
    return {
        'compile_s': sum(each.compile_seconds for each in prepared),
        'lanes': [each.lanes for each in prepared],
        'devices': [each.mesh.size for each in prepared],
        'memory_bytes': [each.needed for each in prepared],
    }


def whole_runs(
    base: Config, folder: Path, *, repeats: int, grid: str = GRID
) -> list[dict[str, Any]]:
    """Times the experiments from their settings to their last record, in turns.

    Args:
      base: what the experiments have in common.
      folder: for their work directories.
      repeats: how often.
      grid: as for --sweep.

    Returns:
      Of each repeat: `together_s` and `alone_s`, and how much of it went to compiling.
    """
    taken = []
    for i in range(repeats):
        began = time.perf_counter()
        own = members(base, folder / f'together{i}', grid=grid)
        found = train_group(set_up_all([m.config for m in own]), folder / f'together{i}')
        ticks = [time.perf_counter()]
        results = [
            train(set_up(member.config), quiet=True)
            for member in members(base, folder / f'alone{i}', grid=grid)
        ]
        ticks.append(time.perf_counter())
        assert not any(isinstance(result, Exception) for result in found), found
        first = found[0]
        taken.append(
            {
                'together_s': ticks[0] - began,
                'together_compile_s': first.summary['compile_seconds'],  # type: ignore[union-attr]
                'alone_s': ticks[1] - ticks[0],
                'alone_compile_s': sum(r.summary['compile_seconds'] for r in results),
            }
        )
    return taken


def cohorts(alpha: float, rounds: int, settings: int, seeds: int) -> np.ndarray:
    """Draws the local steps of the clients of all rounds.

    Args:
      alpha: Dirichlet concentration of the partitions, of 10 classes of 5000 examples.
      rounds: R.
      settings: that share the partition and the cohorts of a seed.
      seeds: each with its own.

    Returns:
      [R, X, S] integers.
    """
    labels = np.repeat(np.arange(CLASSES), EXAMPLES // CLASSES)
    drawn = []
    for seed in range(seeds):
        parts = make_partition(
            'dirichlet', labels, num_clients=CLIENTS, seed=seed, alpha=alpha, min_size=10
        )
        steps = EPOCHS * steps_per_epoch(np.array([len(part) for part in parts]), BATCH_SIZE)
        rng = np.random.default_rng([seed, 1])
        own = [rng.choice(steps, COHORT, replace=False) for _ in range(rounds)]
        drawn += [np.stack(own)] * settings
    return np.stack(drawn, axis=1)


def share(drawn: np.ndarray, *, together: bool, lanes: int, devices: int) -> Share:
    """Counts the steps of all rounds.

    Args:
      drawn: [R, X, S] local steps, from `cohorts`.
      together: whether the experiments of a round share the lanes, or come one after another.
      lanes: of each device.
      devices: how many; those without a client stay idle.

    Returns:
      The shares.
    """
    groups = drawn.reshape(len(drawn), -1) if together else drawn.reshape(-1, drawn.shape[-1])
    used = min(devices, groups.shape[1] // lanes)
    plans = [schedule(own, lanes=lanes, devices=used) for own in groups]
    real, length = drawn.sum(), sum(plan.length for plan in plans)
    executed = sum(plan.executed for plan in plans)
    return Share(
        together, lanes, devices, real / executed, real / (length * lanes * devices),
        length / len(drawn),
    )  # fmt: skip


def shares(alpha: float, *, rounds: int, settings: int = 8, seeds: int = SEEDS) -> dict[str, Any]:
    """Counts the steps with and without lanes shared by experiments.

    Args:
      alpha: Dirichlet concentration.
      rounds: random rounds.
      settings: that share the partition and the cohorts of a seed.
      seeds: each with its own.

    Returns:
      For one device with many lanes, for devices with one lane each, and what would be chosen for
      one device.
    """
    drawn = cohorts(alpha, rounds, settings, seeds)

    def one_device() -> Iterator[Share]:
        for together in (False, True):
            most = drawn[0].size if together else drawn.shape[-1]
            yield from (
                share(drawn, together=together, lanes=lanes, devices=1)
                for lanes in LANES
                if lanes <= most
            )

    def choose(together: bool) -> Share:
        steps = [each.ravel() for each in np.moveaxis(drawn, 1, 0)]
        chosen = choose_lanes(
            steps if together else steps[:1],
            cohort_size=drawn.shape[-1],
            most=drawn[0].size if together else drawn.shape[-1],
        )
        return share(drawn, together=together, lanes=chosen, devices=1)

    return {
        'one_device': [each._asdict() for each in one_device()],
        'chosen_on_one_device': [choose(together)._asdict() for together in (False, True)],
        'one_lane': [
            share(drawn, together=together, lanes=1, devices=devices)._asdict()
            for together in (False, True)
            for devices in DEVICES
        ],
    }


def draw(found: dict[str, Any], path: Path) -> None:
    """Draws rounds and shares.

    Args:
      found: what is written as JSON.
      path: of the picture, without suffix.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(11, 3.8), layout='constrained')
        rounds, lanes, devices = figure.subplots(1, 3, width_ratios=(1, 2, 2))
        timed, count = found['rounds'], found['rounds']['experiments']
        names = ('one after\nanother', 'in one\nprogram')
        for i, name in enumerate(('alone', 'together')):
            seconds = timed[name]['round_s']
            rounds.bar(names[i], statistics.median(seconds), color=COLOURS[i], width=0.6)
            rounds.plot([names[i]] * len(seconds), seconds, 'o', color='0.2', markersize=3)
        rounds.set(ylabel='seconds', title=f'A round of {count} experiments')
        for axes, key, along, what in (
            (lanes, 'one_device', 'lanes', 'executed'),
            (devices, 'one_lane', 'devices', 'busy'),
        ):
            for i, (alpha, own) in enumerate(found['shares'].items()):
                for together in (False, True):
                    points = [each for each in own[key] if each['together'] == together]
                    axes.plot(
                        [each[along] for each in points],
                        [100 * each[what] for each in points],
                        marker='o',
                        markersize=3,
                        color=COLOURS[i],
                        linestyle='-' if together else ':',
                        label=f'alpha {alpha}, ' + ('shared' if together else 'alone'),
                    )
            axes.set(xscale='log', xlabel=along, ylim=(0, 105), ylabel='%')
            axes.set_xticks([1, 2, 5, 10, 32, 160] if key == 'one_device' else DEVICES)
            axes.xaxis.set_major_formatter('{x:g}')
            axes.minorticks_off()
        lanes.set_title('One device: real steps of those executed')
        devices.set_title('Devices with a lane each: busy')
        handles, labels = lanes.get_legend_handles_labels()
        figure.legend(handles, labels, loc='outside lower center', ncols=3)
        save(figure, path)


def show(found: dict[str, Any], console: Console) -> None:
    """Prints what was found.

    Args:
      found: what is written as JSON.
      console: to print to.
    """
    timed = found['rounds']
    table = Table(
        title=f'{timed["experiments"]} experiments, {found["settings"]["model"]}, seconds',
        caption=', '.join(f'{key} {own}' for key, own in found['machine'].items()),
    )
    for column in ('', 'one after another', 'in one program', 'ratio'):
        table.add_column(column, justify='right')
    pairs = [('a round', 'round_s'), ('compiling', 'compile_s')]
    for name, key in pairs:
        a, b = (np.median(timed[each][key]) for each in ('alone', 'together'))
        ratio = timed['round_ratio'] if key == 'round_s' else b / a
        table.add_row(name, f'{a:.3f}', f'{b:.3f}', f'{ratio:.2f}')
    for own in found['whole']:
        a, b = own['alone_s'], own['together_s']
        table.add_row('whole runs', f'{a:.1f}', f'{b:.1f}', f'{b / a:.2f}')
    console.print(table)
    table = Table(title='Steps without and with lanes shared by experiments')
    for column in ('alpha', 'one device: lanes chosen', 'real of executed, %', 'in sequence'):
        table.add_column(column, justify='right')
    table.add_column('4 / 16 / 64 devices busy, %', justify='right')
    for alpha, own in found['shares'].items():
        a, b = own['chosen_on_one_device']
        busy = [
            ' / '.join(
                f'{100 * each["busy"]:.0f}'
                for each in own['one_lane']
                if each['together'] == together and each['devices'] in (4, 16, 64)
            )
            for together in (False, True)
        ]
        table.add_row(
            alpha,
            f'{a["lanes"]} to {b["lanes"]}',
            f'{100 * a["executed"]:.0f} to {100 * b["executed"]:.0f}',
            f'{a["sequence"]:.0f} to {b["sequence"]:.0f}',
            ' to '.join(busy),
        )
    console.print(table)


def main(_: Sequence[str]) -> None:
    """Measures, prints, writes and draws."""
    values = flags.FLAGS
    command_line.quiet_libraries()
    use_every_core()
    base = settings(values.data_dir, values.model, values.rounds)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        found: dict[str, Any] = {
            'machine': machine(),
            'settings': {
                'grid': GRID, 'seeds': SEEDS, 'dataset': base.dataset, 'model': base.model,
                'num_clients': base.num_clients, 'clients_per_round': base.clients_per_round,
                'local_epochs': base.local_epochs, 'batch_size': base.batch_size,
                'alpha': base.alpha, 'rounds_of_whole_runs': base.rounds,
            },
            'rounds': time_rounds(base, place / 'rounds', repeats=values.repeats),
            'whole': whole_runs(base, place, repeats=values.whole),
        }  # fmt: skip
    found['shares'] = {f'{alpha:g}': shares(alpha, rounds=50) for alpha in ALPHAS}
    # One after another, an accelerator waits for each small step; a CPU is busy either way.
    found['wanted_ratio'] = wanted = 1.0 if jax.default_backend() == 'cpu' else 0.25
    console = Console(highlight=False)
    show(found, console)
    reached = found['rounds']['round_ratio'] <= wanted
    console.print(f'At most {wanted:g} of the time: {"reached" if reached else "not reached"}.')
    if values.output:
        path = Path(values.output)
        write_json(path.with_name(f'{path.name}.json'), found)
        draw(found, path)


if __name__ == '__main__':
    # Here, because tests import this module beside jaxfed's own flags.
    flags.DEFINE_string('data_dir', None, 'With CIFAR-10; without it the digits are trained on.')
    flags.DEFINE_string('model', None, 'Network [mlp for the digits, lenet for CIFAR-10].')
    flags.DEFINE_integer('rounds', 10, 'Of the whole runs.', lower_bound=1)
    flags.DEFINE_integer('repeats', 5, 'Rounds that are timed.', lower_bound=1)
    flags.DEFINE_integer('whole', 1, 'Whole runs that are timed; 0 for none.', lower_bound=0)
    flags.DEFINE_string('output', None, 'Files without suffix: .json, .png and .svg.')
    app.run(main)
