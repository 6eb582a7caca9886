"""CSV files contain no formulas."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.internal.csv_text import csv_text, read_cell
from jaxfed.internal.messages import printable


def read(text):
    return list(csv.reader(io.StringIO(text, newline='')))


@pytest.mark.parametrize(
    'cell',
    ['=HYPERLINK("http://x","y")', '+1+cmd|calc!A0', '-2+3', '@SUM(A1)', '=', '-', '--5'],
)
def test_formulas_become_texts(cell):
    assert read(csv_text([[cell, 'next']])) == [[f"'{cell}", 'next']]
    assert read_cell(f"'{cell}") == cell


def test_a_path_is_a_text():
    assert read(csv_text([[Path('=1+1'), Path('runs/a')]])) == [["'=1+1", 'runs/a']]


def test_a_semicolon_does_not_begin_a_cell():
    text = csv_text([['name', 2], ['x;=1+1', 2]])
    assert text == 'name,2\n"x;=1+1","2"\n'
    assert list(csv.reader(io.StringIO(text), delimiter=';'))[1][0].startswith('x;=1+1')


@pytest.mark.parametrize('cell', ['-1.5', '+3', '-inf', '1e-5', '', 'fedlmd+fedprox', -1, None])
def test_numbers_and_other_texts_are_unchanged(cell):
    text = '' if cell is None else str(cell)
    assert read(csv_text([[cell, 2]])) == [[text, '2']]
    assert read_cell(text) == text and read_cell("'quoted'") == "'quoted'"


@pytest.mark.slow
@given(st.lists(st.text(), min_size=2, max_size=4))
def test_no_cell_is_a_formula_or_controls_a_terminal(cells):
    (row,) = read(csv_text([cells]))
    for cell, original in zip(row, cells, strict=True):
        assert cell in (printable(original), f"'{printable(original)}")
        if cell.startswith(('=', '+', '-', '@')):
            float(cell)
