"""Run a table of a paper and write it: python -m experiments.tables fedlmd/3 --data_dir=DIR.

Trains method x column x seed, skips finished runs and resumes interrupted ones. Writes the runs and
the table as Markdown, LaTeX and CSV to OUTPUT. Flags after -- apply to every run, a hyper-parameter
to the methods that take it:

    python -m experiments.tables fedcad/1 --columns=cifar10 --rounds=9 -- \\
        --dataset=digits --model=mlp --augment=none --auxiliary_per_class=5
"""

import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from experiments.draw.table import markup, numbers, terminal, words
from experiments.draw.table.words import Filled
from experiments.fedcad.tables import TABLES as FEDCAD
from experiments.fedlmd.tables import TABLES as FEDLMD
from experiments.fedssd.tables import TABLES as FEDSSD
from experiments.grid import command, runner, scores, training
from experiments.grid.published import (
    BASELINE,
    Column,
    PaperTable,
    read_numbers,
    rounds_in_words,
)
from experiments.grid.runner import Cell, GridRow, RecordedCell
from jaxfed.internal import console
from jaxfed.runs import config_flags

TABLES = {table.name: table for table in (*FEDCAD, *FEDSSD, *FEDLMD)}
ROMAN = {'i': '1', 'ii': '2', 'iii': '3'}


class TableCells(NamedTuple):
    """A table, or a part of it, with its runs."""

    table: PaperTable
    columns: tuple[Column, ...]
    rows: tuple[GridRow, ...]
    seeds: int
    cells: Mapping[tuple[str, str], tuple[Cell, ...]]  # (row, column) -> a cell a seed
    # Column -> runs of FedAvg, the reference of the other rows even if FedAvg is not selected.
    baselines: Mapping[str, tuple[Cell, ...]]
    rounds: Mapping[str, tuple[int, int]]  # column -> rounds of its runs, of the paper
    changed: str  # flags that differ from the flag file's, '' for none

    @property
    def every(self) -> list[Cell]:
        """All cells, column after column."""
        keys = [(row.name, column.name) for column in self.columns for row in self.rows]
        return [cell for key in keys for cell in self.cells[key]]


def find(name: str) -> PaperTable:
    """The table of a name such as 'fedssd/1' or 'fedssd/I'; a ValueError if there is none."""
    paper, _, number = name.lower().partition('/')
    key = f'{paper}/{ROMAN.get(number, number)}'
    if key not in TABLES:
        raise ValueError(f'there is no table {name}; there are {", ".join(TABLES)}.')
    return TABLES[key]


def make_plan(
    table: PaperTable,
    *,
    columns: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    output: Path,
    flags_: Sequence[str] = (),
) -> TableCells:
    """Make the cells of a table and check their settings.

    Args:
      table: the table.
      columns: names of the selected columns; None for all.
      methods: names of the selected rows; None for all.
      seeds: how many, from 0; None for the table's number.
      output: folder of all runs.
      flags_: flags of all runs; a hyper-parameter is one of the methods that take it.

    Returns:
      The plan.

    Raises:
      ValueError: for an unknown name or invalid settings.
    """
    seeds = seeds or table.seeds
    column_names = command.select('columns', columns, [column.name for column in table.columns])
    row_names = command.select('methods', methods, [row.name for row in table.rows])
    chosen = tuple(column for column in table.columns if column.name in column_names)
    rows = tuple(row for row in table.rows if row.name in row_names)
    others, hyperparameters = runner.split_flags(flags_)

    def cells_of(row: GridRow, column: Column) -> tuple[Cell, ...]:
        return runner.make_cells(
            column.file,
            row,
            seeds,
            output=output,
            flags=others,
            hyperparameters=hyperparameters,
            variant=column.flags.get(row.name, ()),
            measured=False,
        )

    def paper_rounds(column: Column) -> int:
        return config_flags.parse([f'--flagfile={runner.flag_file(column.file)}']).rounds

    cells = {(row.name, column.name): cells_of(row, column) for row in rows for column in chosen}
    runner.check_taken((of_seeds[0] for of_seeds in cells.values()), hyperparameters)
    runner.check_varied(
        (
            runner.Varied(
                (c.file, row.name), row.name, c.flags.get(row.name, ()),
                cells[row.name, chosen[0].name][0],
            )
            for row in rows
            for c in table.columns
        ),
        hyperparameters,
    )  # fmt: skip
    plain = (
        runner.make_cell(column.file, row, 0, output=output, variant=column.flags.get(row.name, ()))
        for row in rows
        for column in chosen
    )
    changed = runner.changed_flags(
        flags_, plain, [of_seeds[0] for of_seeds in cells.values()],
        score='target_accuracy' if table.target == 'flag' else '',
    )  # fmt: skip
    baseline = [row for row in table.rows if row.name == BASELINE]
    return TableCells(
        table,
        chosen,
        rows,
        seeds,
        cells,
        baselines={c.name: cells_of(row, c) for row in baseline for c in chosen},
        rounds={
            c.name: (cells[rows[0].name, c.name][0].config.rounds, paper_rounds(c)) for c in chosen
        },
        changed=shlex.join(changed),
    )


def fill(plan: TableCells, command_line: str) -> Filled:
    """Read the finished runs of a table.

    Args:
      plan: the table.
      command_line: the command that makes it.

    Returns:
      The table with its scores.

    Raises:
      ValueError: if a run cannot be read.
    """
    table = plan.table
    runs = {key: _by_seed(cells) for key, cells in plan.cells.items()}
    baselines, unfit = _baselines(plan)
    found = {
        (row, column): scores.score_of(
            by_seed,
            baselines.get(column, {}),
            asked=plan.seeds,
            score=table.score,
            speed=table.speed,
            target=table.target,
        )
        for (row, column), by_seed in runs.items()
    }
    numbers = read_numbers(table)
    spread = any(value.sd is not None for value in numbers.values())
    rule = 'the sd of the paper' if spread else '2 sd of these seeds'
    notes = (
        f'within, outside: whether the mean is no further than {rule} from that of the paper'
        + ('' if spread else ', if there are several seeds')
        + '; empty if rounds or other settings are not those of the flag file.',
        f'"{words.NOTHING}": not run yet; n: the number of finished seeds; failed: '
        'training diverged, and the mean excludes such runs. Cells with failed or missing runs '
        'have no place; cells that print the same share one.',
        *unfit,
        *table.notes,
    )
    same_rounds = [name for name, (rounds, paper) in plan.rounds.items() if rounds == paper]
    return Filled(
        table,
        plan.columns,
        plan.rows,
        numbers,
        found,
        runs,
        title=title_of(plan),
        command=command_line,
        header=(
            _legend(plan),
            _ran(plan, [run for by_seed in runs.values() for run in by_seed.values()]),
        ),
        notes=notes,
        alike=frozenset(() if plan.changed or other_score(table) else same_rounds),
    )


def _baselines(plan: TableCells) -> tuple[dict[str, dict[int, RecordedCell]], list[str]]:
    """Column -> seed -> run of the baseline for comparison, and notes on unusable runs."""
    found: dict[str, dict[int, RecordedCell]] = {}
    unfit: list[str] = []
    if scores.compares_with_baseline(plan.table.speed, plan.table.target):
        for column, cells in plan.baselines.items():
            found[column] = {}
            for cell in cells:
                # A baseline outside the selected rows has not been checked.
                try:
                    found[column] |= _by_seed([cell])
                except ValueError:
                    unfit.append(
                        f'{cell.name} has other settings or cannot be read; it is not compared '
                        'with the other runs.'
                    )
    return found, unfit


def _by_seed(cells: Sequence[Cell]) -> dict[int, RecordedCell]:
    return {cell.seed: runner.read(cell) for cell in cells if runner.is_done(cell)}


def other_score(table: PaperTable) -> str:
    """The default score of a table if it has another one, else ''."""
    score = TABLES[table.name].score if table.name in TABLES else table.score
    return '' if score == table.score else score


def title_of(plan: TableCells) -> str:
    """The first line: the table, and how its runs differ from the paper's."""
    table, number = plan.table, plan.table.name.partition('/')[2]
    differences = []
    if pairs := dict.fromkeys(pair for pair in plan.rounds.values() if pair[0] != pair[1]):
        differences.append(', '.join(itertools.starmap(rounds_in_words, pairs)))
    if plan.changed:
        differences.append(f"settings other than the flag file's: {plan.changed}")
    if score := other_score(table):
        differences.append(f'not the default --score={score}')
    equal: dict[tuple[str, ...], list[str]] = {}
    for column in plan.columns:
        of_rows = (runner.trained(plan.cells[row.name, column.name][0]) for row in plan.rows)
        equal.setdefault(tuple(of_rows), []).append(column.title)
    for titles in equal.values():
        differences += [f'{", ".join(titles)}: equal settings'] if len(titles) > 1 else []
    suffix = f' ({"; ".join(differences)})' if differences else ''
    return f'{table.paper}, table {number}: {table.title}{suffix}'


def _legend(plan: TableCells) -> str:
    """How to read the table."""
    table = plan.table
    words = f'Test accuracy in percent, {scores.SCORES[table.score]}'
    if plan.seeds > 1:
        words += f', mean ± sd of {plan.seeds} seeds'
    if table.speed:
        goal = (
            'the target'
            if table.target == 'flag'
            else f"{BASELINE}'s {scores.goal_of(table.score)} accuracy"
        )
        words += f'; in brackets the {table.speed} to {goal}'
    missing = not all(runner.is_done(cell) for cell in plan.every)
    of = 'the finished runs of the column' if missing else 'the column'
    return f'{words}. Bold: best, underlined: second best of {of}.'


def _ran(plan: TableCells, runs: Sequence[RecordedCell]) -> str:
    """Rounds, seeds, devices and versions of the finished runs."""
    rounds = ', '.join(str(n) for n in dict.fromkeys(rounds for rounds, _ in plan.rounds.values()))
    seeds = ', '.join(map(str, range(plan.seeds)))
    words = [f'{len(runs)} of {len(plan.every)} runs; rounds: {rounds}; seeds: {seeds}']
    words += dict.fromkeys(_device(run.config['device']) for run in runs)
    versions = [run.config['versions'].items() for run in runs]
    words += dict.fromkeys(', '.join(f'{k} {v}' for k, v in pairs) for pairs in versions)
    return '; '.join(words) + '.'


def _device(device: dict[str, Any]) -> str:
    name = 'cpu' if device['platform'] == 'cpu' else f'{device["platform"]} {device["kind"]}'
    count = device['count']
    processor = f' of {device["processor"]}' if 'processor' in device else ''
    return f'{name}, {console.counted(count, "device")}, {device["cpu_cores"]} cores{processor}'


def texts_of(plan: TableCells, filled: Filled, output: Path) -> dict[Path, str]:
    """The table as Markdown, LaTeX and CSV, path -> content."""
    paper, _, number = plan.table.name.partition('/')
    texts = {
        'md': markup.markdown(filled),
        'tex': markup.latex(filled),
        'csv': numbers.as_csv(filled, plan.rounds),
    }
    return {output / paper / f'table{number}.{suffix}': text for suffix, text in texts.items()}


def show_tables() -> None:
    """Print all tables with their columns, rows and numbers of runs."""
    for table in TABLES.values():
        runs = len(table.columns) * len(table.rows) * table.seeds
        console.TERMINAL.print(f'{table.name}  {table.title}; {runs} runs', style='bold')
        console.say(f'    --columns={",".join(column.name for column in table.columns)}')
        console.say(f'    --methods={",".join(row.name for row in table.rows)}')


def define(values: flags.FlagValues) -> None:
    """Define the flags of this command."""
    command.define_shared(
        values,
        output='runs/tables',
        rounds="the paper's",
        seeds="a cell [the paper's number; else 3 where it has deviations, or 1]",
        default_seeds=None,
    )
    command.define_paper(values)
    flags.DEFINE_enum(
        'score', None, list(scores.SCORES), "accuracy by round [the table's]", flag_values=values
    )


def command_of(arguments: Sequence[str]) -> str:
    """The command that makes a table: the user's, but it also trains."""
    words = [word for word in arguments if runner.flag_name(word) != 'report_only']
    return shlex.join(['python', '-m', 'experiments.tables', *words])


@command.guarded
def main(arguments: Sequence[str]) -> int:
    """Run and write a table.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs failed or there is nothing to show, 2 for invalid input,
      130 if interrupted.
    """
    parsed = command.parse(arguments, define, __doc__)
    values = parsed.values
    if values['list']:
        show_tables()
        return 0
    if len(parsed.names) != 1:
        names = ' '.join(parsed.names) or 'none'
        raise ValueError(f'the command makes one of {", ".join(TABLES)}, got {names}.')
    command.refuse(parsed.extra, {'rounds': command.ROUNDS, 'validation': command.VALIDATION})
    output = command.check_output(values['output'])
    table = find(parsed.names[0])
    plan = make_plan(
        table._replace(score=values['score'] or table.score),
        columns=values['columns'],
        methods=values['methods'],
        seeds=values['seeds'],
        output=output,
        flags_=parsed.run_flags,
    )
    if values['dry_run']:
        training.show_cells(plan.every)
        return 0
    training.use_machine()
    failed = {}
    if values['report_only'] and not any(map(runner.is_done, plan.every)):
        console.show_error(
            f'{table.name}: none of its {len(plan.every)} runs is done in {output}; nothing is '
            'written.'
        )
        return 1
    if not values['report_only']:
        failed = training.train(plan.every, output, together=values['together'])
    filled = fill(plan, command_of(arguments))
    terminal.show(filled, console.TERMINAL)
    command.write_all(texts_of(plan, filled, output))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
