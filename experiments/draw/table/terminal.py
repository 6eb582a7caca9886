"""A filled table on the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.draw.table.words import COSTS, DIFFERENCE, INNER, Filled, blocks, costs


def show(filled: Filled, console: Console) -> None:
    """Print a table, best bold, second underlined, in parts no wider than the console."""
    console.print(Text(filled.title, 'bold'))
    for line in (*filled.header, filled.command):
        console.print(Text(line))
    for block in blocks(filled):
        label = max(len(name) + 2 for name, _, _ in block.lines)
        widths = [
            max(max(map(len, head.split())), *(len(cells[i]) for _, cells, _ in block.lines))
            for i, head in enumerate(block.heads)
        ]
        for columns in packed(widths, console.width - label - 2, gap=2):
            part = _table(block.title or None)
            for i in columns:
                part.add_column(block.heads[i], justify='right', min_width=widths[i])
            for name, cells, place in block.lines:
                shown = [_styled(cells[i], place[i]) for i in columns]
                part.add_row(f'  {name}' if name in INNER else name, *shown)
                if name == DIFFERENCE:
                    part.add_section()
            console.print(part)
    spent = _table('Cost')
    for name in COSTS:
        spent.add_column(name, justify='right')
    for name, cells in costs(filled):
        spent.add_row(name, *cells)
    console.print(spent)


def _table(title: str | None) -> Table:
    """An empty table with a column for labels."""
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column('method', no_wrap=True)
    return table


def _styled(cell: str, place: int) -> Text:
    mean, _, rest = cell.partition('\t')
    return Text.assemble((mean, ('', 'bold', 'underline')[place]), rest)


def packed(widths: list[int], room: int, *, gap: int) -> list[list[int]]:
    """Distribute columns over parts that fit.

    Args:
      widths: of the columns.
      room: width of a part.
      gap: between columns.

    Returns:
      Indices of the columns of each part, in order; at least one a part.
    """
    parts: list[list[int]] = []
    left = 0
    for index, width in enumerate(widths):
        if not parts or width + gap > left:
            parts.append([])
            left = room
        parts[-1].append(index)
        left -= width + gap
    return parts
