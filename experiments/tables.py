"""Run a table of a paper and write it: python -m experiments.tables fedlmd/3 --data_dir=DIR.

Runs method x column x seed, skips what is done and goes on where it was interrupted. OUTPUT gets
the runs, and the table as Markdown, LaTeX and CSV. Flags after -- go to every run, as in
python -m experiments.tables fedlmd/1 --rounds=9 -- --dataset=digits --model=mlp --num_clients=20
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from absl import flags
from rich.console import Console
from rich.text import Text

from experiments.draw import table_layout
from experiments.draw.table_layout import Filled
from experiments.fedcad.tables import TABLES as FEDCAD
from experiments.fedlmd.tables import TABLES as FEDLMD
from experiments.fedssd.tables import TABLES as FEDSSD
from experiments.grid import runner, scores
from experiments.grid.command import (
    ROUNDS,
    VALIDATION,
    check_output,
    define_together,
    guarded,
    parse,
    refuse,
    run,
    train,
    use_machine,
    write_all,
)
from experiments.grid.published import BASELINE, Column, PaperTable, read_numbers
from experiments.grid.runner import Cell, GridRow, RecordedCell
from jaxfed.runs import config_flags

TABLES = {table.name: table for table in (*FEDCAD, *FEDSSD, *FEDLMD)}
ROMAN = {'i': '1', 'ii': '2', 'iii': '3'}

Named = TypeVar('Named', Column, GridRow)


class TableCells(NamedTuple):
    """A table, or a part of it, with its runs."""

    table: PaperTable
    columns: tuple[Column, ...]
    rows: tuple[GridRow, ...]
    seeds: int
    cells: Mapping[tuple[str, str], tuple[Cell, ...]]  # (row, column) -> a cell a seed
    # Column -> runs of FedAvg, which others are compared with whether they are asked for or not.
    baselines: Mapping[str, tuple[Cell, ...]]
    rounds: Mapping[str, tuple[int, int]]  # column -> rounds of its runs, of the paper
    changed: str  # flags that are not the paper's, '' for none

    @property
    def every(self) -> list[Cell]:
        """All cells, column after column."""
        keys = [(row.name, column.name) for column in self.columns for row in self.rows]
        return [cell for key in keys for cell in self.cells[key]]


def find(name: str) -> PaperTable:
    """The table of a name.

    Args:
      name: as 'fedssd/1' or 'fedssd/I'.

    Returns:
      The table.

    Raises:
      ValueError: if there is none.
    """
    paper, _, number = name.lower().partition('/')
    wanted = f'{paper}/{ROMAN.get(number, number)}'
    if wanted not in TABLES:
        raise ValueError(f'there is no table {name}; there are {", ".join(TABLES)}.')
    return TABLES[wanted]


def choose(flag: str, wanted: Sequence[str] | None, held: Sequence[Named]) -> tuple[Named, ...]:
    """Picks columns or rows by name.

    Args:
      flag: that names them.
      wanted: names; None for all.
      held: those of the table.

    Returns:
      Those named, in the order of the table.

    Raises:
      ValueError: for an unknown name, or none.
    """
    if wanted is None:
        return tuple(held)
    names = {each.name.lower(): each for each in held}
    for name in wanted:
        if name.lower() not in names:
            raise ValueError(
                f'--{flag}: {name!r} is none of {", ".join(each.name for each in held)}.'
            )
    if not wanted:
        raise ValueError(f'--{flag}= names none; there are {", ".join(e.name for e in held)}.')
    chosen = {name.lower() for name in wanted}
    return tuple(each for name, each in names.items() if name in chosen)


def make_plan(
    table: PaperTable,
    *,
    columns: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    output: Path,
    flags_: Sequence[str] = (),
) -> TableCells:
    """Make the cells of a table, every setting checked.

    Args:
      table: the table.
      columns: names of those wanted; None for all.
      methods: names of the rows wanted; None for all.
      seeds: how many, from 0; None for the table's own number.
      output: folder of all runs.
      flags_: that hold for all of them.

    Returns:
      The plan.

    Raises:
      ValueError: for an unknown name or settings that do not do.
    """
    seeds = table.seeds if seeds is None else seeds
    if seeds < 1:
        raise ValueError(f'--seeds={seeds} must be at least 1.')
    some = choose('columns', columns, table.columns)
    rows = choose('methods', methods, table.rows)

    def cells_of(row: GridRow, column: Column) -> tuple[Cell, ...]:
        return tuple(
            runner.make_cell(
                column.file,
                row,
                seed,
                output=output,
                flags=flags_,
                variant=column.flags.get(row.name, ()),
                measured=False,
            )
            for seed in range(seeds)
        )

    cells = {(row.name, column.name): cells_of(row, column) for row in rows for column in some}
    baseline = [row for row in table.rows if row.name == BASELINE]
    own = {
        c.name: config_flags.parse([f'--flagfile={runner.flag_file(c.file)}']).rounds for c in some
    }
    rounds = {c.name: (cells[rows[0].name, c.name][0].config.rounds, own[c.name]) for c in some}
    return TableCells(
        table=table,
        columns=some,
        rows=rows,
        seeds=seeds,
        cells=cells,
        baselines={c.name: cells_of(baseline[0], c) for c in some} if baseline else {},
        rounds=rounds,
        changed=shlex.join(runner.flags_with_effect(flags_)),
    )


def fill(plan: TableCells, command: str) -> Filled:
    """Read what is done of a table.

    Args:
      plan: the table.
      command: that runs it.

    Returns:
      The table with its scores.

    Raises:
      ValueError: if a run cannot be read.
    """
    table = plan.table
    runs = {key: _done(cells) for key, cells in plan.cells.items()}
    baselines, unfit = _baselines(plan)
    found = {
        (row, column): scores.score_of(
            own,
            baselines.get(column, {}),
            asked=plan.seeds,
            score=table.score,
            speed=table.speed,
            target=table.target,
        )
        for (row, column), own in runs.items()
    }
    numbers = read_numbers(table)
    every = [run for own in runs.values() for run in own.values()]
    spread = any(value.sd is not None for value in numbers.values())
    rule = 'the sd of the paper' if spread else '2 sd of these seeds'
    notes = (
        f'within, outside: whether the mean is no further than {rule} from that of the paper'
        + ('' if spread else ', said where there are several seeds')
        + "; nothing is said where rounds or other settings are not the paper's.",
        f'"{table_layout.NOTHING}" is not run yet, n: how many of the seeds are; failed: training '
        'diverged, such runs are in no mean. Cells with failed or missing runs have no place; '
        'those that are equal as printed share one.',
        *unfit,
        *table.notes,
    )
    alike = [name for name, (own, paper) in plan.rounds.items() if own == paper]
    return Filled(
        table,
        plan.columns,
        plan.rows,
        numbers,
        found,
        runs,
        title=title_of(plan),
        command=command,
        told=(_read_as(plan), ran(plan, every)),
        notes=notes,
        alike=frozenset(() if plan.changed else alike),
    )


def _baselines(plan: TableCells) -> tuple[dict[str, dict[int, RecordedCell]], list[str]]:
    """Column -> seed -> run of the baseline to compare with, and notes on those that do not do."""
    found: dict[str, dict[int, RecordedCell]] = {}
    unfit: list[str] = []
    if not scores.compares_with_baseline(plan.table.speed, plan.table.target):
        return found, unfit
    for column, cells in plan.baselines.items():
        found[column] = {}
        for cell in cells:
            # It may not be among the runs that were asked for, so nobody has checked it.
            try:
                found[column] |= _done([cell])
            except ValueError:
                unfit.append(
                    f'{cell.name} has other settings or cannot be read, so nothing is compared '
                    'with it.'
                )
    return found, unfit


def _done(cells: Sequence[Cell]) -> dict[int, RecordedCell]:
    return {cell.seed: runner.read(cell) for cell in cells if runner.is_done(cell)}


def title_of(plan: TableCells) -> str:
    """The first line: which table, and what about it is not the paper's.

    Args:
      plan: the table.

    Returns:
      The line.
    """
    table, number = plan.table, plan.table.name.partition('/')[2]
    told = []
    if fewer := dict.fromkeys(both for both in plan.rounds.values() if both[0] != both[1]):
        words = [f"{own} of the paper's {paper}" for own, paper in fewer]
        told.append(f'{", ".join(words)} rounds')
    if plan.changed:
        told.append(f"settings that are not the paper's: {plan.changed}")
    first = [plan.cells[plan.rows[0].name, column.name][0] for column in plan.columns]
    for alike in runner.equal(first):
        files = {cell.column for cell in alike}
        names = ', '.join(column.title for column in plan.columns if column.file in files)
        told.append(f'{names}: equal settings')
    return f'{table.paper}, table {number}: {table.title}' + (
        f' ({"; ".join(told)})' if told else ''
    )


def _read_as(plan: TableCells) -> str:
    table = plan.table
    when = 'the best over the rounds' if table.score == 'best' else 'after the last round'
    words = f'Test accuracy in percent, {when}'
    if plan.seeds > 1:
        words += f', mean ± sd of {plan.seeds} seeds'
    if table.speed:
        goal = 'the target' if table.target == 'flag' else f"{BASELINE}'s {table.score} accuracy"
        what = 'speed-up' if table.speed == 'speed-up' else 'rounds'
        words += f'; in brackets the {what} to {goal}'
    missing = not all(runner.is_done(cell) for cell in plan.every)
    of = 'what is done of the column' if missing else 'the column'
    return f'{words}. Bold: best, underlined: second best of {of}.'


def ran(plan: TableCells, runs: Sequence[RecordedCell]) -> str:
    """What exactly was run.

    Args:
      plan: the table.
      runs: that are done.

    Returns:
      Rounds, seeds, devices and versions.
    """
    rounds = ', '.join(str(n) for n in dict.fromkeys(own for own, _ in plan.rounds.values()))
    seeds = ', '.join(map(str, range(plan.seeds)))
    total = len(plan.every)
    words = [f'{len(runs)} of {total} runs; rounds: {rounds}; seeds: {seeds}']
    words += dict.fromkeys(_device(run.config['device']) for run in runs)
    words += dict.fromkeys(_versions(run.config['versions']) for run in runs)
    return '; '.join(words) + '.'


def _device(device: dict[str, Any]) -> str:
    text = f'{device["platform"]} {device["kind"]}' if device['platform'] != 'cpu' else 'cpu'
    return f'{text}, {device["count"]} device(s), {device["cpu_cores"]} cores'


def _versions(versions: dict[str, str]) -> str:
    return ', '.join(f'{name} {version}' for name, version in versions.items())


def texts_of(plan: TableCells, filled: Filled, output: Path) -> dict[Path, str]:
    """The table as Markdown, LaTeX and CSV.

    Args:
      plan: the table.
      filled: the same with its scores.
      output: folder of all runs.

    Returns:
      Path of the file -> what it holds.
    """
    paper, _, number = plan.table.name.partition('/')
    texts = {
        '.md': table_layout.markdown(filled),
        '.tex': table_layout.latex(filled),
        '.csv': table_layout.as_csv(filled, plan.rounds),
    }
    return {output / paper / f'table{number}{suffix}': text for suffix, text in texts.items()}


def show_tables(console: Console) -> None:
    """Print all tables with their columns, rows and numbers of runs.

    Args:
      console: where to.
    """
    for table in TABLES.values():
        runs = len(table.columns) * len(table.rows) * table.seeds
        console.print(Text(f'{table.name}  {table.title}; {runs} runs', 'bold'))
        for flag, held in (('columns', table.columns), ('methods', table.rows)):
            names = f'--{flag}=' + ','.join(each.name for each in held)
            console.print(Text(f'    {names}'), soft_wrap=True)


def show_plan(plan: TableCells, console: Console) -> None:
    """Print each cell and whether it is done.

    Args:
      plan: the table.
      console: where to.

    Raises:
      ValueError: if a folder holds a run with other settings.
    """
    done = 0
    for cell in plan.every:
        finished = runner.is_done(cell)
        done += finished
        state = 'done  ' if finished else 'to run'
        console.print(f'{state}  {cell.name}  {cell.config.rounds} rounds', soft_wrap=True)
    console.print(f'{done} of {len(plan.every)} runs are done.')


def define(into: flags.FlagValues) -> None:
    """Define the flags of this command.

    Args:
      into: where to.
    """

    def integer(name: str, help_: str) -> None:
        flags.DEFINE_integer(name, None, help_, lower_bound=1, flag_values=into)

    integer('rounds', "of every run [the paper's]")
    integer(
        'seeds', "runs of a cell, with seeds from 0 [the paper's number where it is told, or 1]"
    )
    flags.DEFINE_list('columns', None, 'names of columns, see --list [all]', flag_values=into)
    flags.DEFINE_list('methods', None, 'names of rows, see --list [all]', flag_values=into)
    flags.DEFINE_string('data_dir', None, 'directory of prepared datasets', flag_values=into)
    flags.DEFINE_string('output', 'runs/tables', 'folder of runs and tables', flag_values=into)
    define_together(into)
    flags.DEFINE_bool('list', False, 'show all tables, and stop', flag_values=into)
    flags.DEFINE_bool('dry_run', False, 'show the plan, and stop', flag_values=into)
    flags.DEFINE_bool('report_only', False, 'draw what is done, run nothing', flag_values=into)


def _main(arguments: Sequence[str]) -> int:
    values, names, further = parse(arguments, define, (__doc__ or '').strip())
    given = values.flag_values_dict()
    console = Console(highlight=False, emoji=False, markup=False)
    if given['list']:
        show_tables(console)
        return 0
    if len(names) != 1:
        told = ' '.join(names) or 'no table'
        raise ValueError(f'{told} given; name one of {", ".join(TABLES)}.')
    refuse(further, {'rounds': ROUNDS, 'validation': VALIDATION})
    of_all = [
        f'--{name}={given[name]}' for name in ('rounds', 'data_dir') if given[name] is not None
    ]
    output = check_output(given['output'])
    plan = make_plan(
        find(names[0]),
        columns=given['columns'],
        methods=given['methods'],
        seeds=given['seeds'],
        output=output,
        flags_=[*of_all, *further],
    )
    if given['dry_run']:
        show_plan(plan, console)
        return 0
    use_machine()
    failed = {}
    if not given['report_only']:
        failed = train(plan.every, output, together=given['together'])
    filled = fill(plan, command_of(plan, given, further))
    table_layout.show(filled, console)
    write_all(texts_of(plan, filled, output), console)
    return 1 if failed else 0


def command_of(plan: TableCells, given: Mapping[str, Any], further: Sequence[str]) -> str:
    """The command that runs a table, without what depends on the place.

    Args:
      plan: the table.
      given: its flags.
      further: flags of every run.

    Returns:
      The command.
    """
    words = ['python', '-m', 'experiments.tables', plan.table.name]
    for name in ('rounds', 'seeds', 'columns', 'methods'):
        value = given[name]
        if value is not None:
            words.append(f'--{name}={",".join(value) if isinstance(value, list) else value}')
    kept = [flag for flag in further if not _local(flag)]
    return shlex.join([*words, *(['--', *kept] if kept else [])])


def _local(flag: str) -> bool:
    return flag.lstrip('-').partition('=')[0] in ('data_dir', 'workdir')


def main(arguments: Sequence[str]) -> int:
    """Run and write a table as the arguments say.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs could not be done, 2 for bad input, 130 if interrupted.
    """
    return guarded(_main, arguments)


if __name__ == '__main__':
    run(main)
