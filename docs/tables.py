"""A directive for tables that are made of jaxfed's registries: ```{jaxfed-table} methods```."""

import inspect
import re
import typing

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from jaxfed import methods
from jaxfed.config import DEFAULTS, SETTINGS, Config
from jaxfed.metrics.measures import MEASURES
from jaxfed.models import MODELS, options
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.recording import display
from jaxfed.runs import listings

Row = tuple[str, ...]


def method_rows() -> list[Row]:
    """Every method with its hyper-parameters, what it does, costs and paper."""
    rows: list[Row] = [('`--method`', 'what it does, and its paper', 'hyper-parameters', 'costs')]
    for name in methods.METHODS:
        sentence, paper = methods.describe(name)
        flags = [f'`{h}={p.default}`' for h, p in methods.hyperparameters(name).items()]
        cost = display.cost_in_words(listings.cost_of(name)._asdict())
        lines = cost.replace(', ', '\n')
        rows.append((f'`{name}`', f'{sentence}\n{paper}', '\n'.join(flags), lines))
    return rows


def partition_rows() -> list[Row]:
    """Every partition with its settings."""
    rows: list[Row] = [('`--partition`', 'what it does', 'settings')]
    for name, function in PARTITIONS.items():
        settings = '\n'.join(f'`--{key}`' for key in partition_settings(name))
        rows.append((f'`{name}`', _sentence(function), settings or 'none'))
    return rows


def network_rows() -> list[Row]:
    """Every network with its options."""
    rows: list[Row] = [('`--model`', 'what it is', 'options')]
    for name, network in MODELS.items():
        chosen = ', '.join(f'`--{key}`' for key in options(name))
        rows.append((f'`{name}`', _sentence(network), chosen or 'none'))
    return rows


def measure_rows() -> list[Row]:
    """Every measure with its fields and what it costs."""
    rows: list[Row] = [('`--measure`', 'what it is', 'fields', 'costs')]
    for name, measure in MEASURES.items():
        fields = '\n'.join(f'`{field}`' for field in measure.fields)
        where = '\nOf local models.' if measure.local else ''
        rows.append((f'`{name}`', f'{measure.text}{where}', fields, measure.cost))
    return rows


def flag_rows() -> list[Row]:
    """Every setting of an experiment, its type, default and meaning."""
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
    """What a flag of a type takes, in words."""
    plain = {bool: 'true, false', int: 'integer', float: 'number', str: 'text'}
    if kind in plain:
        return plain[kind]
    of = [k for k in typing.get_args(kind) if k is not type(None)]
    if typing.get_origin(kind) is typing.Literal:
        return ', '.join(f'`{value}`' for value in of)
    return _values(of[0])


# Made before any page is read: autodoc puts source text in the place of functions' defaults.
TABLES: dict[str, list[Row]] = {
    'methods': method_rows(),
    'partitions': partition_rows(),
    'networks': network_rows(),
    'flags': flag_rows(),
    'measures': measure_rows(),
}


class JaxfedTable(SphinxDirective):
    """Shows one of `TABLES`; a line of a cell is a paragraph, backticks are code."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Makes the table's nodes."""
        head, *rows = TABLES[self.arguments[0]]
        group = nodes.tgroup('', *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
        group += nodes.thead('', _row(head))
        group += nodes.tbody('', *map(_row, rows))
        return [nodes.table('', group, classes=['colwidths-auto', 'generated'])]


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
    """Makes the directive known to Sphinx."""
    app.add_directive('jaxfed-table', JaxfedTable)
    return {'parallel_read_safe': True}
