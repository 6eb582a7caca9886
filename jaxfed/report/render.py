"""The page itself: one HTML file that loads nothing."""

import base64
import hashlib
import importlib.metadata
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from jaxfed.report import contents, grouping, pictures
from jaxfed.report.grouping import Group


def render(groups: Sequence[Group], *, target: float | None = None) -> str:
    """Make the page.

    Args:
      groups: of runs, at least one.
      target: accuracy in 0..1 whose rounds are told; None for that of each run.

    Returns:
      HTML.
    """
    pages = Environment(
        loader=PackageLoader('jaxfed.report', 'page'),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    css, script = (_source(pages, name) for name in ('page.css', 'page.js'))
    count = sum(len(group.runs) for group in groups)
    datasets = ', '.join(dict.fromkeys(r.config['dataset'] for g in groups for r in g.runs))
    open_, folded = contents.curves(groups)
    class_figure, class_table, by_round = contents.classes(groups)
    return pages.get_template('page.html').render(
        title=f'{count} run{"s" * (count > 1)} on {datasets}',
        policy=_policy(script),
        version=importlib.metadata.version('jaxfed'),
        css=Markup(css),
        script=Markup(script),
        groups=groups,
        swatches=[pictures.swatch(i) for i in range(len(groups))],
        markers=[pictures.marker(i) for i in range(len(groups))],
        distinct_lines=pictures.LINES,
        distinct_dots=pictures.DOTS,
        seeds_of_means=[contents.seeds(group) for group in groups],
        seeds_of_curves=[contents.seeds_by_round(group) for group in groups],
        nothing=contents.NOTHING,
        warnings=[run.warning for group in groups for run in group.runs if run.warning],
        seeds=any(len(group.runs) > 1 for group in groups),
        partial=any(len(group.counted) < len(group.runs) for group in groups),
        marked=any(not group.counted[0].complete for group in groups),
        target=target,
        validation=any(r.config.get('validation') for g in groups for r in g.runs),
        results=contents.results(groups, target),
        differing=contents.differing(groups),
        equal=grouping.equal(groups),
        curves=open_,
        further=folded,
        class_figure=class_figure,
        class_table=class_table,
        by_round=by_round,
        confusions=contents.confusions(groups),
        partitions=contents.partitions(groups),
        costs=contents.costs(groups),
        versions=contents.versions,
    )


def _source(pages: Environment, name: str) -> str:
    assert pages.loader is not None
    return pages.loader.get_source(pages, name)[0]


def _policy(script: str) -> str:
    """Nothing is loaded from anywhere, and no script runs but this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
