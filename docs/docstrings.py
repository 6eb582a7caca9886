"""jaxfed's docstrings as reStructuredText, so that they stay plain text in the source.

Read here: what they say besides Google's sections. A paragraph without a full stop (or colon) at
its end is an equation; an indented block after a colon is shown as it stands; everything else is
words, in which `*`, `_` and `|` mean themselves. Fields of tuples and data classes are described by
the comments on or above their lines, or by the help text of their flag.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from types import ModuleType
from typing import Any

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
    """A line of words in which only backticks are markup, and flags are code.

    Args:
      line: of a docstring.

    Returns:
      The line as reStructuredText.
    """
    shown = ''
    for i, part in enumerate(_SPANS.split(line)):
        if i % 2:
            shown += f'``{part}``' if part.startswith('--') else part
        else:
            shown += _MARKUP.sub(lambda found: '\\' + found[0], part)
    return _ENUMERATOR.sub(r'\1\\.', shown)


def as_restructured_text(lines: list[str]) -> list[str]:
    """Marks equations and blocks of a docstring, and escapes what is no markup.

    Args:
      lines: of the docstring, without common indentation.

    Returns:
      The lines with Google's sections left as they are, for napoleon.
    """
    shown: list[str] = []
    after = ''
    in_sections = False
    for paragraph in '\n'.join(lines).strip('\n').split('\n\n'):
        first, last = paragraph.lstrip('\n').split('\n')[0], paragraph.rstrip()[-1:]
        in_sections |= first.rstrip(':') in _SECTIONS and first.endswith(':')
        block = after == ':' and first.startswith(' ')
        if not in_sections and shown and (block or last not in '.:'):
            code = [line if block else f'    {line}' for line in paragraph.split('\n')]
            shown += ['.. code-block:: text', '    :class: equation', '', *code, '']
        else:
            shown += [*map(escape, paragraph.split('\n')), '']
        after = last
    return shown


def has_fields(cls: Any) -> bool:
    """Whether a class is a tuple with names or a data class."""
    return hasattr(cls, '_fields') or dataclasses.is_dataclass(cls)


def field_lines(cls: Any) -> list[str]:
    """A section 'Fields' that describes the fields of a tuple or data class.

    Args:
      cls: the class.

    Returns:
      Lines of a docstring, none for another class.
    """
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
    """Sphinx's event for each docstring; before napoleon's."""
    if what == 'class':
        lines += field_lines(thing)
    shown = as_restructured_text(lines)
    if what == 'module' and '__all__' in vars(thing):
        shown += exported(thing)
    lines[:] = shown


def exported(module: ModuleType) -> list[str]:
    """What a package offers under its own name but defines in one of its modules, as a list.

    Args:
      module: the package.

    Returns:
      Lines of reStructuredText.
    """
    shown = []
    for name in vars(module)['__all__']:
        thing = getattr(module, name)
        home = getattr(thing, '__module__', None)
        if (inspect.isfunction(thing) or inspect.isclass(thing)) and home != module.__name__:
            sentence = (inspect.getdoc(thing) or '').split('\n', 1)[0]
            shown.append(f'* :py:obj:`{name} <{home}.{thing.__qualname__}>` {escape(sentence)}')
    return ['', 'Offered here:', '', *shown, ''] if shown else []


def skip_member(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool:
    """Sphinx's event for each member; a tuple's fields stand in its docstring already."""
    return skip or type(thing).__name__ == '_tuplegetter'


def process_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: Any, returns: Any
) -> tuple[Any, Any]:
    """Sphinx's event for each signature; that of a tuple or data class is its fields."""
    if what == 'class' and has_fields(thing):
        return '', None
    if what == 'class' and issubclass(thing, nnx.Module):  # whose own signature tells nothing
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
