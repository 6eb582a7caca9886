"""A directive for the example scripts: ```{jaxfed-gallery}```.

Each script of experiments/examples/ gets a section: its docstring, which begins 'Title: command.',
its picture docs/_static/gallery/NAME.png if there is one, and its code.
"""

import ast
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / 'experiments' / 'examples'


def example_scripts(folder: Path = EXAMPLES) -> list[Path]:
    """Lists the example scripts in alphabetical order; none if the folder does not exist."""
    return sorted(path for path in folder.glob('*.py') if not path.name.startswith('_'))


class Gallery(SphinxDirective):
    """Shows all example scripts."""

    def run(self) -> list[nodes.Node]:
        """Builds a section for each script."""
        return [self.section(path) for path in example_scripts()]

    def section(self, path: Path) -> nodes.section:
        """Builds the section of one script."""
        source = path.read_text(encoding='utf-8')
        first, _, rest = (ast.get_docstring(ast.parse(source)) or path.stem).partition('\n')
        title, _, command = first.removesuffix('.').partition(': ')
        section = nodes.section(ids=[nodes.make_id(path.stem)], names=[path.stem])
        section += nodes.title('', title)
        section += self.parse_text_to_nodes(rest)
        if command:
            section += nodes.literal_block(command, command, language='sh')
        picture = DOCS / '_static' / 'gallery' / f'{path.stem}.png'
        if picture.exists():
            target = f'_static/gallery/{picture.name}'
            section += nodes.image(
                uri=target, alt=title, candidates={'*': target}, classes=['picture']
            )
            self.env.images.add_file(self.env.docname, target)
        caption = nodes.paragraph()
        caption += nodes.literal('', f'experiments/examples/{path.name}')
        section += caption
        section += nodes.literal_block(source, source, language='python')
        self.env.note_dependency(str(path))
        return section


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive('jaxfed-gallery', Gallery)
    return {'parallel_read_safe': True}
