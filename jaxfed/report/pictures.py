"""Pictures of the page as SVG, in the page's own letters and colours, dark or light.

They hold no text but numbers and jaxfed's own words; what runs are called stands around them.
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
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from jaxfed.recording.style import COLOURS, DASHES, SEQUENTIAL, line, style
from jaxfed.report.grouping import Curve

# Drawn in this colour, which nothing else has, and shown in that of the page's text.
_INK = '#0a0b0c'
_BLACK = '#000000'  # of a curve, which is drawn in ink too
_ON_DARK, _ON_LIGHT = '#ffffff', '#010101'  # numbers in cells, whose colours stay
_MARKERS = {
    'o': 'M5 1a4 4 0 1 0 .01 0z',
    's': 'M1 1h8v8h-8z',
    'D': 'M5 0l5 5-5 5-5-5z',
    '^': 'M5 0l5 10h-10z',
    'v': 'M0 0h10l-5 10z',
    'P': 'M3 0h4v3h3v4h-3v3h-4v-3h-3v-4h3z',
    'X': 'M2 0l3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z',
    '*': 'M5 0l1.2 3.8h4l-3.2 2.4 1.2 3.8-3.2-2.4-3.2 2.4 1.2-3.8-3.2-2.4h4z',
}  # of matplotlib, and the same in a square of 10
_DASHES = {'-': '', '--': '7 3', ':': '2 3', '-.': '9 3 2 3'}
LINES = len(COLOURS) * len(DASHES)  # curves that can be told apart
DOTS = math.lcm(len(COLOURS), len(_MARKERS))  # and groups by their dots
_NUMBERED = 12  # classes up to which cells carry their numbers
_NUMBERED_ROWS = 20
_WIDTH = 4.4  # inches: on a phone the letters are as large as the page's small ones
_SMALL = 7

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


class Picture(NamedTuple):
    """An SVG element."""

    svg: Markup
    wide: bool = False  # whether it is too wide to be legible on a phone as a whole


@contextlib.contextmanager
def _look() -> Iterator[None]:
    with style(), matplotlib.rc_context(_SETTINGS):
        yield


def _axes(height: float, width: float = _WIDTH, **named: Any) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout='constrained')
    return figure, figure.add_subplot(**named)


def _picture(figure: Figure, words: str) -> Picture:
    with io.StringIO() as file:
        figure.savefig(file, format='svg', transparent=True, metadata={'Date': None})
        text = file.getvalue()
    text = text[text.index('<svg') :]
    text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
    text = re.sub(rf'{_INK}|{_BLACK}', 'currentColor', text)
    text = re.sub(r'font: ([\d.]+px)[^;\"]*', r'font-size: \1', text)
    # All pictures share a page, so each has names of its own.
    own = f'p{hashlib.sha256(f"{words}{text}".encode()).hexdigest()[:10]}'
    text = re.sub(r'\bid="', f'id="{own}-', text)
    text = re.sub(r'(url\(#|href="#)', rf'\g<1>{own}-', text)
    # The page says how large it is.
    head, rest = text.split('>', 1)
    head = re.sub(r' (width|height|version|xmlns(:xlink)?)="[^"]*"', '', head)
    largest = f'max-width: {1.45 * figure.get_figwidth():.1f}in'
    svg = f'{head} style="{largest}" role="img" aria-label="{escape(words)}">{rest}'
    return Picture(Markup(svg), wide=figure.get_figwidth() > _WIDTH)


def swatch(i: int) -> Markup:
    """The look of the i-th group's curves, as a short line.

    Args:
      i: number of the group, from 0.

    Returns:
      An SVG element.
    """
    drawn = Markup('<path d="M0 5h30" stroke="{}" stroke-width="3" stroke-dasharray="{}"/>').format(
        _colour(i), _DASHES[line(i)['linestyle']]
    )
    return _small(drawn, 30)


def marker(i: int) -> Markup:
    """The look of the i-th group's dots.

    Args:
      i: number of the group, from 0.

    Returns:
      An SVG element.
    """
    return _small(Markup('<path d="{}" fill="{}"/>').format(_MARKERS[_marker(i)], _colour(i)), 10)


def _marker(i: int) -> str:
    return list(_MARKERS)[i % len(_MARKERS)]


def _colour(i: int) -> str:
    return line(i)['color'].replace(_BLACK, 'currentColor')


def _small(drawn: Markup, width: int) -> Markup:
    head = Markup('<svg class="swatch" viewBox="0 0 {} 10" aria-hidden="true">').format(width)
    return head + drawn + Markup('</svg>')


@_look()
def draw_curves(curves: Sequence[tuple[int, Curve]], words: str, *, percent: bool) -> Picture:
    """Draw a field by round.

    Args:
      curves: number of the group, which gives it its look, and its curve.
      words: what the picture shows.
      percent: whether the field is a share.

    Returns:
      The picture; seeds are a band of one deviation to both sides.
    """
    figure, axes = _axes(2.9, xlabel='round')
    for i, curve in curves:
        look: Any = line(i)
        dots = '.' if len(curve.rounds) <= 2 else None
        axes.plot(curve.rounds, curve.mean, gid=f'curve-{i}', marker=dots, **look)
        if curve.deviation is not None:
            low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
            axes.fill_between(
                curve.rounds,
                low,
                high,
                color=look['color'],
                alpha=0.15,
                lw=0,
                gid=f'curve-{i}-band',
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    return _picture(figure, words)


@_look()
def draw_by_round(rounds: np.ndarray, accuracy: np.ndarray, words: str) -> Picture:
    """Draw the accuracy of each class by round as a heat map.

    Args:
      rounds: [T] integers.
      accuracy: [T, C], in 0..1.
      words: what the picture shows.

    Returns:
      The picture.
    """
    figure, axes = _axes(2.4, xlabel='round', ylabel='class')
    image = axes.imshow(
        accuracy.T, cmap=SEQUENTIAL, vmin=0, vmax=1, aspect='auto', interpolation='nearest'
    )
    axes.grid(False)

    def name(place: float, _: Any) -> str:
        i = round(place)
        return str(rounds[i]) if 0 <= i < len(rounds) else ''

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(name))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, format=PercentFormatter(1, decimals=0))
    return _picture(figure, words)


@_look()
def draw_classes(
    accuracy: Sequence[tuple[int, np.ndarray, np.ndarray | None]], words: str
) -> Picture:
    """Draw the last accuracy of each class, a dot a group.

    Args:
      accuracy: number of the group, [C] accuracies, and [C] deviations over its seeds or None.
      words: what the picture shows.

    Returns:
      The picture.
    """
    classes = max(len(mean) for _, mean, _ in accuracy)
    width = float(np.clip(0.6 + 0.06 * classes * (len(accuracy) + 1), _WIDTH, 16))
    figure, axes = _axes(3.2, width, xlabel='class')
    for place, (i, mean, deviation) in enumerate(accuracy):
        x = np.arange(len(mean)) + 0.8 * ((place + 0.5) / len(accuracy) - 0.5)
        bars = axes.errorbar(x, mean, deviation, fmt=_marker(i), color=line(i)['color'], ms=4, lw=1)
        for k, artist in enumerate(bars.get_children()):
            artist.set_gid(f'curve-{i}-{k}')
    for c in range(0, classes, 2):
        axes.axvspan(c - 0.5, c + 0.5, color=_INK, alpha=0.05, lw=0)
    axes.set(xlim=(-0.5, classes - 0.5), ylim=(-0.03, 1.03))
    axes.grid(axis='x', visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return _picture(figure, words)


@_look()
def draw_confusion(counts: np.ndarray, words: str) -> Picture:
    """Draw a confusion matrix, each row as shares of its class.

    Args:
      counts: [C, C] integers, rows are true classes.
      words: what the picture shows.

    Returns:
      The picture.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = _axes(3.6, xlabel='predicted class', ylabel='class')
    image = axes.imshow(shares, cmap=SEQUENTIAL, vmin=0, vmax=1, interpolation='nearest')
    _finish_matrix(axes, shares, [f'{share:.0%}' if share else '' for share in shares.flat], 0.5)
    figure.colorbar(image, format=PercentFormatter(1, decimals=0))
    return _picture(figure, words)


@_look()
def draw_partition(counts: np.ndarray, words: str) -> Picture:
    """Draw how many examples of each class each client holds, none as nothing.

    Args:
      counts: [N, C] integers.
      words: what the picture shows.

    Returns:
      The picture.
    """
    figure, axes = _axes(
        float(np.clip(1 + 0.16 * len(counts), 2.4, 6)), xlabel='class', ylabel='client'
    )
    norm = PowerNorm(0.5, vmin=1, vmax=max(counts.max(), 2))
    held = np.ma.masked_equal(counts, 0)
    image = axes.imshow(
        held, cmap=f'{SEQUENTIAL}_r', norm=norm, aspect='auto', interpolation='nearest'
    )
    _finish_matrix(axes, -norm(counts), [str(n) if n else '' for n in counts.flat], -0.5)
    figure.colorbar(image, label='examples')
    return _picture(figure, words)


def _finish_matrix(axes: Axes, values: np.ndarray, words: Sequence[str], bright: float) -> None:
    """Ticks at whole numbers, and numbers in the cells where they have room."""
    rows, columns = values.shape
    axes.grid(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if rows > _NUMBERED_ROWS or columns > _NUMBERED:
        return
    axes.set_xticks(range(columns))
    axes.set_yticks(range(rows))
    for ((i, j), value), text in zip(np.ndenumerate(values), words, strict=True):
        colour = _ON_LIGHT if value > bright else _ON_DARK
        axes.text(j, i, text, ha='center', va='center', color=colour, fontsize=_SMALL)
