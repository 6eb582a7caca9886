"""Tables in the terminal: a summary, a sweep, a plan, methods and measures."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jaxfed.internal.console import TERMINAL
from jaxfed.recording.heatmap import print_heatmap


def show_summary(summary: dict[str, Any], workdir: Path) -> None:
    """Print the summary table and where the files are.

    Args:
      summary: as in summary.json.
      workdir: the work directory.
    """
    table = Table(title=f'{summary["method"]} on {summary["dataset"]}', show_header=False)
    table.add_column(style='bold')
    table.add_column(justify='right')
    rows = {'training': f'diverged in round {summary["rounds"]}'} if summary['failed'] else {}
    on = summary['evaluated_on']
    if on == 'validation':
        rows['evaluated on'] = 'held-out training examples; test data was not used'
    if summary['best_round'] is not None:
        final = f'{summary["final_accuracy"]:.2%}'
        rows['final accuracy'] = f'{final} after {summary["rounds"]} rounds'
        rows['best accuracy'] = f'{summary["best_accuracy"]:.2%} in round {summary["best_round"]}'
    rows |= {
        'time': f'{summary["seconds_total"]:.1f} s, of it compiling '
        f'{summary["compile_seconds"]:.1f} s',
        'a round': f'{summary["seconds_per_round"]:.3f} s, '
        f'{summary["client_steps_per_second"]:.0f} client-steps/s',
    }
    shares = [f'{on} data {summary["evaluation_share"]:.0%} of the time']
    if summary['local_accuracy'] is not None:
        rows['average local accuracy'] = f'{summary["local_accuracy"]:.2%} when last evaluated'
        shares.append(f'local models {summary["local_evaluation_share"]:.0%}')
    if summary['personal_accuracy'] is not None:
        rows['on own held-out examples'] = (
            f'local models {summary["personal_accuracy"]:.2%}, '
            f'the global one {summary["personal_global_accuracy"]:.2%}'
        )
    rows['evaluation'] = ', '.join(shares)
    if summary['target_accuracy'] is not None:
        reached = summary['rounds_to_target']
        name = f'rounds to {summary["target_accuracy"]:.0%}'
        rows[name] = str(reached) if reached else 'not reached'
    rows |= {'cost': cost} if (cost := cost_in_words(summary['cost'])) else {}
    if summary['auxiliary_examples']:
        rows['auxiliary data'] = f'{summary["auxiliary_examples"]} examples on the server'
    for row in rows.items():
        table.add_row(*row)
    TERMINAL.print(table)
    TERMINAL.print(f'files: {workdir}/', soft_wrap=True)
    for path in sorted(workdir.glob('[!.]*')):
        TERMINAL.print(f'  {path.name}', soft_wrap=True)


def show_sweep(title: str, names: list[str], rows: list[list[str]]) -> None:
    """Print what the settings of a sweep came to.

    Args:
      title: of the table.
      names: of its columns.
      rows: a setting each.
    """
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify='right')
    for row in rows:
        table.add_row(*row)
    TERMINAL.print(table)


def cost_in_words(cost: dict[str, Any]) -> str:
    """What a method costs beyond FedAvg, in a few words.

    Args:
      cost: of `costs.Cost`, as a dict.

    Returns:
      The words, '' for nothing.
    """
    base = cost['parameter_bytes']

    def times(bytes_: int) -> str:
        return f'{bytes_ / base:.2g}x' if bytes_ >= 0.05 * base else f'{bytes_} B'

    words = []
    for name in ('upload', 'download'):
        extra = cost[f'{name}_bytes'] - base
        if extra >= 1:
            words.append(f'{name} +{times(extra)}')
    for name, state in (('client', 'client_state_bytes'), ('server', 'server_state_bytes')):
        if cost[state]:
            words.append(f'{name} keeps {times(cost[state])}')
    if cost['forward_passes']:
        words.append(f'forward passes +{cost["forward_passes"]}')
    if cost['data_passes']:
        words.append(f'passes over the data +{cost["data_passes"]}')
    if cost['auxiliary']:
        words.append(f'{cost["auxiliary"]} examples a class')
    return ', '.join(words)


def show_dry_run(rows: dict[str, str], counts: np.ndarray) -> None:
    """Print what an experiment would be, and the data of its first clients.

    Args:
      rows: what -> in words.
      counts: [N, C] examples of each class of each client.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style='bold', no_wrap=True)
    table.add_column()
    for row in rows.items():
        table.add_row(*row)
    TERMINAL.print(table)
    print_heatmap(counts, TERMINAL, most=5)


def show_methods(rows: list[tuple[str, str, list[tuple[str, str]]]]) -> None:
    """Print the methods with their hyper-parameters, costs and papers.

    Args:
      rows: (name, one sentence, costs and paper, [(flag, default)]) a method.
    """
    table = Table(
        title="Methods; combine them with '+'",
        caption="Costs are beyond FedAvg's, of one client and round; x is the size of the "
        "network's parameters, here those of cnn on CIFAR-10.",
        show_lines=True,
    )
    table.add_column('--method', style='bold', no_wrap=True)
    table.add_column('hyper-parameters', no_wrap=True)
    table.add_column('what it does, and its paper')
    for name, text, flags in rows:
        table.add_row(name, '\n'.join(f'{flag}={value}' for flag, value in flags), text)
    TERMINAL.print(table)


def show_measures(rows: list[tuple[str, str, tuple[str, ...], bool]]) -> None:
    """Print the measures with what they record.

    Args:
      rows: (name, one sentence and cost, fields of metrics.jsonl, whether it needs local models) a
        measure.
    """
    table = Table(
        title='Measures; join them with commas',
        caption='* needs --local_eval_every, in whose rounds it is taken.',
        show_lines=True,
    )
    table.add_column('--measure', style='bold', no_wrap=True)
    table.add_column('in metrics.jsonl', no_wrap=True)
    table.add_column('what it is')
    for name, text, fields, local in rows:
        table.add_row(name + ' *' * local, '\n'.join(fields), text)
    TERMINAL.print(table)
