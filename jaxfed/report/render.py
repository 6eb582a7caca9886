"""The HTML page, one file without external resources."""

import base64
import hashlib
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from jaxfed.internal.console import counted
from jaxfed.internal.versions import VERSION
from jaxfed.report import figures, grouping, pictures, tables
from jaxfed.report.comparison import compare
from jaxfed.report.crossing import cross
from jaxfed.report.grouping import RunGroup


def render(
    groups: Sequence[RunGroup],
    *,
    target: float | None = None,
    baseline: str | None = None,
    score: str = 'final',
    warnings: Sequence[str] = (),
) -> str:
    """Render the page of at least one group as HTML.

    Args:
      groups: the groups of runs.
      target: the accuracy in 0..1 for 'rounds to target'; None for the target of the runs, if they
        have the same.
      baseline: see `compare`.
      score: see `compare`.
      warnings: sentences about the runs.

    Raises:
      ValueError: if nothing can be compared with the chosen baseline.
    """
    loader = PackageLoader('jaxfed.report', 'page')
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    css, script = (loader.get_source(pages, name)[0] for name in ('page.css', 'page.js'))
    runs = [run for group in groups for run in group.runs]
    datasets = ', '.join(dict.fromkeys(run.config['dataset'] for run in runs))
    curves = figures.curves(groups)
    header = grouping.header(groups)
    targets = tables.targets(groups, target)
    results = tables.results(groups, tables.common(targets))
    class_figure, class_table, by_round = figures.classes(groups)
    return pages.get_template('page.html').render(
        title=f'{counted(len(runs), "run")} on {datasets}',
        policy=policy(script),
        version=VERSION,
        css=Markup(css),
        script=Markup(script),
        groups=groups,
        swatches=[pictures.swatch(i) for i in range(len(groups))],
        markers=[pictures.marker(i) for i in range(len(groups))],
        distinct_lines=pictures.LINES,
        distinct_dots=pictures.DOTS,
        seeds_of_means=[grouping.seeds(group) for group in groups],
        seeds_of_curves=[grouping.seeds_by_round(group) for group in groups],
        warnings=warnings,
        seeds=any(len(group.runs) > 1 for group in groups),
        partial=any(len(group.counted) < len(group.runs) for group in groups),
        marked=any(not group.counted[0].complete for group in groups),
        targets=targets,
        validation=any(run.config.get('validation') for run in runs),
        results=results,
        personal=tables.PERSONAL in results.columns,
        crossed=cross(groups, score),
        compared=compare(groups, baseline=baseline, score=score),
        best=any(cell.best for row in results.rows for cell in row),
        differing=tables.differing_settings(groups),
        header=header,
        equal={k: v for k, v in grouping.equal(groups).items() if k not in header},
        shared=any(run.shared for run in runs),
        curves=curves,
        class_figure=class_figure,
        class_table=class_table,
        by_round=by_round,
        confusions=figures.confusions(groups),
        partitions=figures.partitions(groups),
        costs=tables.costs(groups),
        versions=tables.versions,
    )


def policy(script: str) -> str:
    """Return the content security policy, which loads nothing and runs only this script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
