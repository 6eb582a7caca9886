"""SVG pictures in the font and the colours of the page, dark or light.

They contain only numbers and fixed words; the names of runs are text of the page.
"""

import contextlib
import hashlib
import io
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from jaxfed.recording.style import COLOURS, DASHES, SEQUENTIAL, line, style
from jaxfed.report.grouping import MeanCurve

# The page replaces these two by the colour of its text: axes and texts, and the black curve.
_INK = '#0a0b0c'
_BLACK = '#000000'
_ON_DARK, _ON_LIGHT = '#ffffff', '#010101'  # numbers in cells, the same in a dark page
_MARKERS = {
    'o': 'M5 1a4 4 0 1 0 .01 0z',
    's': 'M1 1h8v8h-8z',
    'D': 'M5 0l5 5-5 5-5-5z',
    '^': 'M5 0l5 10h-10z',
    'v': 'M0 0h10l-5 10z',
    'P': 'M3 0h4v3h3v4h-3v3h-4v-3h-3v-4h3z',
    'X': 'M2 0l3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z',
    '*': 'M5 0l1.2 3.8h4l-3.2 2.4 1.2 3.8-3.2-2.4-3.2 2.4 1.2-3.8-3.2-2.4h4z',
}  # matplotlib's marker -> its path in a square of 10
_DASHES = {'-': '', '--': '7 3', ':': '2 3', '-.': '9 3 2 3'}
LINES = len(COLOURS) * len(DASHES)  # number of different curves
DOTS = math.lcm(len(COLOURS), len(_MARKERS))  # number of different dots
_MAX_NUMBERED_COLUMNS, _MAX_NUMBERED_ROWS = 12, 20  # larger heat maps have no numbers in cells
_COUNTS = ListedColormap(matplotlib.colormaps['Blues'](np.linspace(0.2, 1, 256)))  # light to dark
_WIDTH = 4.4  # inches: on a phone the letters are as large as the small ones of the page

_SETTINGS: Any = {
    'svg.fonttype': 'none',
    'text.color': _INK,
    'axes.labelcolor': _INK,
    'axes.edgecolor': _INK,
    'xtick.color': _INK,
    'ytick.color': _INK,
    'grid.color': _INK,
    'grid.alpha': 0.15,
}


class SvgPicture(NamedTuple):
    """An SVG element."""

    svg: Markup
    wide: bool = False  # a phone scrolls it


@contextlib.contextmanager
def _page_style() -> Iterator[None]:
    with style(), matplotlib.rc_context(_SETTINGS):
        yield


def _axes(height: float, width: float = _WIDTH, **settings: Any) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout='constrained')
    return figure, figure.add_subplot(**settings)


def _svg(figure: Figure, words: str) -> SvgPicture:
    """Render a figure with unique ids and a label for screen readers."""
    with io.StringIO() as file:
        figure.savefig(file, format='svg', transparent=True, metadata={'Date': None})
        text = file.getvalue()
    text = text[text.index('<svg') :]
    text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
    text = re.sub(rf'{_INK}|{_BLACK}', 'currentColor', text)
    text = re.sub(r'font: ([\d.]+px)[^;\"]*', r'font-size: \1', text)
    # Ids must be unique on the page.
    prefix = f'p{hashlib.sha256(f"{words}{text}".encode()).hexdigest()[:10]}'
    text = re.sub(r'\b(id="|url\(#|href="#)', rf'\g<1>{prefix}-', text)
    # The page sets the size.
    head, rest = text.split('>', 1)
    head = re.sub(r' (width|height|version|xmlns(:xlink)?)="[^"]*"', '', head)
    max_width = f'max-width: {1.45 * figure.get_figwidth():.1f}in'
    svg = f'{head} style="{max_width}" role="img" aria-label="{escape(words)}">{rest}'
    return SvgPicture(Markup(svg), wide=figure.get_figwidth() > _WIDTH)


def swatch(i: int) -> Markup:
    """Draw the line of the i-th group as a small SVG element."""
    shape = 'd="M0 5h30" stroke-width="3" stroke-dasharray="{}" stroke'
    return _legend_svg(30, Markup(shape).format(_DASHES[line(i)['linestyle']]), i)


def marker(i: int) -> Markup:
    """Draw the dot of the i-th group as a small SVG element."""
    return _legend_svg(10, Markup('d="{}" fill').format(_MARKERS[_marker(i)]), i)


def _marker(i: int) -> str:
    return list(_MARKERS)[i % len(_MARKERS)]


def _legend_svg(width: int, shape: Markup, i: int) -> Markup:
    svg = '<svg class="swatch" viewBox="0 0 {} 10" aria-hidden="true"><path {}="{}"/></svg>'
    return Markup(svg).format(width, shape, line(i)['color'].replace(_BLACK, 'currentColor'))


def _integer_ticks(*axes: Axis) -> None:
    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True))


def _heat_map(axes: Axes, values: np.ndarray, **settings: Any) -> AxesImage:
    axes.grid(False)
    _integer_ticks(axes.xaxis, axes.yaxis)
    return axes.imshow(values, **{'cmap': SEQUENTIAL, 'interpolation': 'nearest', **settings})


def plot_curve(axes: Axes, i: int, curve: MeanCurve, *, bounded: bool, label: str = '') -> None:
    """Plot the curve of the i-th group with a band of one deviation; see `draw_curves`."""
    rounds, mean, deviation = curve
    dots = '.' if len(rounds) <= 2 else None
    axes.plot(rounds, mean, gid=f'curve-{i}', marker=dots, label=label, **line(i))
    if deviation is not None:
        band: Any = {'color': line(i)['color'], 'alpha': 0.15, 'lw': 0}
        low, high = mean - deviation, mean + deviation
        if bounded:
            low, high = np.clip((low, high), 0, 1)
        axes.fill_between(rounds, low, high, gid=f'curve-{i}-band', **band)


@_page_style()
def draw_curves(
    curves: Sequence[tuple[int, MeanCurve]], words: str, *, percent: bool, bounded: bool = False
) -> SvgPicture:
    """Draw a field by round, with a band of one deviation to both sides.

    Args:
      curves: the number of the group, which determines colour and dashes, and its curve.
      words: a description of the picture.
      percent: whether the field is a share.
      bounded: whether it is in 0..1; bands then end at 0 and 1.
    """
    figure, axes = _axes(2.9, xlabel='round')
    for i, curve in curves:
        plot_curve(axes, i, curve, bounded=bounded)
    _integer_ticks(axes.xaxis)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    return _svg(figure, words)


@_page_style()
def draw_by_round(rounds: np.ndarray, accuracy: np.ndarray, words: str) -> SvgPicture:
    """Draw accuracies [T, C] in 0..1 of each class by round as a heat map."""
    figure, axes = _axes(2.4, xlabel='round', ylabel='class')
    image = _heat_map(axes, accuracy.T, vmin=0, vmax=1, aspect='auto')
    names = dict(enumerate(rounds))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: str(names.get(round(place), ''))))
    figure.colorbar(image, format=PercentFormatter(1, decimals=0))
    return _svg(figure, words)


@_page_style()
def draw_classes(
    accuracy: Sequence[tuple[int, np.ndarray, np.ndarray | None]], words: str
) -> SvgPicture:
    """Draw the last accuracy of each class, a dot for each group, with bars that end at 0 and 1.

    Args:
      accuracy: the number of the group, [C] accuracies, and [C] deviations or None.
      words: a description of the picture.
    """
    classes = max(len(mean) for _, mean, _ in accuracy)
    width = float(np.clip(0.6 + 0.06 * classes * (len(accuracy) + 1), _WIDTH, 16))
    figure, axes = _axes(3.2, width, xlabel='class')
    for place, (i, mean, deviation) in enumerate(accuracy):
        x = np.arange(len(mean)) + 0.8 * ((place + 0.5) / len(accuracy) - 0.5)
        # [2, C] below and above the mean
        ends = None if deviation is None else np.minimum(deviation, (mean, 1 - mean))
        bars = axes.errorbar(x, mean, ends, fmt=_marker(i), color=line(i)['color'], ms=4, lw=1)
        for k, artist in enumerate(bars.get_children()):
            artist.set_gid(f'curve-{i}-{k}')
    for c in range(0, classes, 2):
        axes.axvspan(c - 0.5, c + 0.5, color=_INK, alpha=0.05, lw=0)
    axes.set(xlim=(-0.5, classes - 0.5), ylim=(-0.03, 1.03))
    axes.grid(axis='x', visible=False)
    _integer_ticks(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return _svg(figure, words)


@_page_style()
def draw_confusion(counts: np.ndarray, words: str) -> SvgPicture:
    """Draw a [C, C] confusion matrix, each row as shares of its true class."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = _axes(3.6, xlabel='predicted class', ylabel='class')
    image = _heat_map(axes, shares, vmin=0, vmax=1)
    texts = [f'{share:.0%}' if share else '' for share in shares.flat]
    _label_cells(axes, texts, dark_text=shares > 0.5)
    figure.colorbar(image, format=PercentFormatter(1, decimals=0))
    return _svg(figure, words)


@_page_style()
def draw_partition(counts: np.ndarray, words: str) -> SvgPicture:
    """Draw the [N, C] examples of each class at each client; zero is blank."""
    height = float(np.clip(1 + 0.16 * len(counts), 2.4, 6))
    figure, axes = _axes(height, xlabel='class', ylabel='client')
    norm = PowerNorm(0.5, vmin=1, vmax=max(counts.max(), 2))
    positive = np.ma.masked_equal(counts, 0)
    image = _heat_map(axes, positive, cmap=_COUNTS, norm=norm, aspect='auto')
    texts = [str(count) if count else '' for count in counts.flat]
    _label_cells(axes, texts, dark_text=norm(counts) < 0.5)
    figure.colorbar(image, label='examples')
    return _svg(figure, words)


def _label_cells(axes: Axes, texts: Sequence[str], *, dark_text: np.ndarray) -> None:
    """Write [rows, columns] texts into the cells if these are large enough."""
    rows, columns = dark_text.shape
    if rows > _MAX_NUMBERED_ROWS or columns > _MAX_NUMBERED_COLUMNS:
        return
    axes.set_xticks(range(columns))
    axes.set_yticks(range(rows))
    for ((i, j), is_dark), text in zip(np.ndenumerate(dark_text), texts, strict=True):
        colour = _ON_LIGHT if is_dark else _ON_DARK
        axes.text(j, i, text, ha='center', va='center', color=colour, fontsize=7)
