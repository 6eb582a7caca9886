"""A filled table as numbers, in CSV."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.draw.table.words import Filled
from experiments.grid.scores import cost_of, places, within
from jaxfed.internal.csv_text import csv_text

CSV = (
    'table', 'method', 'column', 'score', 'rounds', 'paper_rounds', 'seeds', 'n', 'failed', 'mean',
    'sd', 'place', 'paper', 'paper_sd', 'paper_failed', 'difference', 'within', 'rule',
    'speed_kind', 'speed', 'compared', 'reached', 'paper_speed', 'hours', 'client_steps', 'upload',
    'download', 'forward_passes', 'needs_per_class', 'set_aside',
)  # fmt: skip


def as_csv(filled: Filled, rounds: Mapping[str, tuple[int, int]]) -> str:
    """Format a table as CSV, a line for each cell, most numbers with four decimals.

    Args:
      filled: the table.
      rounds: column -> rounds of the runs and of the paper.

    Returns:
      The text of the file.
    """
    lines: list[Iterable[Any]] = [CSV]
    table = filled.table
    for column in filled.columns:
        place = places([filled.scores[row.name, column.name] for row in filled.rows])
        for row, row_place in zip(filled.rows, place, strict=True):
            key = row.name, column.name
            score, value = filled.scores[key], filled.paper[key]
            cost = cost_of(filled.runs[key].values())
            alike = column.name in filled.alike and not value.failed
            line = {
                'table': table.name,
                'method': row.name,
                'column': column.name,
                'score': table.score,
                'rounds': rounds[column.name][0],
                'paper_rounds': rounds[column.name][1],
                'seeds': score.asked,
                'n': score.done,
                'failed': score.failed,
                'mean': _plain(score.mean),
                'sd': _plain(score.sd),
                'place': row_place or '',
                'paper': value.accuracy,
                'paper_sd': _plain(value.sd),
                'paper_failed': value.failed,
                'difference': _plain(
                    None if score.mean is None or value.failed else score.mean - value.accuracy
                ),
                'within': within(score, value.accuracy, value.sd, alike=alike),
                'rule': 'sd of the paper' if value.sd is not None else '2 sd of the seeds',
                'speed_kind': table.speed,
                'speed': _plain(score.speed),
                'compared': len(score.speeds) if table.speed and score.done else '',
                'reached': sum(s is not None for s in score.speeds) if score.speeds else '',
                'paper_speed': _plain(value.speed),
            }
            if cost is not None:
                line |= {
                    'hours': f'{cost.hours:.6f}',
                    'client_steps': f'{cost.client_steps:.0f}',
                    'upload': f'{cost.upload:.4f}',
                    'download': f'{cost.download:.4f}',
                    'forward_passes': cost.forward_passes,
                    'needs_per_class': cost.auxiliary,
                    'set_aside': cost.set_aside,
                }
            lines.append([line.get(name, '') for name in CSV])
    return csv_text(lines)


def _plain(value: float | None) -> str:
    return '' if value is None else f'{value:.4f}'.rstrip('0').rstrip('.')
