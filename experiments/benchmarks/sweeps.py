"""Sixteen experiments in one program, compared with the same experiments one after another.

First the rounds: all programs are compiled, then they take turns, so that other work on the machine
affects all of them equally. Then whole runs as users start them: data, compilation, rounds,
evaluation and records, without the start of Python, which X single runs need X times. Last, without
training, the share of real steps in the time of lanes and devices.

python -m experiments.benchmarks.sweeps --data_dir=DIR --output=experiments/results/sweeps_cpu
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.progress import track

from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.measuring.timing import interleave
from experiments.benchmarks.programs.cohorts import (
    ALPHAS,
    CLIENTS,
    COHORT,
    client_steps,
    partition_sizes,
    shares_of,
)
from experiments.benchmarks.programs.rounds import Trainer
from jaxfed import Config
from jaxfed.engine.devices import use_every_core
from jaxfed.engine.lanes import choose_lanes, schedule
from jaxfed.recording.style import COLOURS, save, style
from jaxfed.runs.experiment import set_up
from jaxfed.runs.simulate import train
from jaxfed.sweeps.grid import parse_grid
from jaxfed.sweeps.runner import set_up_all
from jaxfed.sweeps.sweep import Member, expand
from jaxfed.sweeps.training import train_group

GRID, SEEDS = 'beta=0.3,1,3,10 tau=1,3', 2
ROUNDS = 50  # of the shares
LANES = (1, 2, 3, 4, 5, 8, 10, 16, 32, 64, 160)
DEVICES = (1, 2, 4, 8, 16, 32, 64)
SHOWN = (
    'dataset', 'model', 'num_clients', 'clients_per_round', 'local_epochs', 'batch_size', 'alpha',
)  # fmt: skip


def make_config(data_dir: str | None, model: str | None, rounds: int) -> Config:
    """The common settings of the experiments: those of the papers except for one local epoch.

    Args:
      data_dir: folder with CIFAR-10; None for the digits.
      model: the network; None for one that suits the data.
      rounds: to train.

    Returns:
      The settings.
    """
    common: dict[str, Any] = {'method': 'fedlmd', 'rounds': rounds, 'local_epochs': 1}
    common |= {'eval_every': rounds, 'checkpoint_every': 0}
    if data_dir is None:
        return Config(model=model or 'mlp', **common)
    return Config(
        dataset='cifar10', data_dir=data_dir, model=model or 'lenet', num_clients=CLIENTS,
        clients_per_round=COHORT, **common,
    )  # fmt: skip


def members(base: Config, folder: Path, grid: str) -> list[Member]:
    """The X experiments of a grid, as for --sweep, with their work directories in `folder`."""
    return expand(base, parse_grid(grid, base), SEEDS, folder)


def time_rounds(base: Config, folder: Path, *, repeats: int, grid: str = GRID) -> dict[str, Any]:
    """Times rounds of all experiments in one program and in single programs, in turns.

    Args:
      base: common settings of the experiments.
      folder: for their work directories.
      repeats: timed rounds, after one that is not timed.
      grid: as for --sweep.

    Returns:
      Of `together` and `alone`: seconds of compilation, and of a round of all X experiments for
      each repeat; the median of their ratios.
    """
    # The last round of a run is evaluated; none of these is the last.
    longer = dataclasses.replace(base, rounds=repeats + 2, eval_every=repeats + 2)
    with reporting.usage_errors():
        experiments = set_up_all([member.config for member in members(longer, folder, grid)])
    shared = Trainer(experiments)
    single = [Trainer([one]) for one in track(experiments, 'compiling', transient=True)]
    runs = {
        'together': shared.run_round,
        'alone': lambda: sum(trainer.run_round() for trainer in single),
    }
    seconds = interleave(runs, repeats, description='rounds')
    pairs = zip(seconds['together'], seconds['alone'], strict=True)
    return {
        'experiments': len(experiments),
        'together': describe([shared]) | {'round_s': seconds['together']},
        'alone': describe(single) | {'round_s': seconds['alone']},
        'round_ratio': statistics.median(a / b for a, b in pairs),
    }


def describe(trainers: Sequence[Trainer]) -> dict[str, Any]:
    """Seconds of compilation, and the lanes, devices and memory of each program."""
    prepared = [trainer.prepared for trainer in trainers]
    return {
        'compile_s': sum(program.compile_seconds for program in prepared),
        'lanes': [program.lanes for program in prepared],
        'devices': [program.mesh.size for program in prepared],
        'memory_bytes': [program.needed for program in prepared],
    }


def time_runs(
    base: Config, folder: Path, *, repeats: int, grid: str = GRID
) -> list[dict[str, float]]:
    """Times the experiments from their settings to their last record, in turns.

    Args:
      base: common settings of the experiments.
      folder: for their work directories.
      repeats: number of turns.
      grid: as for --sweep.

    Returns:
      Of each repeat: `together_s` and `alone_s`, and how much of it is compilation.
    """
    measurements = []
    for i in range(repeats):
        ticks = [time.perf_counter()]
        shared = folder / f'together{i}'
        configs = [member.config for member in members(base, shared, grid)]
        results = train_group(set_up_all(configs), shared)
        ticks.append(time.perf_counter())
        configs = [member.config for member in members(base, folder / f'alone{i}', grid)]
        single = [train(set_up(config), quiet=True) for config in configs]
        ticks.append(time.perf_counter())
        assert not any(isinstance(result, Exception) for result in results), results
        measurements.append(
            {
                'together_s': ticks[1] - ticks[0],
                'together_compile_s': results[0].summary['compile_seconds'],  # type: ignore[union-attr]
                'alone_s': ticks[2] - ticks[1],
                'alone_compile_s': sum(result.summary['compile_seconds'] for result in single),
            }
        )
    return measurements


def sample_steps(alpha: float, rounds: int) -> np.ndarray:
    """Local steps [R, X, S] of 8 settings times SEEDS, which share a seed's partition and cohorts.

    The partitions are those of `unequal_clients`, with Dirichlet concentration `alpha`.
    """
    steps = []
    for seed in range(SEEDS):
        every = client_steps(partition_sizes(alpha, seed))
        rng = np.random.default_rng([seed, 1])
        cohorts = [rng.choice(every, COHORT, replace=False) for _ in range(rounds)]
        steps += [np.stack(cohorts)] * 8
    return np.stack(steps, axis=1)


def count(steps: np.ndarray, *, together: bool, lanes: int, devices: int) -> dict[str, Any]:
    """Real steps as a share of others, over all rounds.

    Args:
      steps: [R, X, S] from `sample_steps`.
      together: whether the experiments of a round share the lanes, or run one after another.
      lanes: of each device.
      devices: number of devices; those without a client stay idle.

    Returns:
      The settings; `executed`, the share of the executed steps, idle lanes included; `busy`, that
      of all lanes' and devices' time; `sequence`, consecutive steps of all experiments a round.
    """
    groups = steps.reshape(len(steps), -1) if together else steps.reshape(-1, steps.shape[-1])
    used = min(devices, groups.shape[1] // lanes)
    plans = [schedule(group, lanes=lanes, devices=used) for group in groups]
    shares = shares_of(plans, steps.sum(), lanes=lanes, devices=devices)
    sequence = sum(plan.length for plan in plans) / len(steps)
    return {'together': together, **shares, 'sequence': sequence}


def count_shares(alpha: float, *, rounds: int) -> dict[str, Any]:
    """Counts the steps with and without lanes that experiments share, in random rounds.

    Returns:
      For one device with many lanes, for the number of lanes that would be chosen there, and for
      devices with one lane each.
    """
    steps = sample_steps(alpha, rounds)
    every = [experiment.ravel() for experiment in np.moveaxis(steps, 1, 0)]
    shares: dict[str, Any] = {'one_device': [], 'chosen_on_one_device': [], 'one_lane': []}
    for together in (False, True):
        most = steps[0].size if together else COHORT
        chosen = choose_lanes(every if together else every[:1], cohort_size=COHORT, most=most)
        for key, lanes, devices in (
            ('one_device', [n for n in LANES if n <= most], [1]),
            ('chosen_on_one_device', [chosen], [1]),
            ('one_lane', [1], DEVICES),
        ):
            shares[key] += [
                count(steps, together=together, lanes=n, devices=d) for n in lanes for d in devices
            ]
    return shares


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws rounds and shares."""
    with style():
        figure = Figure(figsize=(11, 3.8), layout='constrained')
        rounds, lanes, devices = figure.subplots(1, 3, width_ratios=(1, 2, 2))
        timed = report['rounds']
        labels = {'alone': 'one after\nanother', 'together': 'in one\nprogram'}
        for i, (key, label) in enumerate(labels.items()):
            seconds = timed[key]['round_s']
            rounds.bar(label, statistics.median(seconds), color=COLOURS[i], width=0.6)
            rounds.plot([label] * len(seconds), seconds, 'o', color='0.2', markersize=3)
        rounds.set(ylabel='seconds', title=f'A round of {timed["experiments"]} experiments')
        draw_shares(lanes, report['shares'], 'one_device', 'lanes', 'executed')
        lanes.set(title='One device: real steps of those executed')
        lanes.set_xticks([1, 2, 5, 10, 32, 160])
        draw_shares(devices, report['shares'], 'one_lane', 'devices', 'busy')
        devices.set(title='Devices with a lane each: busy')
        devices.set_xticks(DEVICES)
        figure.legend(*lanes.get_legend_handles_labels(), loc='outside lower center', ncols=3)
        save(figure, path)


def draw_shares(axes: Axes, shares: dict[str, Any], key: str, x: str, y: str) -> None:
    """Draws `y` in per cent against `x`, a curve for each alpha, with and without sharing."""
    for i, (alpha, counted) in enumerate(shares.items()):
        for together in (False, True):
            points = [point for point in counted[key] if point['together'] == together]
            axes.plot(
                [point[x] for point in points],
                [100 * point[y] for point in points],
                marker='o',
                markersize=3,
                color=COLOURS[i],
                linestyle='-' if together else ':',
                label=f'alpha {alpha}, ' + ('shared' if together else 'alone'),
            )
    axes.set(xscale='log', xlabel=x, ylim=(0, 105), ylabel='%')
    axes.xaxis.set_major_formatter('{x:g}')
    axes.minorticks_off()


def show(report: dict[str, Any]) -> None:
    """Prints the seconds and the shares."""
    timed = report['rounds']
    alone, together = timed['alone'], timed['together']
    a, b = (statistics.median(program['round_s']) for program in (alone, together))
    rows = [['a round', f'{a:.3f}', f'{b:.3f}', f'{timed["round_ratio"]:.2f}']]
    a, b = alone['compile_s'], together['compile_s']
    rows.append(['compiling', f'{a:.3f}', f'{b:.3f}', f'{b / a:.2f}'])
    for whole in report['whole']:
        a, b = whole['alone_s'], whole['together_s']
        rows.append(['whole runs', f'{a:.1f}', f'{b:.1f}', f'{b / a:.2f}'])
    table = reporting.make_table(
        f'{timed["experiments"]} experiments, {report["settings"]["model"]}, seconds',
        ('time of', 'one after another', 'in one program', 'ratio'),
        rows,
        caption=reporting.caption(report['machine']),
    )
    reporting.console.print(table)
    columns = ('alpha', 'one device: lanes chosen', 'real of executed, %', 'in sequence')
    table = reporting.make_table(
        'Steps without and with lanes shared by experiments',
        (*columns, '4 / 16 / 64 devices busy, %'),
        [_shares_row(alpha, counted) for alpha, counted in report['shares'].items()],
    )
    reporting.console.print(table)


def _shares_row(alpha: str, counted: dict[str, Any]) -> list[str]:
    """A row of the table of shares."""
    chosen = counted['chosen_on_one_device']
    cells = [
        [f'{scale * point[key]:.0f}' for point in chosen]
        for key, scale in (('lanes', 1), ('executed', 100), ('sequence', 1))
    ]
    busy: dict[bool, list[str]] = {False: [], True: []}
    for point in counted['one_lane']:
        if point['devices'] in (4, 16, 64):
            busy[point['together']].append(f'{100 * point["busy"]:.0f}')
    return [alpha, *map(' to '.join, cells), ' to '.join(map(' / '.join, busy.values()))]


def main(args: flags.FlagValues) -> None:
    """Measures, prints, writes and draws."""
    use_every_core()
    base = make_config(args.data_dir, args.model, args.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rounds = time_rounds(base, folder / 'rounds', repeats=args.repeats)
        whole = time_runs(base, folder, repeats=args.whole)
    # A goal: an accelerator waits for each step of a small network; a CPU is busy either way.
    wanted = 1.0 if jax.default_backend() == 'cpu' else 0.25
    report: dict[str, Any] = {
        'machine': reporting.machine(),
        'settings': {'grid': GRID, 'seeds': SEEDS, 'rounds_of_whole_runs': base.rounds}
        | {name: getattr(base, name) for name in SHOWN},
        'rounds': rounds,
        'whole': whole,
        'shares': {f'{alpha:g}': count_shares(alpha, rounds=ROUNDS) for alpha in ALPHAS},
        'wanted_ratio': wanted,
    }  # fmt: skip
    show(report)
    reached = 'reached' if rounds['round_ratio'] <= wanted else 'not reached'
    reporting.console.print(f'At most {wanted:g} of the time: {reached}.')
    reporting.write(report, args.output, draw)


if __name__ == '__main__':
    flags.DEFINE_string('data_dir', None, 'Folder with CIFAR-10; without it, the digits.')
    flags.DEFINE_string('model', None, 'Network [mlp for the digits, lenet for CIFAR-10].')
    reporting.define_positive('rounds', 10, 'Rounds of the whole runs.')
    reporting.define_positive('repeats', 5, 'Timed rounds.')
    flags.DEFINE_integer('whole', 1, 'Whole runs that are timed; 0 for none.', lower_bound=0)
    flags.DEFINE_string('output', None, reporting.JSON_AND_PICTURE)
    reporting.run(main)
