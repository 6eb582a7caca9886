"""The client x class table of a partition, as a figure and as text."""

import os

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

_MAX_NUMBERED = 20  # clients and classes up to which the cells of the figure have numbers
_PRINTED_CLIENTS = 20
_PRINTED_CLASSES = 10  # up to which the printed cells are numbers
_STRIP_WIDTH = 50  # characters, for more classes
_SHADES = ' ░▒▓█'
_ASCII = str.maketrans('·░▒▓█', '.-=*#')  # for output that is not Unicode


def draw_heatmap(counts: np.ndarray, path: str | os.PathLike[str], *, title: str) -> None:
    """Draw the examples of each class at each client to a PNG file; zero is white.

    Args:
      counts: [N, C] integers, examples of class c at client i.
      path: the file to write.
      title: the title of the figure.

    Reference:
      FedCAD, figure 3; FedSSD, figure 6.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    num_clients, num_classes = counts.shape
    numbered = max(counts.shape) <= _MAX_NUMBERED
    width = 2.5 + (0.5 if numbered else 0.15) * min(num_classes, 60)
    height = 1.5 + (0.35 if numbered else 0.06) * min(num_clients, 150)
    figure = Figure(figsize=(max(width, 5), max(height, 3.5)), layout='constrained')
    axes = figure.add_subplot(title=title, xlabel='class', ylabel='client')
    # cividis is perceptually uniform and looks the same with colour blindness. The square root
    # separates a few examples from none and from many.
    positive = np.ma.masked_equal(counts, 0)
    norm = PowerNorm(0.5, vmin=1, vmax=max(counts.max(), 2))
    image = axes.imshow(
        positive, cmap='cividis_r', norm=norm, aspect='auto', interpolation='nearest'
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if numbered:
        axes.set_xticks(range(num_classes))
        axes.set_yticks(range(num_clients))
        for (i, c), count in np.ndenumerate(counts):
            colour = 'white' if norm(count) > 0.5 else 'black'
            text = str(count) if count else ''
            axes.text(c, i, text, ha='center', va='center', color=colour, fontsize=7)
    figure.colorbar(image, label='examples')
    figure.savefig(path, dpi=150, format='png')


def print_heatmap(counts: np.ndarray, console: Console, *, most: int = _PRINTED_CLIENTS) -> None:
    """Print the first clients' sizes, numbers of classes and counts in 80 columns.

    Args:
      counts: [N, C] integers, examples of class c at client i.
      console: the console to print to.
      most: the number of clients to print.
    """
    num_clients, num_classes = counts.shape
    numbered = num_classes <= _PRINTED_CLASSES
    group = -(-num_classes // _STRIP_WIDTH)  # classes a character
    table = Table(box=None, padding=(0, 1, 0, 0), header_style='bold')
    for name in ('client', 'size', 'held', *(f'c{c}' for c in range(num_classes * numbered))):
        table.add_column(name, justify='right')
    if not numbered:
        suffix = f', {group} a character' if group > 1 else ''
        table.add_column(f'classes 0..{num_classes - 1}{suffix}', no_wrap=True)
    largest = counts.max()
    for i, row in enumerate(counts[:most]):
        cells = [_number(n, largest) for n in row] if numbered else [_strip(row, group)]
        if not console.encoding.lower().startswith('utf'):
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


def _number(count: int, largest: int) -> Text:
    """Format a count; the larger it is, the brighter its background."""
    if not count:
        return Text('·', style='dim')
    level = int(40 + 140 * count / max(largest, 1))
    return Text(str(count), style=f'white on rgb({level // 3},{level // 2},{level})')


def _strip(row: np.ndarray, group: int) -> Text:
    """Shade a character for every `group` classes; the larger their share, the darker."""
    sums = np.add.reduceat(row, np.arange(0, row.size, group))
    levels = np.ceil(sums / max(sums.max(), 1) * (len(_SHADES) - 1)).astype(int)
    return Text(''.join(_SHADES[level] for level in levels))
