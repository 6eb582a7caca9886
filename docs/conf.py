"""Configures Sphinx. To build: python -m sphinx -W docs docs/_build/html."""

import logging
import sys
from importlib import metadata
from pathlib import Path

from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.ext import apidoc
from sphinx.writers.html5 import HTML5Translator

import jaxfed

logging.getLogger('jax').setLevel(logging.WARNING)  # devices do not matter here
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = 'jaxfed'
version = release = metadata.version('jaxfed')
extensions = [
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'sphinx_copybutton',
    'myst_parser',
    'docstrings',
    'gallery',
    'mathml',
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

myst_enable_extensions = ['dollarmath']
myst_heading_anchors = 3

html_math_renderer = 'mathml'
html_theme = 'furo'
html_title = f'jaxfed {version}'
html_static_path = ['_static']
html_css_files = ['jaxfed.css']
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

copybutton_selector = 'div.highlight-sh pre, div.highlight-python pre'


def write_reference(app: Sphinx) -> None:
    """Writes a page of the reference for each package, at the start of a build."""
    templates, pages = HERE / '_templates' / 'apidoc', Path(app.srcdir) / 'reference'
    package = Path(jaxfed.__file__).parent
    options = ['-q', '--force', '--remove-old', '--no-toc', f'--templatedir={templates}']
    apidoc.main([*options, f'--output-dir={pages}', str(package)])


def open_page(translator: HTML5Translator, node: download_reference) -> None:
    """Links a page of results so that a browser opens it instead of saving it."""
    HTML5Translator.visit_download_reference(translator, node)
    if str(node.get('filename')).endswith('.html'):
        translator.body[-1] = translator.body[-1].replace(' download=""', '')


def setup(app: Sphinx) -> None:
    """Connects the event and the links to Sphinx."""
    app.connect('builder-inited', write_reference)
    visitors = open_page, HTML5Translator.depart_download_reference
    app.add_node(download_reference, override=True, html=visitors)
