"""Run a figure of a paper and draw it: python -m experiments.figures fedssd/2 --data_dir=DIR.

Runs what its curves need, skips what is done and goes on where it was interrupted. OUTPUT gets the
picture as PNG and SVG, its numbers as CSV and what was run as Markdown. Several figures may be
named. Flags after -- go to every run, as in
python -m experiments.figures fedssd/2 --rounds=2 -- --dataset=digits --model=mlp --augment=none
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags
from rich.console import Console
from rich.text import Text

from experiments.draw.figure import (
    FigureCells,
    PaperFigure,
    cells_of,
    changed,
    narrowed,
    plan,
    shapes_of,
)
from experiments.draw.write import write_figure
from experiments.fedcad.figures import FIGURES as FEDCAD
from experiments.fedlmd.figures import FIGURES as FEDLMD
from experiments.fedssd.figures import FIGURES as FEDSSD
from experiments.grid import runner
from experiments.grid.command import (
    ROUNDS,
    VALIDATION,
    check_output,
    define_together,
    guarded,
    parse,
    refuse,
    run,
    use_machine,
)
from jaxfed.internal import console

# Figure -> how it is made for a number of rounds, None for the paper's.
FIGURES: dict[str, Callable[[int | None], PaperFigure]] = {
    f'{paper}/{number}': make
    for paper, figures in (('fedcad', FEDCAD), ('fedssd', FEDSSD), ('fedlmd', FEDLMD))
    for number, make in figures.items()
}
# What a figure needs to be as it is.
FIXED = {
    **dict.fromkeys(('local_eval_every', 'measure', 'switch_round'), 'follows from the figure'),
    'rounds': ROUNDS,
    'validation': VALIDATION,
}


def define(into: flags.FlagValues) -> None:
    """Define the flags of this command.

    Args:
      into: where to.
    """
    integer, text, switch = flags.DEFINE_integer, flags.DEFINE_string, flags.DEFINE_bool
    integer('rounds', None, "of every run [the paper's]", lower_bound=1, flag_values=into)
    integer('seeds', 1, 'runs of a curve, with seeds from 0', lower_bound=1, flag_values=into)
    flags.DEFINE_list('columns', None, 'names of columns, see --list [all]', flag_values=into)
    flags.DEFINE_list('methods', None, 'names of methods, see --list [all]', flag_values=into)
    text('data_dir', None, 'directory of prepared datasets', flag_values=into)
    text('output', 'runs/figures', 'folder of the figures', flag_values=into)
    text('runs', None, 'folder of the runs, as that of tables [runs in --output]', flag_values=into)
    define_together(into)
    switch('list', False, 'show all figures, and stop', flag_values=into)
    switch('dry_run', False, 'show the plan, and stop', flag_values=into)
    switch('report_only', False, 'draw what is done, run nothing', flag_values=into)


def _main(arguments: Sequence[str]) -> int:
    values, names, further = parse(arguments, define, (__doc__ or '').strip())
    given = values.flag_values_dict()
    terminal = Console(highlight=False)
    if given['list']:
        show_figures(terminal)
        return 0
    if not names:
        raise ValueError(f'no figure given; name one or more of {", ".join(FIGURES)}.')
    refuse(further, FIXED)
    output = check_output(given['output'])
    of_all = [
        f'--{name}={given[name]}' for name in ('rounds', 'data_dir') if given[name] is not None
    ]
    plans = {
        name: make_plan(
            name,
            given['rounds'],
            given['seeds'],
            columns=given['columns'],
            methods=given['methods'],
            runs=Path(given['runs'] or output / 'runs'),
            flags_=[*of_all, *further],
        )
        for name in names
    }
    if given['dry_run']:
        show_plan(plans, terminal)
        return 0
    use_machine()
    cells = cells_of([panel for plan_ in plans.values() for panel in plan_.panels])
    failed = {}
    if not given['report_only']:
        dealt = cells_of([p for plan_ in plans.values() for p in plan_.panels], trains=False)
        runner.check([*cells, *dealt])
        failed = runner.run_cells(cells, together=given['together'])
    done = {cell.folder: runner.read(cell) for cell in cells if runner.is_done(cell)}
    drawn = [draw_plan(name, plan_, done, output, terminal) for name, plan_ in plans.items()]
    return 0 if all(drawn) and not failed else 1


def make(name: str, rounds: int | None = None) -> PaperFigure:
    """A figure by name.

    Args:
      name: 'PAPER/NUMBER'.
      rounds: of every run, None for the paper's.

    Returns:
      The figure.

    Raises:
      ValueError: if there is no such figure, or it cannot be made with so few rounds.
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
    """Make the cells of a figure, every setting checked.

    Args:
      name: 'PAPER/NUMBER'.
      rounds: of every run, None for the paper's.
      seeds: how many, from 0.
      columns: names of those wanted; None for all.
      methods: names of those wanted; None for all.
      runs: folder of all runs.
      flags_: that hold for all of them.

    Returns:
      The plan.

    Raises:
      ValueError: for an unknown name or settings that do not do.
    """
    figure = narrowed(make(name, rounds), columns=columns, methods=methods)
    paper = plan(make(name), 1, output=runs)
    try:
        planned = plan(figure, seeds, output=runs, flags=flags_)
    except ValueError as error:
        raise ValueError(f'{name}: {error}') from error
    return FigureCells(
        figure,
        planned,
        paper_rounds={cell.column: cell.config.rounds for cell in cells_of(paper)},
        changed=changed(flags_),
    )


def draw_plan(
    name: str,
    plan_: FigureCells,
    done: dict[Path, runner.RecordedCell],
    output: Path,
    terminal: Console,
) -> bool:
    """Draw a figure from the runs that are done and say where it is.

    Args:
      name: 'PAPER/NUMBER'.
      plan_: its plan.
      done: work directory -> run.
      output: folder of the figures.
      terminal: where to say it.

    Returns:
      Whether there was anything to draw.
    """
    cells = cells_of(plan_.panels)
    if cells and not any(cell.folder in done for cell in cells):
        console.show_error(f'{name}: none of its {len(cells)} runs is done; nothing is drawn.')
        return False
    shapes = shapes_of(plan_.panels, done)
    for path in write_figure(name, plan_, shapes, done, output):
        terminal.print(f'written: {path}', soft_wrap=True)
    return True


def show_figures(terminal: Console) -> None:
    """Print all figures with their columns, methods and numbers of runs.

    Args:
      terminal: where to.
    """
    for name in FIGURES:
        figure = make(name)
        every = [series for panel in figure.panels for series in panel.series]
        runs = {(s.column, s.row, s.variant) for p in figure.panels if p.trains for s in p.series}
        terminal.print(Text(f'{name}  {figure.title}; {len(runs)} runs a seed', 'bold'))
        columns = dict.fromkeys(Path(series.column).name for series in every)
        methods = dict.fromkeys(series.row.name for series in every)
        for flag, held in (('columns', columns), ('methods', methods)):
            terminal.print(Text(f'    --{flag}={",".join(held)}'), soft_wrap=True)


def show_plan(plans: dict[str, FigureCells], terminal: Console) -> None:
    """Print each run and whether it is done.

    Args:
      plans: name -> plan.
      terminal: where to.

    Raises:
      ValueError: if a folder holds a run with other settings.
    """
    for name, plan_ in plans.items():
        cells, done = cells_of(plan_.panels), 0
        for cell in cells:
            finished = runner.is_done(cell)
            done += finished
            state = 'done  ' if finished else 'to run'
            terminal.print(f'{state}  {cell.name}  {cell.config.rounds} rounds', soft_wrap=True)
        terminal.print(f'{name}: {done} of {len(cells)} runs are done.')


def main(arguments: Sequence[str]) -> int:
    """Run and draw figures as the arguments say.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs could not be done or there is nothing to draw, 2 for bad
      input, 130 if interrupted.
    """
    return guarded(_main, arguments)


if __name__ == '__main__':
    run(main)
