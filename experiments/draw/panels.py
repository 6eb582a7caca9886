"""The numbers of panels as a matplotlib figure."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from experiments.draw.shapes import Lines, Matrix, Missing, Shape
from jaxfed.recording.style import SEQUENTIAL, line, style

_NUMBERED = 12  # the largest number of rows or columns with numbers in the cells
_DARK = f'{SEQUENTIAL}_r'  # darker colours for larger values
_SMALL = 8  # points, of numbers in cells and notes
_GREY = '0.4'
_MARKERS = 'os^DvPX*<>'
_MARKS = 6  # about, on each curve, at different points: they distinguish curves that coincide
_LONG = 50  # a curve with more points is thin
_APART = 0.2  # of a step: the width over which the points of a swept value are spread


def draw(shapes: Sequence[Shape], *, across: int = 1, note: str = '') -> Figure:
    """Draw panels.

    Args:
      shapes: one a panel, row by row.
      across: panels side by side.
      note: below the picture.

    Returns:
      The picture; a label has the same style in all panels.
    """
    across = min(across, len(shapes))
    down = -(-len(shapes) // across)
    labels = list(dict.fromkeys(c.label for s in shapes if isinstance(s, Lines) for c in s.curves))
    width = across * max(_width(shape, across) for shape in shapes)
    notes = textwrap.wrap(note, int(width * 14))
    height = sum(max(map(_height, shapes[i : i + across])) for i in range(0, len(shapes), across))
    with style():
        figure = Figure(figsize=(width, height), layout='constrained')
        every = figure.subplots(down, across, squeeze=False).ravel()
        for axes in every[len(shapes) :]:
            axes.remove()
        drawn = list(zip(every, shapes, strict=False))
        line_styles = {label: _line_style(i) for i, label in enumerate(labels)}
        for axes, shape in drawn:
            if isinstance(shape, Lines):
                _draw_lines(axes, shape, line_styles)
            elif isinstance(shape, Missing):
                _draw_missing(axes, shape)
        matrices = [(axes, shape) for axes, shape in drawn if isinstance(shape, Matrix)]
        _draw_matrices(figure, matrices, 0.75 * width / across)
        lines = 0
        if len(labels) > 1:
            handles: dict[str, Artist] = {}
            for axes, _ in drawn:
                handles |= {str(h.get_label()): h for h in axes.get_legend_handles_labels()[0]}
            lines = _draw_legend(figure, [handles[label] for label in labels])
        figure.set_size_inches(width, height + 0.25 * lines + 0.16 * len(notes))
        if notes:
            figure.supxlabel('\n'.join(notes), fontsize=_SMALL, color=_GREY)
    return figure


def _draw_legend(figure: Figure, handles: Sequence[Artist]) -> int:
    """Draws the legend in as few lines as the width allows, and returns their number."""
    for lines in range(1, len(handles) + 1):
        legend = figure.legend(
            handles=handles,
            loc='outside upper center',
            ncols=-(-len(handles) // lines),
            handlelength=2.2,
            columnspacing=1.4,
        )
        if legend.get_window_extent().width <= figure.bbox.width:
            break
        if lines < len(handles):
            legend.remove()
    return lines


def _line_style(i: int) -> dict[str, Any]:
    """Colour, dashes and marker of the i-th curve."""
    return {**line(i), 'marker': _MARKERS[i % len(_MARKERS)], 'markersize': 4}


def _width(shape: Shape, across: int) -> float:
    """Inches of a panel, with legible letters if the picture is as wide as a page's text."""
    if isinstance(shape, Matrix) and not shape.form and across == 1:
        return 7.0
    return {1: 4.6, 2: 3.6}.get(across, 3.3)


def _height(shape: Shape) -> float:
    if not isinstance(shape, Matrix):
        return 3.1
    rows, columns = shape.values.shape
    if shape.form and max(rows, columns) <= _NUMBERED:
        return 1.2 + 0.3 * rows
    return 1.2 + min(0.14 * rows, 3.0)


def _draw_missing(axes: Axes, missing: Missing) -> None:
    axes.set_title(missing.title)
    axes.set_axis_off()
    axes.text(0.5, 0.5, 'not run', ha='center', va='center', color=_GREY, transform=axes.transAxes)


def _draw_lines(axes: Axes, lines: Lines, line_styles: dict[str, dict[str, Any]]) -> None:
    axes.set(title=lines.title, xlabel=lines.xlabel, ylabel=lines.ylabel)
    count = len(lines.curves)
    for i, curve in enumerate(lines.curves):
        line_style = {**line_styles[curve.label], 'label': curve.label}
        if lines.dots:
            axes.plot(curve.x, curve.y, **{**line_style, 'linestyle': 'none'}, alpha=0.6)
        elif lines.ticks:
            shift = _APART * (i - (count - 1) / 2) / count
            sd = None if np.isnan(curve.sd).all() else np.nan_to_num(curve.sd)
            axes.errorbar(curve.x + shift, curve.y, yerr=sd, capsize=3, **line_style)
        else:
            step = -(-len(curve.x) // _MARKS)
            line_style['linewidth'] = 0.9 if len(curve.x) > _LONG else None
            axes.plot(curve.x, curve.y, markevery=(i * step // count, max(step, 1)), **line_style)
            if not np.isnan(curve.sd).all():
                ends = curve.y - curve.sd, curve.y + curve.sd
                axes.fill_between(
                    curve.x, *ends, color=line_style['color'], alpha=0.18, linewidth=0
                )
    if lines.ticks:
        axes.set_xticks(range(len(lines.ticks)), lines.ticks)
        axes.margins(x=0.08)
    elif not lines.dots:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if lines.reference == 'zero':
        axes.axhline(0, color=_GREY, linewidth=0.8, zorder=0)
    elif lines.reference == 'diagonal':
        axes.axline((0, 0), slope=1, color=_GREY, linewidth=0.8, zorder=0)
        values = np.concatenate([np.concatenate([c.x, c.y]) for c in lines.curves])
        if values.size:
            ends = values.min() - 2, values.max() + 2
            axes.set(xlim=ends, ylim=ends)
            axes.set_aspect('equal')


def _draw_matrices(figure: Figure, drawn: list[tuple[Axes, Matrix]], width: float) -> None:
    """Draw matrices, with one colour bar for those with the same scale."""
    scales: dict[tuple[Any, ...], list[tuple[Axes, Matrix]]] = {}
    for axes, matrix in drawn:
        scale = matrix.label, matrix.low, matrix.high, matrix.gamma
        scales.setdefault(scale, []).append((axes, matrix))
    for (label, low, high, gamma), group in scales.items():
        values = np.concatenate([matrix.values.ravel() for _, matrix in group])
        known = values[~np.isnan(values)] if not np.isnan(values).all() else np.array([0.0, 1.0])
        ends = known.min() if low is None else low, known.max() if high is None else high
        norm = PowerNorm(gamma, ends[0], max(ends[1], ends[0] + 1e-9))
        images = [_draw_matrix(axes, matrix, width, norm) for axes, matrix in group]
        bar = figure.colorbar(images[0], ax=[axes for axes, _ in group], aspect=25, pad=0.02)
        white = '; white: 0 or none' if norm.vmin == 0 else ''
        bar.set_label(label + white, fontsize=9)


def _draw_matrix(axes: Axes, matrix: Matrix, width: float, norm: PowerNorm) -> AxesImage:
    # White cells have no value, or exactly zero if the scale begins at zero.
    shown = np.ma.masked_invalid(matrix.values)
    if norm.vmin == 0:
        shown = np.ma.masked_equal(shown, 0)
    image = axes.imshow(shown, cmap=_DARK, norm=norm, aspect='auto', interpolation='nearest')
    axes.grid(False)
    axes.set(title=matrix.title, xlabel=matrix.xlabel, ylabel=matrix.ylabel)
    for axis, names in ((axes.xaxis, matrix.columns), (axes.yaxis, matrix.rows)):
        ticks = range(len(names)) if len(names) <= _NUMBERED else _round_numbers(names)
        axis.set_ticks(ticks, [names[i] for i in ticks])
    if matrix.form and len(matrix.rows) <= _NUMBERED:
        texts = {place: format(value, matrix.form) for place, value in np.ma.ndenumerate(shown)}
        size = _letters(texts.values(), width / len(matrix.columns))
        for (i, j), text in texts.items() if size else ():
            colour = 'white' if norm(matrix.values[i, j]) > 0.5 else 'black'
            axes.text(j, i, text, ha='center', va='center', fontsize=size, color=colour)
    return image


def _letters(texts: Iterable[str], width: float) -> float:
    """Points of the letters so that texts fit into cells of some inches; 0 if too small."""
    fitting = 72 * width / (0.65 * max(map(len, texts), default=1) + 0.5)
    return min(fitting, _SMALL) if fitting >= 5 else 0


def _round_numbers(names: tuple[str, ...]) -> list[int]:
    """Indices of a few round numbers among many."""
    values = list(map(int, names))
    wanted = MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]).tick_values(values[0], values[-1])
    return [i for i, value in enumerate(values) if value in wanted]
