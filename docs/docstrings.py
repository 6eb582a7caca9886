"""Converts jaxfed's docstrings to reStructuredText, so that they stay plain text in the source.

Google's sections are napoleon's task. In the paragraphs before them, one that `EQUATIONS` lists
becomes a typeset equation. Another paragraph without a full stop or colon at its end, or an
indented block after a colon, is shown unchanged in a fixed-width font. All else is text, in which
`*`, `_` and `|` are plain characters. The comments on or above the lines of a tuple or data class,
or the help text of a flag, describe its fields.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from types import ModuleType
from typing import Any

from equations import EQUATIONS, normalised
from flax import nnx
from jax.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util import inspect as sphinx_inspect
from sphinx.util.typing import stringify_annotation

_SECTIONS = ('Args', 'Fields', 'Raises', 'Reference', 'Returns', 'Yields')
_SPANS = re.compile(r'(``.*?``|`[^`]*`|--\w[\w.=+,]*\w)')  # code, and flags
_MARKUP = re.compile(r'[*|\\]|_(?!\w)')
_ENUMERATOR = re.compile(r'^(\s*(?:\w+: )?(?:[A-Za-z]|\d+))\.(?=\s|$)')  # 'S.' alone is a letter
_ARRAY_LIKE = stringify_annotation(ArrayLike, 'smart')


def escape(line: str) -> str:
    """Escapes a line of text: only backticks are markup, and flags are code."""
    shown = ''
    for i, part in enumerate(_SPANS.split(line)):
        if i % 2:
            shown += f'``{part}``' if part.startswith('--') else part
        else:
            shown += _MARKUP.sub(lambda found: '\\' + found[0], part)
    return _ENUMERATOR.sub(r'\1\\.', shown)


def as_restructured_text(lines: list[str]) -> list[str]:
    """Converts a docstring without common indentation; Google's sections stay for napoleon."""
    shown: list[str] = []
    after = ''
    in_sections = False
    for paragraph in '\n'.join(lines).strip('\n').split('\n\n'):
        first, last = paragraph.lstrip('\n').split('\n')[0], paragraph.rstrip()[-1:]
        in_sections |= first.rstrip(':') in _SECTIONS and first.endswith(':')
        block = after == ':' and first.startswith(' ')
        latex = None if in_sections else EQUATIONS.get(normalised(paragraph))
        if latex:
            shown += ['.. math::', '', f'    {latex}', '']
        elif not in_sections and shown and (block or last not in '.:'):
            code = [line if block else f'    {line}' for line in paragraph.split('\n')]
            shown += ['.. code-block:: text', '    :class: equation', '', *code, '']
        else:
            shown += [*map(escape, paragraph.split('\n')), '']
        after = last
    return shown


def has_fields(cls: Any) -> bool:
    """Returns whether a class is a named tuple or a data class."""
    return hasattr(cls, '_fields') or dataclasses.is_dataclass(cls)


def field_lines(cls: Any) -> list[str]:
    """Makes the section 'Fields' of a tuple or data class; no line for another class."""
    if not has_fields(cls):
        return []
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    settings = {field.name: field.metadata.get('setting') for field in fields}
    helps = {name: setting.help for name, setting in settings.items() if setting}
    source = textwrap.dedent(inspect.getsource(cls)).split('\n')
    shown = ['', 'Fields:']
    for node in ast.parse('\n'.join(source)).body[0].body:  # type: ignore[attr-defined]
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, first, last = node.target.id, node.lineno - 1, (node.end_lineno or node.lineno) - 1
        comment = source[last][node.end_col_offset or 0 :].partition('# ')[2].strip()
        above: list[str] = []
        while (line := source[first - len(above) - 1].strip()).startswith('# '):
            above.insert(0, line[2:])
        words = helps.get(name) or ' '.join([*above, comment]).strip()
        kind = ast.unparse(node.annotation)
        shown.append(f'  {name} ({kind}): {words}'.rstrip())
    return shown


def process_docstring(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Handles Sphinx's event for each docstring, before napoleon does."""
    if what == 'class':
        lines += field_lines(thing)
    shown = as_restructured_text(lines)
    if what == 'module' and '__all__' in vars(thing):
        shown += exported(thing)
    lines[:] = shown


def exported(module: ModuleType) -> list[str]:
    """Lists the names that a package exports from its modules, with links."""
    shown = []
    for name in vars(module)['__all__']:
        thing = getattr(module, name)
        home = getattr(thing, '__module__', None)
        if (inspect.isfunction(thing) or inspect.isclass(thing)) and home != module.__name__:
            sentence = (inspect.getdoc(thing) or '').split('\n', 1)[0]
            shown.append(f'* :py:obj:`{name} <{home}.{thing.__qualname__}>` {escape(sentence)}')
    return ['', 'Exports:', '', *shown, ''] if shown else []


def skip_member(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool:
    """Skips a tuple's fields, which its docstring lists."""
    return skip or type(thing).__name__ == '_tuplegetter'


def process_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: Any, returns: Any
) -> tuple[Any, Any]:
    """Replaces signatures: none for tuples and data classes, the constructor's for networks."""
    if what == 'class' and has_fields(thing):
        return '', None
    if what == 'class' and issubclass(thing, nnx.Module):
        made = sphinx_inspect.signature(thing.__init__, bound_method=True)
        signature = sphinx_inspect.stringify_signature(
            made, show_return_annotation=False, unqualified_typehints=True
        )
    return signature and signature.replace(_ARRAY_LIKE, 'ArrayLike'), returns


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the events to Sphinx."""
    app.connect('autodoc-process-docstring', process_docstring, priority=400)  # napoleon has 500
    app.connect('autodoc-skip-member', skip_member)
    app.connect('autodoc-process-signature', process_signature)
    return {'parallel_read_safe': True}
