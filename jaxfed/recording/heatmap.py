"""The label counts of the clients, as a figure and as a table in the terminal."""

import os
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxfed.partition.counts import label_skew, one_class_share
from jaxfed.recording.style import style, write

_MAX_NUMBERED = 20  # clients and classes up to which the cells of the figure have numbers
_MAX_LINED = 150  # clients or classes up to which lines separate them
_PRINTED_CLIENTS = 20
_PRINTED_CLASSES = 10  # number of classes up to which the printed cells are numbers
_STRIP_WIDTH = 50  # characters of a row of more classes
_SHADES = ' ░▒▓█'
_ASCII = str.maketrans('·░▒▓█', '.-=*#')  # for terminals without Unicode


@style()
def draw_heatmap(counts: np.ndarray, path: str | os.PathLike[str], *, title: str) -> None:
    """Draw the examples of each class at each client to a file; zero is white.

    Args:
      counts: [N, C] integers, examples of class c at client i.
      path: the file to write, which ends in .png, .svg or .pdf.
      title: the title of the figure.

    Raises:
      ValueError: if the file ends in something else.

    Reference:
      FedCAD, figure 3; FedSSD, figure 6.
    """
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    num_clients, num_classes = counts.shape
    numbered = max(counts.shape) <= _MAX_NUMBERED
    cell = (0.45, 0.3) if numbered else (0.12, 0.25 if num_classes <= _MAX_NUMBERED else 0.09)
    size = cell[0] * min(num_clients, 100), cell[1] * min(num_classes, 100)
    figure = Figure(figsize=(max(size[0], 5) + 2, max(size[1], 2) + 1.3), layout='constrained')
    axes = figure.add_subplot(xlabel='client', ylabel='class')
    axes.set_title(title, parse_math=False)  # names may contain $
    axes.grid(False)
    axes.spines[:].set_visible(True)
    # One hue from light to dark is readable with colour blindness and in grey print. The square
    # root separates few examples from many, and the lightest shade 1 from 0, which is white.
    shades = ListedColormap(colormaps['Blues'](np.linspace(0.15, 1, 256)))
    largest = max(counts.max(), 2)
    norm = PowerNorm(0.5, vmin=1, vmax=largest)
    positive = np.ma.masked_equal(counts.T, 0)
    image = axes.imshow(positive, cmap=shades, norm=norm, aspect='auto', origin='lower')
    for axis, number in (axes.xaxis, num_clients), (axes.yaxis, num_classes):
        if number <= _MAX_NUMBERED:
            axis.set_ticks(range(number))
        if number <= _MAX_LINED:
            axis.set_ticks(np.arange(number + 1) - 0.5, minor=True)
            axis.grid(which='minor', color='0.85', linewidth=0.5, alpha=1)
        axis.set_tick_params(which='minor', length=0)
    if numbered:
        for (i, c), count in np.ndenumerate(counts):
            if count:
                colour = 'white' if norm(count) > 0.65 else 'black'
                text = axes.text(i, c, f'{count}', ha='center', va='center')
                text.set(color=colour, fontsize=8)
                text.set_in_layout(False)  # it is inside the axes; measuring all takes long
    ticks = np.asarray(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]).tick_values(1, largest))
    inside = ticks[(ticks > 1) & (ticks <= largest)]
    figure.colorbar(image, label='examples (white: none)', ticks=[1, *inside])
    write(figure, Path(path))


def print_heatmap(counts: np.ndarray, console: Console, *, most: int = _PRINTED_CLIENTS) -> None:
    """Print the first clients' sizes, numbers of classes and counts in 80 columns.

    Args:
      counts: [N, C] integers, examples of class c at client i.
      console: the console to print to.
      most: the number of clients to print; one more if it is the last.
    """
    num_clients, num_classes = counts.shape
    if num_clients == most + 1:
        most = num_clients  # instead of a line about the last one
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
    sizes, skew = counts.sum(axis=1), label_skew(counts)
    more = f'... and {num_clients - most} more clients. ' if num_clients > most else ''
    console.print(
        f'{more}{num_clients} clients, sizes {sizes.min()} to {sizes.max()} '
        f'(median {np.median(sizes):g}), classes held {(counts > 0).sum(axis=1).mean():.1f} on '
        f'average ({skew.effective_classes:.1f} effective), distance of labels to those of all '
        f'{skew.distance:.2f}. Clients of one class (95 % or more) hold '
        f'{one_class_share(counts):.1%} of the examples.'
    )


def _number(count: int, largest: int) -> Text:
    """Format a count; the larger the count, the brighter its background."""
    if not count:
        return Text('·', style='dim')
    level = int(40 + 140 * count / max(largest, 1))
    return Text(str(count), style=f'white on rgb({level // 3},{level // 2},{level})')


def _strip(row: np.ndarray, group: int) -> Text:
    """Shade a character for every `group` classes; the larger their count, the denser."""
    sums = np.add.reduceat(row, np.arange(0, row.size, group))
    levels = np.ceil(sums / max(sums.max(), 1) * (len(_SHADES) - 1)).astype(int)
    return Text(''.join(_SHADES[level] for level in levels))
