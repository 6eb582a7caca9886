"""Equations as MathML, made when the pages are built, so that a reader needs no script or network.

Browsers draw MathML themselves. Sphinx's own renderers load MathJax from elsewhere, or need LaTeX.
"""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def lines_of(latex: str) -> list[str]:
    r"""The lines of a displayed equation, which `\\` separates outside of environments."""
    lines, depth = [''], 0
    for part in latex.split(r'\\'):
        lines[-1] += part
        depth += part.count(r'\begin{') - part.count(r'\end{')
        if depth:
            lines[-1] += r'\\'
        else:
            lines.append('')
    return [line.strip() for line in lines if line.strip()]


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Writes an equation inside a sentence."""
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_math_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Writes a displayed equation; each of its lines scrolls if the screen is narrow."""
    lines = [f'<div>{convert(line, display="block")}</div>' for line in lines_of(node.astext())]
    self.body.append(f'<div class="equation">{"".join(lines)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the renderer under the name that conf.py selects."""
    app.add_html_math_renderer('mathml', (visit_math, None), (visit_math_block, None))
    return {'parallel_read_safe': True}
