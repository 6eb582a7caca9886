"""CSV for files that people open in spreadsheets."""

import csv
import io
import os
from collections.abc import Iterable
from typing import Any

from jaxfed.internal.messages import printable

_FORMULA = ('=', '+', '-', '@')  # first characters of cells that spreadsheets evaluate


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Format rows as CSV; escapes control characters, and makes formulas texts by an apostrophe."""
    text = io.StringIO(newline='')
    for row in rows:
        cells = [*map(_inert, row)]
        # In some languages a semicolon separates cells, unless it is quoted.
        quoted = any(';' in str(cell) for cell in cells)
        writer = csv.writer(
            text, lineterminator='\n', quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
        )
        writer.writerow(cells)
    return text.getvalue()


def _inert(cell: Any) -> Any:
    """Return the cell as a text that neither a terminal nor a spreadsheet evaluates."""
    if not isinstance(cell, str | os.PathLike):
        return cell
    text = printable(os.fspath(cell))  # Python's writer does not quote a carriage return
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(_FORMULA) else text
    return text


def read_cell(text: str) -> str:
    """Return the text of a cell that `csv_text` wrote, without the apostrophe before a formula."""
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA) else text
