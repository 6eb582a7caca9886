"""Directives that show jaxfed's registries.

```{jaxfed-table} methods``` is a table; ```{jaxfed-functions} methods``` shows all docstrings.
"""

import inspect
import re
import typing

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from jaxfed import losses, methods
from jaxfed.config import DEFAULTS, SETTINGS, Config
from jaxfed.metrics.measures import MEASURES
from jaxfed.models import MODELS, options
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.runs import listings

Row = tuple[str, ...]


def method_rows() -> list[Row]:
    """Rows of all methods: description, paper, hyper-parameters and costs."""
    rows: list[Row] = [('`--method`', 'description and paper', 'hyper-parameters', 'costs')]
    for name in methods.METHODS:
        sentence, paper = methods.describe(name)
        flags = [f'`{h}={p.default}`' for h, p in methods.hyperparameters(name).items()]
        lines = listings.cost_in_words(name).replace(', ', '\n')
        rows.append((f'`{name}`', f'{sentence}\n{paper}', '\n'.join(flags), lines))
    return rows


def partition_rows() -> list[Row]:
    """Rows of all partitions: description and settings."""
    rows: list[Row] = [('`--partition`', 'description', 'settings')]
    for name, function in PARTITIONS.items():
        settings = '\n'.join(f'`--{key}`' for key in partition_settings(name))
        rows.append((f'`{name}`', _sentence(function), settings or 'none'))
    return rows


def network_rows() -> list[Row]:
    """Rows of all networks: description and options."""
    rows: list[Row] = [('`--model`', 'description', 'options')]
    for name, network in MODELS.items():
        chosen = ', '.join(f'`--{key}`' for key in options(name))
        rows.append((f'`{name}`', _sentence(network), chosen or 'none'))
    return rows


def measure_rows() -> list[Row]:
    """Rows of all measures: description, fields and costs."""
    rows: list[Row] = [('`--measure`', 'description', 'fields', 'costs')]
    for name, measure in MEASURES.items():
        fields = '\n'.join(f'`{field}`' for field in measure.fields)
        where = '\nFor local models.' if measure.local else ''
        rows.append((f'`{name}`', f'{measure.text}{where}', fields, measure.cost))
    return rows


def flag_rows() -> list[Row]:
    """Rows of all settings: flag, values, default and meaning."""
    rows: list[Row] = [('flag', 'values', 'default', 'meaning')]
    types = typing.get_type_hints(Config)
    for name, setting in SETTINGS.items():
        default = '' if DEFAULTS[name] is None else f'`{DEFAULTS[name]}`'
        help_ = re.sub(r'--\w+(=\w+)?', r'`\g<0>`', setting.help)
        rows.append((f'`--{name}`', _values(types[name]), default, help_))
    return rows


def _sentence(thing: object) -> str:
    return (inspect.getdoc(thing) or '').split('\n\n', 1)[0].replace('\n', ' ')


def _values(kind: typing.Any) -> str:
    """Describes the values of a flag of some type."""
    plain = {bool: 'true, false', int: 'integer', float: 'number', str: 'text'}
    if kind in plain:
        return plain[kind]
    of = [k for k in typing.get_args(kind) if k is not type(None)]
    if typing.get_origin(kind) is typing.Literal:
        return ', '.join(f'`{value}`' for value in of)
    return _values(of[0])


# Made before Sphinx reads a page: autodoc replaces the defaults of functions by source text.
TABLES: dict[str, list[Row]] = {
    'methods': method_rows(),
    'partitions': partition_rows(),
    'networks': network_rows(),
    'flags': flag_rows(),
    'measures': measure_rows(),
}


class JaxfedTable(SphinxDirective):
    """Shows one of `TABLES`; each line of a cell is a paragraph, and backticks mark code."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Builds the table's nodes."""
        head, *rows = TABLES[self.arguments[0]]
        group = nodes.tgroup('', *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
        group += nodes.thead('', _row(head))
        group += nodes.tbody('', *map(_row, rows))
        return [nodes.table('', group, classes=['colwidths-auto', 'generated'])]


# The functions that `{jaxfed-functions}` documents, by their full names.
FUNCTIONS = {
    'methods': [f'{factory.__module__}.{name}' for name, factory in methods.METHODS.items()],
    'losses': [f'jaxfed.losses.{name}' for name in losses.__all__],
}


class JaxfedFunctions(SphinxDirective):
    """Documents the functions of one of `FUNCTIONS`, each under a heading."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Builds the sections."""
        return [self.section(name) for name in FUNCTIONS[self.arguments[0]]]

    def section(self, full_name: str) -> nodes.section:
        """Builds the section of one function; the index has the function in its own module."""
        name = full_name.rpartition('.')[2]
        section = nodes.section(ids=[nodes.make_id(f'{self.arguments[0]}-{name}')], names=[])
        section += nodes.title('', name)
        text = f'.. autofunction:: {full_name}\n   :no-index:\n'
        section += self.parse_text_to_nodes(f'```{{eval-rst}}\n{text}```\n')
        return section


def _row(cells: Row) -> nodes.row:
    return nodes.row('', *(nodes.entry('', *map(_words, cell.split('\n'))) for cell in cells))


def _words(text: str) -> nodes.paragraph:
    parts = (
        nodes.literal('', part) if i % 2 else nodes.Text(part)
        for i, part in enumerate(text.split('`'))
        if part
    )
    return nodes.paragraph('', '', *parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directives."""
    app.add_directive('jaxfed-table', JaxfedTable)
    app.add_directive('jaxfed-functions', JaxfedFunctions)
    return {'parallel_read_safe': True}
