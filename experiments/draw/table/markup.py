"""A filled table as Markdown and LaTeX."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from experiments.draw.table.words import COST_NOTE, COSTS, INNER, Block, Filled, blocks, costs
from jaxfed.internal.latex import escape as escape_latex
from jaxfed.internal.latex import tabular


class Markup(NamedTuple):
    """A text format."""

    escape: Callable[[str], str]
    inner: str  # template of the labels 'paper' and 'difference'
    marks: tuple[str, str, str]  # template of a mean by its place


def escape_markdown(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r'[\\|*<>_]', r'\\\g<0>', text)


MARKDOWN = Markup(escape_markdown, '*{}*', ('{}', '**{}**', '<u>{}</u>'))


def markdown(filled: Filled) -> str:
    """Format a table as Markdown."""
    parts = [f'# {escape_markdown(filled.title)}', *map(escape_markdown, filled.header)]
    parts.append(f'    {filled.command}')
    for block in blocks(filled):
        parts += [f'## {block.title}'] if block.title else []
        parts.append(markdown_table(map(escape_markdown, block.heads), rows_of(block, MARKDOWN)))
    spent = [[escape_markdown(name), *cells] for name, cells in costs(filled)]
    parts += ['## Cost', markdown_table(COSTS, spent), '## Notes']
    parts.append('\n'.join(f'- {escape_markdown(note)}' for note in (*filled.notes, COST_NOTE)))
    return '\n\n'.join(parts) + '\n'


def markdown_table(heads: Iterable[str], rows: list[list[str]]) -> str:
    """Format rows, which begin with a name, as a table in Markdown."""
    lines = [['', *heads], ['---', *['---:'] * (len(rows[0]) - 1)], *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


LATEX = Markup(escape_latex, r'\quad {}', ('{}', r'\textbf{{{}}}', r'\underline{{{}}}'))


def latex(filled: Filled) -> str:
    r"""Format a table as LaTeX, for \input in a document with \usepackage{booktabs}."""
    lines = [f'% {line}' for line in (filled.title, *filled.header, filled.command)]
    lines += [r'% Needs \usepackage{booktabs}.', r'\begin{table}', r'\centering\footnotesize']
    lines.append(r'\setlength{\tabcolsep}{3pt}')
    lines.append(rf'\caption{{{escape_latex(f"{filled.title}. {filled.header[0]}")}}}')
    lines.append(rf'\label{{tab:{filled.table.name.replace("/", "-")}}}')
    for block in blocks(filled):
        if block.title:
            lines.append(rf'\par\medskip {escape_latex(block.title)}\par\smallskip')
        lines += tabular(block.heads, rows_of(block, LATEX), group=3)
    lines.append(r'\par\medskip Cost\par\smallskip')
    spent = [list(map(escape_latex, (name, *cells))) for name, cells in costs(filled)]
    lines += [*tabular(COSTS, spent), r'\end{table}']
    return '\n'.join(lines) + '\n'


def rows_of(block: Block, markup: Markup) -> list[list[str]]:
    """The lines of a block in a text format, label first."""
    rows = []
    for label, cells, place in block.lines:
        row = [(markup.inner if label in INNER else '{}').format(markup.escape(label))]
        for cell, mark in zip(cells, place, strict=True):
            mean, _, rest = markup.escape(cell).partition('\t')
            row.append(markup.marks[mark].format(mean) + rest)
        rows.append(row)
    return rows
