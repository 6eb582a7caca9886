"""The client x class table of a partition, drawn and printed."""

import os

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

_NUMBERED = 20  # clients up to which the cells carry their numbers
_PRINTED = 20  # clients printed to a terminal
_PRINTED_CLASSES = 10  # classes up to which the printed cells are numbers
_STRIP = 50  # characters of a printed strip of more classes
_SHADES = ' ░▒▓█'
_ASCII = str.maketrans('·░▒▓█', '.-=*#')  # for output that is not Unicode


def draw_heatmap(counts: np.ndarray, path: str | os.PathLike[str], *, title: str) -> None:
    """Draws how many examples of each class each client holds to a PNG file, none as white.

    Args:
      counts: [N, C] integers, examples of class c at client i.
      path: of the file to write.
      title: of the figure.

    Raises:
      ValueError: if counts is not a matrix.

    Reference:
      FedCAD, figure 3; FedSSD, figure 6.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = _checked(counts)
    num_clients, num_classes = counts.shape
    numbered = num_clients <= _NUMBERED and num_classes <= _NUMBERED
    width = 2.5 + (0.5 if numbered else 0.15) * min(num_classes, 60)
    height = 1.5 + (0.35 if numbered else 0.06) * min(num_clients, 150)
    figure = Figure(figsize=(max(width, 5), max(height, 3.5)), layout='constrained')
    axes = figure.add_subplot()
    # cividis is perceptually uniform and reads the same with colour blindness. Classes that a
    # client lacks stay white, and the root keeps a few examples apart from none and from many.
    held = np.ma.masked_equal(counts, 0)
    norm = PowerNorm(0.5, vmin=1, vmax=max(counts.max(), 2))
    image = axes.imshow(held, cmap='cividis_r', norm=norm, aspect='auto', interpolation='nearest')
    axes.set(title=title, xlabel='class', ylabel='client')
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if numbered:
        axes.set_xticks(range(num_classes))
        axes.set_yticks(range(num_clients))
        for (i, c), count in np.ndenumerate(counts):
            colour = 'white' if norm(count) > 0.5 else 'black'
            shown = str(count) if count else ''
            axes.text(c, i, shown, ha='center', va='center', color=colour, fontsize=7)
    figure.colorbar(image, label='examples')
    figure.savefig(path, dpi=150, format='png')


def print_heatmap(counts: np.ndarray, console: Console, *, most: int = _PRINTED) -> None:
    """Prints the first clients' sizes, numbers of classes and counts in 80 columns.

    Args:
      counts: [N, C] integers, examples of class c at client i.
      console: to print to.
      most: clients that are printed.

    Raises:
      ValueError: if counts is not a matrix.
    """
    counts = _checked(counts)
    num_clients, num_classes = counts.shape
    group = -(-num_classes // _STRIP)
    plain = not console.encoding.lower().startswith('utf')
    table = Table(box=None, padding=(0, 1, 0, 0), header_style='bold')
    for name in ('client', 'size', 'held'):
        table.add_column(name, justify='right')
    numbers = num_classes <= _PRINTED_CLASSES
    if numbers:
        for c in range(num_classes):
            table.add_column(f'c{c}', justify='right')
    else:
        table.add_column(
            f'classes 0..{num_classes - 1}' + (f', {group} a character' if group > 1 else ''),
            no_wrap=True,
        )
    for i, row in enumerate(counts[:most]):
        largest = counts.max()
        cells = [_cell(n, largest) for n in row] if numbers else [_strip(row, group)]
        if plain:
            cells = [Text(cell.plain.translate(_ASCII)) for cell in cells]
        table.add_row(str(i), str(row.sum()), str((row > 0).sum()), *cells)
    console.print(table)
    sizes = counts.sum(axis=1)
    more = f'... and {num_clients - most} more clients. ' if num_clients > most else ''
    console.print(
        f'{more}{num_clients} clients, sizes {sizes.min()} to {sizes.max()} '
        f'(median {np.median(sizes):g}), classes held {(counts > 0).sum(axis=1).mean():.1f} on '
        'average.'
    )


def _checked(counts: np.ndarray) -> np.ndarray:
    """Returns counts as an array if it is a matrix with clients and classes."""
    counts = np.asarray(counts)
    if counts.ndim != 2 or not counts.size:
        raise ValueError(f'counts has shape {counts.shape}: pass a matrix, [clients, classes].')
    return counts


def _cell(count: int, largest: int) -> Text:
    """Returns a number, brighter on a warmer ground the larger it is."""
    share = count / max(largest, 1)
    if not count:
        return Text('·', style='dim')
    level = int(40 + 140 * share)
    return Text(str(count), style=f'white on rgb({level // 3},{level // 2},{level})')


def _strip(row: np.ndarray, group: int) -> Text:
    """Returns a character for every few classes, the darker the larger their share."""
    sums = np.add.reduceat(row, np.arange(0, row.size, group))
    levels = np.ceil(sums / max(sums.max(), 1) * (len(_SHADES) - 1)).astype(int)
    return Text(''.join(_SHADES[level] for level in levels))
