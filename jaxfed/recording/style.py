"""One look for all pictures: legible in print and on a screen, and with colour blindness."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

# Okabe and Ito's colours without yellow, which is faint on white.
COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000')
DASHES = ('-', '--', ':', '-.')
SEQUENTIAL = 'cividis'  # perceptually uniform, the same with colour blindness
DIVERGING = 'RdBu_r'

_SETTINGS: Any = {
    'font.size': 10,
    'axes.titlesize': 11,
    'axes.grid': True,
    'grid.alpha': 0.3,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'lines.linewidth': 1.6,
    'legend.frameon': False,
    'image.cmap': SEQUENTIAL,
    'svg.fonttype': 'path',  # the same letters on a machine without the font
    'svg.hashsalt': 'jaxfed',  # the same file every time
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draws what is drawn inside in the common look.

    Yields:
      Nothing.
    """
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def line(i: int) -> dict[str, Any]:
    """The colour and dashes of the i-th curve of a picture, different for the first 28.

    Args:
      i: number of the curve, from 0.

    Returns:
      Keyword arguments of `Axes.plot`.
    """
    n = len(COLOURS)
    return {'color': COLOURS[i % n], 'linestyle': DASHES[i // n % len(DASHES)]}


def save(figure: Figure, path: str | os.PathLike[str]) -> list[Path]:
    """Writes a picture as PNG and as SVG, each whole or not at all.

    Args:
      figure: the picture.
      path: of the files, without their suffix.

    Returns:
      The two files.
    """
    files = []
    for suffix, keywords in (('.png', {'dpi': 150}), ('.svg', {'metadata': {'Date': None}})):
        file = Path(f'{path}{suffix}')
        temporary = file.with_name(f'.{file.name}.tmp')
        figure.savefig(temporary, format=suffix[1:], **keywords)
        os.replace(temporary, file)
        files.append(file)
    return files
