"""Search hyper-parameters on held-out training data; test data is never used.

python -m experiments.search --method=fedcad --grid=beta:0,.3,.5,.7 --grid=gamma:0,.3,.5,.7 \\
    --column=fedcad/cifar10_dirichlet0.5 --data_dir=DIR
Trains every combination without a share of the training data, and ranks them by their accuracy on
that share. Finished runs are skipped. Flags after -- apply to every run.
"""

import csv
import io
import itertools
import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from absl import flags
from rich import box
from rich.table import Table

from experiments.grid import command, runner
from experiments.grid.runner import Cell, GridRow
from experiments.grid.scores import SCORES, Score, score_of
from jaxfed import methods
from jaxfed.config import SETTINGS
from jaxfed.internal import files
from jaxfed.runs import checks, config_flags
from jaxfed.sweeps.halving import halving, parse_halving

WHOLE = '--validation=0'  # trains on all training data


class Search(NamedTuple):
    """A search and its runs."""

    method: str
    axes: Mapping[str, tuple[str, ...]]  # flag -> values, as on the command line
    cells: Mapping[tuple[str, ...], tuple[Cell, ...]]  # flags of a combination -> a cell a seed
    skipped: Mapping[tuple[str, ...], str]  # flags of a combination -> why the method refuses it
    seeds: int
    score: str
    validation: float
    place: str  # name of its flag file
    base: tuple[str, ...]  # flag file and method
    run_flags: tuple[str, ...]  # flags of all runs, which override the grid's
    rungs: tuple[int, ...] = ()  # rounds after which the worse half stops

    @property
    def every(self) -> list[Cell]:
        """All cells."""
        return [cell for seeds in self.cells.values() for cell in seeds]


class Ranked(NamedTuple):
    """A combination and its place."""

    flags: tuple[str, ...]
    score: Score
    place: int  # from 1, equal means share one; 0 without a mean, or after an early stop
    given_up: int = 0  # round after which halving stopped it; 0 if it did not

    @property
    def values(self) -> list[str]:
        """The values of the flags."""
        return [flag.partition('=')[2] for flag in self.flags]


def kinds_of(method: str) -> dict[str, Any]:
    """The types of all flags that can be searched.

    Args:
      method: as for --method.

    Returns:
      Flag -> annotation; a hyper-parameter as NAME if only one part has it, and as METHOD.NAME.

    Raises:
      ValueError: if there is no such method.
    """
    hints = checks.annotations()
    found = {name: hints[name] for name, setting in SETTINGS.items() if setting.searched}
    owners: dict[str, list[str]] = {}
    for part in dict.fromkeys(part.name for part in methods.resolve(method, {})):
        for name, parameter in methods.hyperparameters(part).items():
            owners.setdefault(name, []).append(part)
            found[f'{part}.{name}'] = parameter.annotation
    # --alpha and similar names belong to the experiment.
    for name, parts in owners.items():
        if len(parts) == 1 and name not in hints:
            found[name] = found[f'{parts[0]}.{name}']
    return found


def read_axis(text: str, kinds: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Read one --grid.

    Args:
      text: 'NAME:VALUE,VALUE'.
      kinds: from `kinds_of`.

    Returns:
      The name and its values, as on the command line.

    Raises:
      ValueError: for an unknown name, no values, a repeated value or a value of another type.
    """
    name, _, listed = text.partition(':')
    values = tuple(value.strip() for value in listed.split(',') if value.strip())
    if name not in kinds:
        raise ValueError(f'--grid={text}: {name or "nothing"!r} must be one of {", ".join(kinds)}.')
    if not values:
        raise ValueError(f'--grid={text} has no values; write --grid={name}:VALUE,VALUE.')
    read = [read_value(f'--grid={text}', value, kinds[name]) for value in values]
    for index, value in enumerate(read):
        if value in read[:index]:
            raise ValueError(f'--grid={text} has {values[index]} twice.')
    return name, values


def read_value(flag: str, text: str, kind: Any) -> Any:
    """Read a value of a flag.

    Args:
      flag: for the error message.
      text: the value.
      kind: annotation of the searched flag.

    Returns:
      The value.

    Raises:
      ValueError: if it has another type.
    """
    kinds = [k for k in (kind, *get_args(kind)) if k is not type(None)]
    for choices in (get_args(k) for k in kinds if get_origin(k) is Literal):
        if text not in choices:
            raise ValueError(f'{flag}: {text} must be one of {", ".join(choices)}.')
        return text
    if bool in kinds:
        if text.lower() not in ('true', 'false'):
            raise ValueError(f'{flag}: {text} must be True or False.')
        return text.lower() == 'true'
    number: type[int] | type[float] = float if float in kinds else int
    try:
        return number(text)
    except ValueError:
        words = 'a number' if number is float else 'an integer'
        raise ValueError(f'{flag}: {text} must be {words}.') from None


def make_search(
    *,
    method: str,
    axes: Sequence[str],
    column: str | None = None,
    flagfile: str | None = None,
    seeds: int = 1,
    score: str = 'best',
    validation: float = 0.1,
    halving: str | None = None,
    output: Path,
    flags_: Sequence[str] = (),
) -> Search:
    """Make the cells of a search and check their settings.

    Args:
      method: as for --method.
      axes: the values of --grid.
      column: 'PAPER/NAME' of a flag file, or
      flagfile: its path, or neither.
      seeds: how many, from 0.
      score: one of `SCORES`.
      validation: the share of the training data that is held out for evaluation.
      halving: rounds after which the worse half stops, as '10,20'; None for none.
      output: folder of all runs.
      flags_: flags of all runs.

    Returns:
      The search.

    Raises:
      ValueError: for invalid settings.
    """
    if not 0 < validation < 1:
        raise ValueError(
            f'--validation={validation} must be above 0 and below 1: a search that evaluates on '
            'test data would choose by them.'
        )
    if column and flagfile:
        raise ValueError(f'--column={column} and --flagfile={flagfile}: leave one of them out.')
    read = _read_axes(axes, method)
    for flag in flags_:
        # It would override the searched values.
        if (name := runner.flag_name(flag)) in ('validation', 'flagfile', *read):
            rule = 'is searched' if name in read else 'must be before --'
            raise ValueError(f'{flag}: --{name} {rule}; leave it out after --.')
    file = str(runner.flag_file(column)) if column else flagfile
    base = [f'--flagfile={file}'] if file else []
    config_flags.parse(base)  # reported once instead of for each combination
    place = column or (Path(flagfile).stem if flagfile else 'flags')
    row = GridRow(method, (f'--method={method}',))
    cells: dict[tuple[str, ...], tuple[Cell, ...]] = {}
    skipped: dict[tuple[str, ...], str] = {}
    for values in itertools.product(*read.values()):
        combination = tuple(f'--{name}={value}' for name, value in zip(read, values, strict=True))
        try:
            cells[combination] = tuple(
                runner.make_cell(
                    place,
                    row,
                    seed,
                    output=output,
                    flags=[*flags_, f'--validation={validation}'],
                    variant=combination,
                    base=base,
                    measured=False,
                )
                for seed in range(seeds)
            )
        except ValueError as error:
            skipped[combination] = str(error).removeprefix(f'{place}, {row.name}: ')
    if not cells:
        raise ValueError(f'no combination can be run: {next(iter(skipped.values()))}')
    shown = [f'--flagfile=experiments/{column}.flags'] if column else base
    rungs = parse_halving(halving, next(iter(cells.values()))[0].config)
    return Search(
        method,
        read,
        cells,
        skipped,
        seeds,
        score,
        validation,
        place,
        (*shown, *row.flags),
        tuple(flags_),
        tuple(rungs),
    )


def _read_axes(texts: Sequence[str], method: str) -> dict[str, tuple[str, ...]]:
    """Read all --grid, name -> values."""
    if not texts:
        raise ValueError('--grid is missing; write --grid=NAME:VALUE,VALUE, once for each name.')
    kinds, axes = kinds_of(method), dict[str, tuple[str, ...]]()
    for text in texts:
        name, values = read_axis(text, kinds)
        if name in axes:
            raise ValueError(f'--grid={text}: {name} is named twice.')
        axes[name] = values
    return axes


def rank(search: Search) -> list[Ranked]:
    """Rank the combinations by their mean accuracy on the held-out examples.

    Combinations that stopped early follow all others, those with more rounds first. They have a
    place only if no other combination has one.

    Args:
      search: with some finished cells.

    Returns:
      The combinations, best first; equal ones in the order of the grid.

    Raises:
      ValueError: if a run cannot be read, or was evaluated on test data.
    """
    scored = [(flags_, *_score(cells, search)) for flags_, cells in search.cells.items()]

    def key(score: Score, given_up: int) -> tuple[float, float] | None:
        if score.mean is None or score.failed:
            return None
        return given_up or math.inf, round(score.mean, 2)

    keys = {flags_: key(score, given_up) for flags_, score, given_up in scored}
    ordered = sorted(scored, key=lambda one: keys[one[0]] or (0, 0), reverse=True)
    whole = [k for k in keys.values() if k and k[0] == math.inf]
    placed = sorted(whole or filter(None, keys.values()), reverse=True)
    return [
        Ranked(flags_, score, 1 + placed.index(k) if (k := keys[flags_]) in placed else 0, given_up)
        for flags_, score, given_up in ordered
    ]


def _score(cells: Sequence[Cell], search: Search) -> tuple[Score, int]:
    """The score of a combination, and the round after which it stopped early, 0 if it did not."""
    runs = {cell.seed: runner.read(cell) for cell in cells if runner.is_done(cell)}
    for cell in cells:
        if cell.seed in runs and runs[cell.seed].summary['evaluated_on'] != 'validation':
            raise ValueError(f'{cell.folder} was evaluated on test data; move it away.')
    early = [r.summary['rounds'] for r in runs.values() if r.summary.get('stopped_early')]
    score = score_of(runs, {}, asked=search.seeds, score=search.score)
    return score, min(early, default=0)


def command_of(search: Search, chosen: Ranked) -> str:
    """The command that trains a combination on all training data."""
    # The run's flags override the grid's, as in the search. A flag file may set --validation.
    words = [*search.base, *chosen.flags, *search.run_flags, WHOLE]
    return shlex.join(['python', '-m', 'jaxfed.main', *words])


def settled(ranking: Sequence[Ranked]) -> str:
    """Name the chosen combination in a sentence."""
    first = [ranked for ranked in ranking if ranked.place == 1]
    if not first:
        return 'Nothing is chosen: every finished run diverged.'
    words = f'Chosen: {" ".join(first[0].flags)}'
    if len(first) > 1:
        words += f'; {len(first)} combinations share the first place, it is the first of the grid'
    if any(ranked.score.done < ranked.score.asked for ranked in ranking):
        words += '; not all runs are done'
    if first[0].given_up:
        words += '; it stopped early, and all others failed'
    return f'{words}.'


def given_up(ranking: Sequence[Ranked]) -> str:
    """List the combinations that halving stopped, a sentence for each round; '' for none."""
    after: dict[int, list[str]] = {}
    for ranked in ranking:
        if ranked.given_up:
            after.setdefault(ranked.given_up, []).append(' '.join(ranked.flags))
    return ' '.join(
        f'Stopped early after round {round_}: {"; ".join(flags_)}.'
        for round_, flags_ in sorted(after.items())
    )


def about(search: Search) -> str:
    """Describe how the accuracies were measured."""
    when = SCORES[search.score].capitalize()
    seeds = f'{search.seeds} seed{"s"[: search.seeds != 1]}'
    text = (
        f'Accuracy on held-out training examples; the search never uses test data. {when}, '
        f'percent, mean ± sd of {seeds}, {search.every[0].config.rounds} rounds, '
        f'--validation={search.validation:g} of the training data.'
    )
    if search.rungs:
        text += (
            f' After round {", ".join(map(str, search.rungs))} the worse half of the combinations '
            'in a program stopped; their accuracy is that of fewer rounds.'
        )
    return text


def _cells_of(ranked: Ranked) -> list[str]:
    score = ranked.score
    means = ['-' if value is None else f'{value:.2f}' for value in (score.mean, score.sd)]
    done = f'{score.done} of {score.asked}'
    after = str(ranked.given_up or '-')
    return [str(ranked.place or '-'), *ranked.values, *means, done, str(score.failed), after]


def _heads(search: Search) -> tuple[str, ...]:
    return ('place', *search.axes, 'accuracy', 'sd', 'runs', 'failed', 'given up')


def markdown(search: Search, ranking: Sequence[Ranked]) -> str:
    """The ranking as Markdown."""
    heads = _heads(search)
    lines = [heads, ('---:',) * len(heads), *map(_cells_of, ranking)]
    parts = [
        f'# Search of {search.method}: {", ".join(search.axes)}',
        about(search),
        settled(ranking),
        *filter(None, [given_up(ranking)]),
        '\n'.join(f'| {" | ".join(line)} |' for line in lines),
    ]
    if ranking[0].place:
        parts.append(f'Train it, on all training data:\n\n    {command_of(search, ranking[0])}')
    if search.skipped:
        reasons = [f'- `{" ".join(key)}`: {reason}' for key, reason in search.skipped.items()]
        parts.append('\n'.join(['Skipped, because the method refuses them:', '', *reasons]))
    return '\n\n'.join(parts) + '\n'


def as_csv(search: Search, ranking: Sequence[Ranked]) -> str:
    """The ranking as CSV, numbers unrounded."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow([*_heads(search), 'seeds', 'evaluated_on'])
    for ranked in ranking:
        score = ranked.score
        numbers = ['' if v is None else f'{v:.4f}' for v in (score.mean, score.sd)]
        counts = [score.done, score.failed, ranked.given_up or '', score.asked]
        writer.writerow([ranked.place or '', *ranked.values, *numbers, *counts, 'validation'])
    return file.getvalue()


def as_json(search: Search, ranking: Sequence[Ranked]) -> str:
    """The ranking as JSON."""
    best = ranking[0]
    report = {
        'method': search.method,
        'column': search.place,
        'grid': search.axes,
        'evaluated_on': 'validation',
        'validation': search.validation,
        'score': search.score,
        'seeds': search.seeds,
        'halving': search.rungs,
        'chosen': best.flags if best.place else None,
        'command': command_of(search, best) if best.place else None,
        'ranking': [
            {
                'flags': ranked.flags,
                'place': ranked.place or None,
                'mean': ranked.score.mean,
                'sd': ranked.score.sd,
                'accuracies': ranked.score.accuracies,
                'failed': ranked.score.failed,
                'given_up_after': ranked.given_up or None,
            }
            for ranked in ranking
        ],
        'skipped': [{'flags': key, 'reason': reason} for key, reason in search.skipped.items()],
    }
    return files.json_text(report)


def check_report(search: Search, output: Path) -> None:
    """Raise a ValueError if --output holds the ranking of another search, or an unreadable one."""
    path = output / 'search.json'
    if not path.exists():
        return
    try:
        held = json.loads(path.read_text())
        other = held['method'], held['column'], tuple(held['grid'])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{path} cannot be read ({error!r}); move it away.') from error
    if other != (search.method, search.place, tuple(search.axes)):
        words = f'{other[0]} on {other[1]} over {", ".join(other[2])}'
        raise ValueError(f'--output={output} holds a search of {words}; give another.')


def check_given_up(search: Search) -> None:
    """Raise a ValueError if another search stopped a run early that this search must complete."""
    for cell in search.every:
        summary = runner.read(cell).summary if runner.is_done(cell) else {}
        if summary.get('stopped_early') and summary['rounds'] not in search.rungs:
            raise ValueError(
                f'{cell.folder} was stopped after round {summary["rounds"]} by a search with '
                '--halving; give the same --halving, another --output, or move that folder away.'
            )


def show(search: Search, ranking: Sequence[Ranked]) -> None:
    """Print the ranking and the choice."""
    table = Table(title=f'Search of {search.method}', box=box.SIMPLE_HEAD, pad_edge=False)
    for head in _heads(search):
        table.add_column(head, justify='right')
    for ranked in ranking:
        table.add_row(*_cells_of(ranked), style='bold' if ranked.place == 1 else '')
    command.TERMINAL.print(table)
    show_skipped(search)
    for text in filter(None, (about(search), settled(ranking), given_up(ranking))):
        command.TERMINAL.print(text)
    if ranking[0].place:
        command.say(f'Train it: {command_of(search, ranking[0])}')


def show_skipped(search: Search) -> None:
    """Print the combinations that the method refuses."""
    for combination, reason in search.skipped.items():
        command.say(f'skipped {" ".join(combination)}: {reason}')


def define(values: flags.FlagValues) -> None:
    """Define the flags of this command."""
    command.define_shared(
        values, output='runs/search', rounds="the flag file's", seeds='a combination'
    )
    for name, text in {
        'method': 'method to search, parts joined by +',
        'column': 'flag file PAPER/NAME under experiments/',
        # absl would read a --flagfile as flags of this command.
        'settings': 'any other flag file; --flagfile is the same',
        'halving': 'rounds after which the worse half of the combinations in a program stops, as '
        '10,20; all that can share a program then do, unless --together is set',
    }.items():
        flags.DEFINE_string(name, None, text, flag_values=values)
    flags.DEFINE_multi_string(
        'grid', [], 'NAME:VALUE,VALUE of a hyper-parameter or of training', flag_values=values
    )
    flags.DEFINE_enum('score', 'best', list(SCORES), 'accuracy by round', flag_values=values)
    flags.DEFINE_float(
        'validation', 0.1, 'share of the training data to evaluate on', flag_values=values
    )


@command.guarded
def main(arguments: Sequence[str]) -> int:
    """Search hyper-parameters.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs failed, 2 for invalid input, 130 if interrupted.
    """
    cut = arguments.index('--') if '--' in arguments else len(arguments)
    renamed = [re.sub(r'^--?flagfile(?==|$)', '--settings', flag) for flag in arguments[:cut]]
    parsed = command.parse([*renamed, *arguments[cut:]], define, __doc__)
    values = parsed.values
    if parsed.names:
        raise ValueError(f'unexpected arguments {" ".join(parsed.names)}; flags begin with --.')
    if values['method'] is None:
        raise ValueError('--method is missing; python -m jaxfed.main --method=list shows all.')
    output = command.check_output(values['output'])
    search = make_search(
        method=values['method'],
        axes=values['grid'],
        column=values['column'],
        flagfile=values['settings'],
        seeds=values['seeds'],
        score=values['score'],
        validation=values['validation'],
        halving=values['halving'],
        output=output,
        flags_=parsed.run_flags,
    )
    if values['dry_run']:
        command.show_cells(search.every)
        show_skipped(search)
        return 0
    check_report(search, output)
    check_given_up(search)
    command.use_machine()
    failed = command.train(
        search.every,
        output,
        together=values['together'] or len(search.every) * bool(search.rungs),
        stop_of=lambda cells: halving(search.rungs, [cell.variant for cell in cells]),
    )
    ranking = rank(search)
    show(search, ranking)
    texts = {
        'search.md': markdown(search, ranking),
        'search.csv': as_csv(search, ranking),
        'search.json': as_json(search, ranking),
    }
    command.write_all({output / name: text for name, text in texts.items()})
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
