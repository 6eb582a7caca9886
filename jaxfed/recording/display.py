"""Tables in the terminal: a run, a sweep, a dry run, methods and measures."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from jaxfed.internal import console
from jaxfed.recording.heatmap import print_heatmap

PLAIN = 'method', 'dataset', 'partition', 'model', 'optimizer'  # values that need no name beside


def show_summary(summary: dict[str, Any], workdir: Path) -> None:
    """Print summary.json and the names of the files in the work directory."""
    table = Table(
        Column(style='bold'),
        Column(justify='right'),
        title=f'{summary["method"]} on {summary["dataset"]}',
        show_header=False,
    )
    _print(table, _summary_rows(summary).items())
    console.say(f'files: {workdir}/')
    for path in sorted(workdir.glob('[!.]*')):
        console.say(f'  {path.name}')


def _summary_rows(summary: dict[str, Any]) -> dict[str, str]:
    rounds, data = summary['rounds'], summary['evaluated_on']
    rows = {}
    if summary['failed']:
        rows['training'] = f'diverged in round {rounds}'
    if data == 'validation':
        rows['evaluated on'] = 'held-out training examples; test data was not used'
    if summary['best_round'] is not None:
        after = f'after {console.counted(rounds, "round")}'
        when = 'when last evaluated' if summary['failed'] else after
        rows['final accuracy'] = f'{summary["final_accuracy"]:.2%} {when}'
        rows['best accuracy'] = f'{summary["best_accuracy"]:.2%} in round {summary["best_round"]}'
    rows['time'] = (
        f'{summary["seconds_total"]:.1f} s, including compiling {summary["compile_seconds"]:.1f} s'
    )
    rows['a round'] = (
        f'{summary["seconds_per_round"]:.3f} s, '
        f'{summary["client_steps_per_second"]:.0f} client-steps/s'
    )
    evaluation = f'{data} data {summary["evaluation_share"]:.0%} of the time'
    if summary['local_accuracy'] is not None:
        rows['average local accuracy'] = f'{summary["local_accuracy"]:.2%} when last evaluated'
        evaluation += f', local models {summary["local_evaluation_share"]:.0%}'
    if summary['personal_accuracy'] is not None:
        rows["on clients' held-out examples"] = (
            f'local models {summary["personal_accuracy"]:.2%} '
            f'(worst tenth {summary["personal_worst_tenth"]:.2%}, '
            f'deviation {summary["personal_deviation"]:.2%}), '
            f'global model {summary["personal_global_accuracy"]:.2%}'
        )
    rows['evaluation'] = evaluation
    if summary['target_accuracy'] is not None:
        reached = str(summary['rounds_to_target'] or 'not reached')
        rows[f'rounds to {100 * summary["target_accuracy"]:g}%'] = reached
    if cost := cost_in_words(summary['cost']):
        rows['cost'] = cost
    if 'epsilon' in summary:
        rows['privacy'] = privacy_in_words(summary)
    if summary['auxiliary_examples']:
        rows['auxiliary data'] = f'{summary["auxiliary_examples"]} examples on the server'
    return rows


def show_sweep(title: str, names: list[str], rows: list[list[str]], caption: str) -> None:
    """Print the results of a sweep: named columns, a row for each setting."""
    columns = (Column(name, justify='right', overflow='fold') for name in names)
    _print(Table(*columns, title=title, caption=caption), rows)


def cost_in_words(cost: dict[str, Any]) -> str:
    """Describe the costs of a method beyond FedAvg; '' if there are none.

    Args:
      cost: the fields of `costs.MethodCost`.
    """
    base = cost['parameter_bytes']

    def size(num_bytes: int) -> str:
        return f'{num_bytes / base:.2g}x' if num_bytes >= 0.05 * base else f'{num_bytes} B'

    words = []
    for name in ('upload', 'download'):
        extra = cost[f'{name}_bytes'] - base
        if extra >= 1:
            words.append(f'{name} +{size(extra)}')
        elif extra <= -0.05 * base:
            words.append(f'{name} {1 + extra / base:.2g}x')
        elif extra <= -1:
            words.append(f'{name} -{-extra} B')
    for name in ('client', 'server'):
        if state := cost[f'{name}_state_bytes']:
            words.append(f'{name} keeps {size(state)}')
    for name, text in (
        ('forward_passes', 'forward passes +{}'),
        ('data_passes', 'passes over the data +{}'),
        ('auxiliary', '{} examples a class'),
    ):
        if cost[name]:
            words.append(text.format(cost[name]))
    return ', '.join(words)


def privacy_in_words(spent: dict[str, Any]) -> str:
    """Describe the fields of `privacy_after`."""
    if spent['epsilon'] is None:
        return 'none, without noise'
    change = {'replace_one': 'replacing', 'add_or_remove_one': 'adding or removing'}
    return (
        f'epsilon {spent["epsilon"]:.3g} at delta {spent["delta"]:g}, for '
        f'{change[spent["neighbours"]]} one client'
    )


def show_dry_run(rows: dict[str, str], counts: np.ndarray) -> None:
    """Print the description of an experiment, and the [N, C] label counts of its first clients."""
    _print(Table.grid(Column(style='bold', no_wrap=True), '', padding=(0, 2)), rows.items())
    print_heatmap(counts, console.TERMINAL, most=5)


def show_methods(rows: list[tuple[str, str, list[tuple[str, str]]]]) -> None:
    """Print (name, description with costs and paper, [(flag, default)]) of each method."""
    table = Table(
        Column('--method', style='bold', no_wrap=True),
        Column('hyper-parameters', no_wrap=True),
        'description and paper',
        title="Methods; combine them with '+'",
        caption='Costs are for one client and round, beyond those of FedAvg. x is the size of the '
        "network's parameters; this table uses cnn on CIFAR-10, or resnet8 for a method that "
        'needs batch normalisation.',
        show_lines=True,
    )
    _print(
        table,
        [
            (name, '\n'.join(f'{flag}={value}' for flag, value in flags), text)
            for name, text, flags in rows
        ],
    )


def show_measures(rows: list[tuple[str, str, tuple[str, ...], bool]]) -> None:
    """Print (name, description, fields of metrics.jsonl, needs local models) of each measure."""
    table = Table(
        Column('--measure', style='bold', no_wrap=True),
        Column('in metrics.jsonl', no_wrap=True),
        'description',
        title='Measures; join them with commas',
        caption='* needs --local_eval_every, and is computed in its rounds.',
        show_lines=True,
    )
    _print(
        table,
        [(name + ' *' * local, '\n'.join(fields), text) for name, text, fields, local in rows],
    )


def _print(table: Table, rows: Iterable[Sequence[str]]) -> None:
    table.title = console.plain(str(table.title or '')) or None
    for row in rows:
        table.add_row(*map(console.plain, row))
    console.TERMINAL.print(table)
