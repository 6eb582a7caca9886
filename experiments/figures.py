"""Run a figure of a paper and draw it: python -m experiments.figures fedssd/2 --data_dir=DIR.

Trains the runs of its curves, skips finished runs and resumes interrupted ones. Writes the picture
as PNG and SVG, its numbers as CSV and the settings of its runs as Markdown to OUTPUT. The command
accepts several figures. Flags after -- apply to every run, a hyper-parameter to the methods that
take it:

    python -m experiments.figures fedssd/2 --rounds=2 -- --dataset=digits \\
        --model=mlp --augment=none
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from absl import flags

from experiments.draw.figure import (
    FigureCells,
    PaperFigure,
    cells_of,
    narrowed,
    plan,
    shapes_of,
)
from experiments.draw.write import write_figure
from experiments.fedcad.figures import FIGURES as FEDCAD
from experiments.fedlmd.figures import FIGURES as FEDLMD
from experiments.fedssd.figures import FIGURES as FEDSSD
from experiments.grid import command, runner, training
from experiments.grid.runner import Cell
from jaxfed.internal import console

# Figure -> its maker, a function of the number of rounds; None for the paper's.
FIGURES: dict[str, Callable[[int | None], PaperFigure]] = {
    f'{paper}/{number}': make
    for paper, figures in (('fedcad', FEDCAD), ('fedssd', FEDSSD), ('fedlmd', FEDLMD))
    for number, make in figures.items()
}
# The figure sets these flags.
FIXED = {
    **dict.fromkeys(('local_eval_every', 'measure', 'switch_round'), 'follows from the figure'),
    'rounds': command.ROUNDS,
    'validation': command.VALIDATION,
}


def define(values: flags.FlagValues) -> None:
    """Define the flags of this command."""
    command.define_shared(values, output='runs/figures', rounds="the paper's", seeds='a curve')
    command.define_paper(values)
    flags.DEFINE_string(
        'runs',
        None,
        'folder of the runs, such as the --output of tables [runs in --output]',
        flag_values=values,
    )


@command.guarded
def main(arguments: Sequence[str]) -> int:
    """Run and draw figures.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs failed or there is nothing to draw, 2 for invalid input,
      130 if interrupted.
    """
    parsed = command.parse(arguments, define, __doc__)
    values = parsed.values
    if values['list']:
        show_figures()
        return 0
    if not parsed.names:
        raise ValueError(f'the command needs a figure; name one or more of {", ".join(FIGURES)}.')
    command.refuse(parsed.extra, FIXED)
    output = command.check_output(values['output'])
    plans = {
        name: make_plan(
            name,
            values['rounds'],
            values['seeds'],
            columns=values['columns'],
            methods=values['methods'],
            runs=Path(values['runs'] or output / 'runs'),
            flags_=parsed.run_flags,
        )
        for name in parsed.names
    }
    single = [name for name, plan_ in plans.items() if plan_.figure.one_seed]
    if single and values['seeds'] > 1:
        seeds = f'--seeds={values["seeds"]}'
        console.say(f'{seeds} is not read for figures of one seed: {", ".join(single)}.')
    if values['dry_run']:
        for name, plan_ in plans.items():
            training.show_cells(cells_of(plan_.panels), f'{name}: ')
        return 0
    training.use_machine()
    panels = [panel for plan_ in plans.values() for panel in plan_.panels]
    cells, failed = cells_of(panels), {}
    if not values['report_only']:
        dealt = cells_of(panels, trains=False)
        failed = training.train(cells, output, together=values['together'], untrained=dealt)
    done = runner.read_done(cells)
    drawn = [draw_plan(name, plan_, done, output) for name, plan_ in plans.items()]
    return 0 if all(drawn) and not failed else 1


def make(name: str, rounds: int | None = None) -> PaperFigure:
    """Make a figure.

    Args:
      name: 'PAPER/NUMBER'.
      rounds: of every run, None for the paper's.

    Returns:
      The figure.

    Raises:
      ValueError: if there is no such figure, or it needs more rounds.
    """
    if name not in FIGURES:
        raise ValueError(f'there is no figure {name!r}; there are {", ".join(FIGURES)}.')
    return FIGURES[name](rounds)


def make_plan(
    name: str,
    rounds: int | None,
    seeds: int,
    *,
    columns: Sequence[str] | None,
    methods: Sequence[str] | None,
    runs: Path,
    flags_: Sequence[str] = (),
) -> FigureCells:
    """Make the cells of a figure and check their settings.

    Args:
      name: 'PAPER/NUMBER'.
      rounds: of every run, None for the paper's.
      seeds: how many, from 0.
      columns: names of the selected columns; None for all.
      methods: names of the selected methods; None for all.
      runs: folder of all runs.
      flags_: flags of all runs.

    Returns:
      The plan.

    Raises:
      ValueError: for an unknown name or invalid settings.
    """
    figure = narrowed(make(name, rounds), columns=columns, methods=methods)
    paper = plan(make(name), 1, output=runs)
    try:
        planned = plan(figure, seeds, output=runs, flags=flags_)
    except ValueError as error:
        raise ValueError(f'{name}: {error}') from error

    def first_seeds(of_all: Sequence[str]) -> Iterator[Cell]:
        for trains in (True, False):
            yield from cells_of(plan(figure, 1, output=runs, flags=of_all), trains=trains)

    changed = runner.changed_flags(flags_, first_seeds(()), first_seeds(flags_))
    return FigureCells(
        figure,
        planned,
        paper_rounds={cell.column: cell.config.rounds for cell in cells_of(paper)},
        changed=shlex.join(changed),
    )


def draw_plan(
    name: str, plan_: FigureCells, done: dict[Path, runner.RecordedCell], output: Path
) -> bool:
    """Draw a figure from its finished runs and print the paths.

    Args:
      name: 'PAPER/NUMBER'.
      plan_: its plan.
      done: work directory -> run.
      output: folder of the figures.

    Returns:
      Whether a picture was drawn.
    """
    cells = cells_of(plan_.panels)
    if cells and not any(cell.folder in done for cell in cells):
        console.show_error(f'{name}: none of its {len(cells)} runs is done; nothing is drawn.')
        return False
    write_figure(name, plan_, shapes_of(plan_.panels, done), done, output)
    return True


def show_figures() -> None:
    """Print all figures with their columns, methods and numbers of runs."""
    for name in FIGURES:
        figure = make(name)
        runs = {(s.column, s.row, s.variant) for p in figure.panels if p.trains for s in p.series}
        console.TERMINAL.print(f'{name}  {figure.title}; {len(runs)} runs a seed', style='bold')
        series = [series for panel in figure.panels for series in panel.series]
        columns = dict.fromkeys(Path(one.column).name for one in series)
        methods = dict.fromkeys(one.row.name for one in series)
        console.say(f'    --columns={",".join(columns)}')
        console.say(f'    --methods={",".join(methods)}')


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
