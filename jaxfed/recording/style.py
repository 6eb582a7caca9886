"""The style of all figures: legible in print, on a screen, and with colour blindness."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxfed.internal.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours without yellow, which is faint on white.
COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000')
DASHES = ('-', '--', ':', '-.')
SEQUENTIAL = 'cividis'  # perceptually uniform, the same with colour blindness

# The suffix of a file -> settings of its format.
FORMATS: dict[str, dict[str, Any]] = {
    '.png': {'dpi': 150},
    '.svg': {'metadata': {'Date': None}},
    '.pdf': {'metadata': {'CreationDate': None}},
}

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
    'svg.fonttype': 'path',  # letters as curves, for machines without the font
    'pdf.fonttype': 42,  # TrueType; many venues refuse Type 3
    'svg.hashsalt': 'jaxfed',  # the same file every time
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Apply the common style to figures drawn in the block."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def line(i: int) -> dict[str, Any]:
    """Return `Axes.plot` keywords for the i-th curve; the first 28 curves look different."""
    n = len(COLOURS)
    return {'color': COLOURS[i % n], 'linestyle': DASHES[i // n % len(DASHES)]}


def save(figure: 'Figure', path: str | os.PathLike[str]) -> list[Path]:
    """Write a figure to PATH.png and PATH.svg atomically, and return both files."""
    files = [Path(f'{path}.png'), Path(f'{path}.svg')]
    for file in files:
        write(figure, file)
    return files


def write(figure: 'Figure', path: Path) -> None:
    """Write a figure to a file atomically, without the date.

    Raises:
      ValueError: if the file does not end in one of FORMATS.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f'{path} must end in {" or ".join(FORMATS)}.')
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=suffix[1:], **FORMATS[suffix])
