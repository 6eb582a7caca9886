"""Texts and tables in LaTeX."""

import re
from collections.abc import Sequence


def escape(text: str) -> str:
    """Escape text; a leading minus becomes a minus in math mode."""
    special = {
        **{mark: f'\\{mark}' for mark in '&%$#_{}'},
        '\\': r'\textbackslash{}',
        '~': r'\textasciitilde{}',
        '^': r'\textasciicircum{}',
        '<': r'$<$',
        '>': r'$>$',
        '"': "''",
        '±': r'$\pm$',
        '×': r'$\times$',
        'α': r'$\alpha$',
        'δ': r'$\delta$',
        '|': r'$|$',
    }
    escaped = ''.join(special.get(mark, mark) for mark in text)
    # Hyphens side by side would become a dash.
    return re.sub(r'^-(?=\d)', '$-$', re.sub('-(?=-)', '-{}', escaped))


def tabular(heads: Sequence[str], rows: list[list[str]], *, group: int = 0) -> list[str]:
    """The lines of a table for the package booktabs, with space after each group of rows.

    Args:
      heads: of the columns after the first, not yet escaped.
      rows: escaped cells, the name of the row first.
      group: rows of a group; 0 for no groups.
    """
    lines = [rf'\begin{{tabular}}{{l{"r" * len(heads)}}}', r'\toprule']
    lines += [' & '.join(['', *map(escape, heads)]) + r' \\', r'\midrule']
    for index, row in enumerate(rows):
        if group and index and index % group == 0:
            lines.append(r'\addlinespace')
        lines.append(' & '.join(row) + r' \\')
    return [*lines, r'\bottomrule', r'\end{tabular}']
