"""Settings of Sphinx. To build: python -m sphinx -W docs docs/_build/html."""

import logging
import re
import sys
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext import apidoc

import jaxfed

logging.getLogger('jax').setLevel(logging.WARNING)  # what it finds of devices is nothing here
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = 'jaxfed'
version = release = metadata.version('jaxfed')
extensions = [
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'myst_parser',
    'docstrings',
    'tables',
]
exclude_patterns = ['_build']
default_role = 'code'
smartquotes_action = 'D'  # dashes only: quotes belong to strings

autodoc_default_options = {'ignore-module-all': True, 'member-order': 'bysource'}
autodoc_typehints_format = 'short'
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
napoleon_use_rtype = False
napoleon_custom_sections = [('Fields', 'params_style'), ('Reference', 'returns_style')]

myst_heading_anchors = 3

html_theme = 'furo'
html_title = f'jaxfed {version}'
html_static_path = ['_static']
html_css_files = ['jaxfed.css']
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False


def readme(text: str) -> str:
    """The README with links that hold inside these pages.

    Args:
      text: of README.md.

    Returns:
      The text; files of the repository that are no page here are named instead of linked, but for
      pictures.
    """

    def link(found: re.Match[str]) -> str:
        picture, words, target = found[1], found[2], found[3]
        if picture:
            return f'![{words}](../{target})'
        if target.startswith(('#', 'http', 'docs/')):
            return f'[{words}]({target.removeprefix("docs/")})'
        return f'`{target}`' if target == words else f'{words} (`{target}`)'

    return re.sub(r'(!?)\[([^\]]+)\]\(([^)]+)\)', link, text)


def read_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Sphinx's event for each page; the first one is the README itself."""
    if name == 'index':
        text = (HERE.parent / 'README.md').read_text(encoding='utf-8')
        source[0] = source[0].replace('{README}', readme(text))


def write_reference(app: Sphinx) -> None:
    """Sphinx's event at the start; writes a page for each package, found by looking."""
    templates, pages = HERE / '_templates' / 'apidoc', Path(app.srcdir) / 'reference'
    package = Path(jaxfed.__file__).parent
    options = ['-q', '--force', '--remove-old', '--no-toc', f'--templatedir={templates}']
    apidoc.main([*options, f'--output-dir={pages}', str(package)])


def setup(app: Sphinx) -> None:
    """Connects the events to Sphinx."""
    app.connect('builder-inited', write_reference)
    app.connect('source-read', read_source)
