"""Search hyper-parameters on held-out training data; test data is not looked at.

python -m experiments.search --method=fedcad --grid=beta:0,.3,.5,.7 --grid=gamma:0,.3,.5,.7 \\
    --column=fedcad/cifar10_dirichlet0.5 --data_dir=DIR
Runs every combination, on a share of the training data that is taken out of it first, and ranks
them by accuracy there. What is done is skipped. Flags after -- go to every run.
"""

import csv
import io
import itertools
import json
import math
import re
import shlex
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from absl import flags
from rich import box
from rich.console import Console
from rich.table import Table as Shown
from rich.text import Text

from experiments.grid import runner
from experiments.grid.command import (
    check_output,
    define_together,
    guarded,
    parse,
    run,
    train,
    use_machine,
    write_all,
)
from experiments.grid.runner import Cell, GridRow
from experiments.grid.scores import Score, score_of
from jaxfed import methods
from jaxfed.config import SETTINGS, Config
from jaxfed.runs import config_flags
from jaxfed.sweeps.halving import parse_halving

WHOLE = '--validation=0'  # trains on all training data
UNSEEN = 'Accuracy on held-out training examples; test data was not looked at.'


class Search(NamedTuple):
    """What is searched, and its runs."""

    method: str
    axes: Mapping[str, tuple[str, ...]]  # flag -> values, as given
    cells: Mapping[tuple[str, ...], tuple[Cell, ...]]  # flags of a combination -> a cell a seed
    skipped: Mapping[tuple[str, ...], str]  # flags of a combination -> why the method refuses it
    seeds: int
    score: str
    validation: float
    place: str  # name of its flag file
    winning: tuple[str, ...]  # flags with which the winner is trained, besides its own
    rungs: tuple[int, ...] = ()  # rounds after which the worse half is given up


class Ranked(NamedTuple):
    """A combination and where it stands."""

    flags: tuple[str, ...]
    score: Score
    place: int  # from 1, equal means share one; 0 without a mean, or what is out of the running
    given_up: int = 0  # round after which it was given up; 0 if it was not


def kinds_of(method: str) -> dict[str, Any]:
    """What may be searched, with types.

    Args:
      method: as for --method.

    Returns:
      Flag -> annotation; a hyper-parameter as NAME where one part takes it, and as METHOD.NAME.

    Raises:
      ValueError: if there is no such method.
    """
    hints = typing.get_type_hints(Config)
    found = {name: hints[name] for name, setting in SETTINGS.items() if setting.searched}
    owners: dict[str, list[str]] = {}
    for part in dict.fromkeys(part.name for part in methods.resolve(method, {})):
        for name, parameter in methods.hyperparameters(part).items():
            owners.setdefault(name, []).append(part)
            found[f'{part}.{name}'] = parameter.annotation
    # --alpha and the like are the experiment's.
    for name, parts in owners.items():
        if len(parts) == 1 and name not in hints:
            found[name] = found[f'{parts[0]}.{name}']
    return found


def read_axis(text: str, kinds: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Reads one --grid.

    Args:
      text: 'NAME:VALUE,VALUE'.
      kinds: from `kinds_of`.

    Returns:
      The name and its values, as given.

    Raises:
      ValueError: for an unknown name, no values, one twice or one of a wrong kind.
    """
    name, _, values = text.partition(':')
    given = [value.strip() for value in values.split(',') if value.strip()]
    if name not in kinds:
        raise ValueError(f'--grid={text}: {name or "nothing"!r} is none of {", ".join(kinds)}.')
    if not given:
        raise ValueError(f'--grid={text} has no values; write --grid={name}:VALUE,VALUE.')
    read = [read_value(f'--grid={text}', value, kinds[name]) for value in given]
    for index, value in enumerate(read):
        if value in read[:index]:
            raise ValueError(f'--grid={text} has {given[index]} twice.')
    return name, tuple(given)


def read_value(told: str, text: str, kind: Any) -> Any:
    """Reads a value of a flag.

    Args:
      told: where it was given, for the error.
      text: the value.
      kind: annotation of the flag.

    Returns:
      The value.

    Raises:
      ValueError: if it is of another kind.
    """
    kinds = [k for k in (kind, *get_args(kind)) if k is not type(None)]
    for choices in (get_args(k) for k in kinds if get_origin(k) is Literal):
        if text not in choices:
            raise ValueError(f'{told}: {text} must be one of {", ".join(choices)}.')
        return text
    if bool in kinds:
        if text.lower() not in ('true', 'false'):
            raise ValueError(f'{told}: {text} must be True or False.')
        return text.lower() == 'true'
    number: type[int] | type[float] = float if float in kinds else int
    try:
        return number(text)
    except ValueError:
        words = 'a number' if number is float else 'an integer'
        raise ValueError(f'{told}: {text} must be {words}.') from None


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
    """Make the cells of a search, every setting checked.

    Args:
      method: as for --method.
      axes: the --grid's.
      column: 'PAPER/NAME' of a flag file; or
      flagfile: the path of one; or neither.
      seeds: how many, from 0.
      score: 'best' or 'final'.
      validation: share of the training data to evaluate on.
      halving: rounds after which the worse half is given up, as '10,20'; None for none.
      output: folder of all runs.
      flags_: that hold for all of them.

    Returns:
      The search.

    Raises:
      ValueError: for settings that do not do.
    """
    if not axes:
        raise ValueError('no --grid given; write --grid=NAME:VALUE,VALUE, once for each name.')
    if not 0 < validation < 1:
        raise ValueError(
            f'--validation={validation} must be above 0 and below 1: a search that evaluates on '
            'test data would choose by them.'
        )
    if seeds < 1:
        raise ValueError(f'--seeds={seeds} must be at least 1.')
    if column and flagfile:
        raise ValueError(f'--column={column} and --flagfile={flagfile}: leave one of them out.')
    kinds = kinds_of(method)
    read: dict[str, tuple[str, ...]] = {}
    for text in axes:
        name, values = read_axis(text, kinds)
        if name in read:
            raise ValueError(f'--grid={text}: {name} is given twice.')
        read[name] = values
    for flag in flags_:
        # It would win over what is searched.
        if (given := flag.lstrip('-').partition('=')[0]) in ('validation', 'flagfile', *read):
            where = 'is searched' if given in read else 'must stand before --'
            raise ValueError(f'{flag}: --{given} {where}; leave it out after --.')
    file = str(runner.flag_file(column)) if column else flagfile
    base = [f'--flagfile={file}'] if file else []
    config_flags.parse(base)  # reported once instead of for each combination
    place = column or (Path(flagfile).stem if flagfile else 'flags')
    row = GridRow(method, (f'--method={method}',))
    cells: dict[tuple[str, ...], tuple[Cell, ...]] = {}
    skipped: dict[tuple[str, ...], str] = {}
    for values in itertools.product(*read.values()):
        own = tuple(f'--{name}={value}' for name, value in zip(read, values, strict=True))
        try:
            cells[own] = tuple(
                runner.make_cell(
                    place,
                    row,
                    seed,
                    output=output,
                    flags=[*flags_, f'--validation={validation}'],
                    variant=own,
                    base=base,
                    measured=False,
                )
                for seed in range(seeds)
            )
        except ValueError as error:
            skipped[own] = str(error).removeprefix(f'{place}, {row.name}: ')
    if not cells:
        raise ValueError(f'no combination can be run: {next(iter(skipped.values()))}')
    told = [f'--flagfile={_shown(column, file)}'] if file else []
    winning = (*told, *row.flags, *(flag for flag in flags_ if flag.startswith('--')))
    config = next(iter(cells.values()))[0].config
    rungs = tuple(parse_halving(halving, config))
    return Search(method, read, cells, skipped, seeds, score, validation, place, winning, rungs)


def _shown(column: str | None, file: str | None) -> str | None:
    return f'experiments/{column}.flags' if column else file


def rank(search: Search) -> list[Ranked]:
    """Rank the combinations by their mean accuracy on the held-out examples.

    Those that were given up early come after all others, the longer trained ones first. They have
    a place only if no other has.

    Args:
      search: some of whose cells are done.

    Returns:
      The combinations, best first; of equal ones the first of the grid first.

    Raises:
      ValueError: if a run cannot be read, or was evaluated on test data.
    """
    scored = [(own, *_score(cells, search)) for own, cells in search.cells.items()]

    def key(score: Score, given_up: int) -> tuple[float, float] | None:
        if score.mean is None or score.failed:
            return None
        return given_up or math.inf, round(score.mean, 2)

    keys = {own: key(score, given_up) for own, score, given_up in scored}
    ordered = sorted(scored, key=lambda one: keys[one[0]] or (0, 0), reverse=True)
    whole = [k for k in keys.values() if k and k[0] == math.inf]
    held = sorted(whole or filter(None, keys.values()), reverse=True)
    return [
        Ranked(own, score, 1 + held.index(k) if (k := keys[own]) in held else 0, given_up)
        for own, score, given_up in ordered
    ]


def _score(cells: Sequence[Cell], search: Search) -> tuple[Score, int]:
    """The score of a combination, and the round after which it was given up, 0 if it was not."""
    runs = {cell.seed: runner.read(cell) for cell in cells if runner.is_done(cell)}
    for cell in cells:
        if cell.seed in runs and runs[cell.seed].summary['evaluated_on'] != 'validation':
            raise ValueError(f'{cell.folder} was evaluated on test data; move it away.')
    early = [r.summary['rounds'] for r in runs.values() if r.summary.get('stopped_early')]
    score = score_of(runs, {}, asked=search.seeds, score=search.score)
    return score, min(early, default=0)


def command_of(search: Search, chosen: Ranked) -> str:
    """The command that trains a combination on all training data.

    Args:
      search: the search.
      chosen: the combination.

    Returns:
      The command.
    """
    # Flags of all runs win over those of the grid, as in the search. A flag file may hold data out.
    first, rest = search.winning[: _split(search)], search.winning[_split(search) :]
    return shlex.join(['python', '-m', 'jaxfed.main', *first, *chosen.flags, *rest, WHOLE])


def _split(search: Search) -> int:
    return 1 + search.winning.index(f'--method={search.method}')


def settled(ranking: Sequence[Ranked]) -> str:
    """What was chosen, in words.

    Args:
      ranking: from `rank`.

    Returns:
      A sentence.
    """
    first = [ranked for ranked in ranking if ranked.place == 1]
    if not first:
        return 'Nothing is chosen: no run has ended without diverging.'
    words = f'Chosen: {" ".join(first[0].flags)}'
    if len(first) > 1:
        words += f'; {len(first)} combinations share the first place, it is the first of the grid'
    if any(ranked.score.done < ranked.score.asked for ranked in ranking):
        words += '; not all runs are done'
    if first[0].given_up:
        words += '; all others failed, and it was given up early itself'
    return f'{words}.'


def given_up(ranking: Sequence[Ranked]) -> str:
    """What was given up by halving, and after how many rounds.

    Args:
      ranking: from `rank`.

    Returns:
      A sentence for each of these rounds, '' for none.
    """
    after: dict[int, list[str]] = {}
    for ranked in ranking:
        if ranked.given_up:
            after.setdefault(ranked.given_up, []).append(' '.join(ranked.flags))
    return ' '.join(
        f'Given up after round {round_}: {"; ".join(after[round_])}.' for round_ in sorted(after)
    )


def about(search: Search) -> str:
    """How the numbers came about.

    Args:
      search: the search.

    Returns:
      A sentence.
    """
    when = 'best over the rounds' if search.score == 'best' else 'after the last round'
    config = next(iter(search.cells.values()))[0].config
    return (
        f'{UNSEEN} {when[0].upper()}{when[1:]}, percent, mean ± sd of {search.seeds} seed(s), '
        f'{config.rounds} rounds, --validation={search.validation:g} of the training data.'
        + (f' {_halved(search)}' if search.rungs else '')
    )


def _halved(search: Search) -> str:
    rounds = ', '.join(map(str, search.rungs))
    return (
        f'After round {rounds} the worse half of the combinations in a program was given up; their '
        'accuracy is of fewer rounds.'
    )


def _cells_of(ranked: Ranked) -> tuple[str, ...]:
    score = ranked.score
    values = [flag.partition('=')[2] for flag in ranked.flags]
    mean = '-' if score.mean is None else f'{score.mean:.2f}'
    spread = '-' if score.sd is None else f'{score.sd:.2f}'
    return (
        str(ranked.place or '-'),
        *values,
        mean,
        spread,
        f'{score.done} of {score.asked}',
        str(score.failed),
        str(ranked.given_up or '-'),
    )


def _heads(search: Search) -> tuple[str, ...]:
    return ('place', *search.axes, 'accuracy', 'sd', 'runs', 'failed', 'given up')


def markdown(search: Search, ranking: Sequence[Ranked]) -> str:
    """The ranking as Markdown.

    Args:
      search: the search.
      ranking: from `rank`.

    Returns:
      The text of the file.
    """
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
        told = [f'- `{" ".join(own)}`: {reason}' for own, reason in search.skipped.items()]
        parts.append('\n'.join(['Skipped, because the method refuses them:', '', *told]))
    return '\n\n'.join(parts) + '\n'


def as_csv(search: Search, ranking: Sequence[Ranked]) -> str:
    """The ranking as CSV, numbers as they are.

    Args:
      search: the search.
      ranking: from `rank`.

    Returns:
      The text of the file.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow([*_heads(search), 'seeds', 'evaluated_on'])
    for ranked in ranking:
        score = ranked.score
        values = [flag.partition('=')[2] for flag in ranked.flags]
        numbers = ['' if v is None else f'{v:.4f}' for v in (score.mean, score.sd)]
        counts = [score.done, score.failed, ranked.given_up or '', score.asked]
        writer.writerow([ranked.place or '', *values, *numbers, *counts, 'validation'])
    return file.getvalue()


def as_json(search: Search, ranking: Sequence[Ranked]) -> str:
    """The ranking as JSON.

    Args:
      search: the search.
      ranking: from `rank`.

    Returns:
      The text of the file.
    """
    best = ranking[0]
    told = {
        'method': search.method,
        'column': search.place,
        'grid': {name: list(values) for name, values in search.axes.items()},
        'evaluated_on': 'validation',
        'validation': search.validation,
        'score': search.score,
        'seeds': search.seeds,
        'halving': list(search.rungs),
        'chosen': list(best.flags) if best.place else None,
        'command': command_of(search, best) if best.place else None,
        'ranking': [
            {
                'flags': list(ranked.flags),
                'place': ranked.place or None,
                'mean': ranked.score.mean,
                'sd': ranked.score.sd,
                'accuracies': list(ranked.score.accuracies),
                'failed': ranked.score.failed,
                'given_up_after': ranked.given_up or None,
            }
            for ranked in ranking
        ],
        'skipped': [
            {'flags': list(own), 'reason': reason} for own, reason in search.skipped.items()
        ],
    }
    return json.dumps(told, indent=2, allow_nan=False) + '\n'


def check_report(search: Search, output: Path) -> None:
    """See that no ranking of another search would be written over.

    Args:
      search: the search.
      output: folder of its ranking.

    Raises:
      ValueError: if there is one, or a file that is none.
    """
    path = output / 'search.json'
    if not path.exists():
        return
    try:
        held = json.loads(path.read_text())
        told = held['method'], held['column'], tuple(held['grid'])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{path} cannot be read ({error!r}); move it away.') from error
    if told != (search.method, search.place, tuple(search.axes)):
        words = f'{told[0]} on {told[1]} over {", ".join(told[2])}'
        raise ValueError(f'--output={output} holds a search of {words}; give another.')


def check_given_up(search: Search) -> None:
    """See that no run was given up where this search would not.

    Args:
      search: some of whose cells may be done.

    Raises:
      ValueError: if one was, which will never have all of its rounds.
    """
    for cell in (cell for seeds in search.cells.values() for cell in seeds):
        summary = runner.read(cell).summary if runner.is_done(cell) else {}
        if summary.get('stopped_early') and summary['rounds'] not in search.rungs:
            raise ValueError(
                f'{cell.folder} was given up after round {summary["rounds"]} by a search with '
                '--halving; give the same --halving, another --output, or move that folder away.'
            )


def show(search: Search, ranking: Sequence[Ranked], console: Console) -> None:
    """Print the ranking and what was chosen.

    Args:
      search: the search.
      ranking: from `rank`.
      console: where to.
    """
    shown = Shown(title=f'Search of {search.method}', box=box.SIMPLE_HEAD, pad_edge=False)
    for head in _heads(search):
        shown.add_column(head, justify='right')
    for ranked in ranking:
        shown.add_row(*_cells_of(ranked), style='bold' if ranked.place == 1 else '')
    console.print(shown)
    for own, reason in search.skipped.items():
        console.print(Text(f'skipped {" ".join(own)}: {reason}'))
    console.print(Text(about(search)))
    console.print(Text(settled(ranking)))
    if told := given_up(ranking):
        console.print(Text(told))
    if ranking[0].place:
        console.print(Text(f'Train it: {command_of(search, ranking[0])}'), soft_wrap=True)


def define(into: flags.FlagValues) -> None:
    """Define the flags of this command.

    Args:
      into: where to.
    """
    text = flags.DEFINE_string
    text('method', None, 'method to search, parts joined by +', flag_values=into)
    flags.DEFINE_multi_string(
        'grid', [], 'NAME:VALUE,VALUE of a hyper-parameter or of training', flag_values=into
    )
    text('column', None, 'flag file PAPER/NAME under experiments/', flag_values=into)
    # absl would read a --flagfile as flags of this command.
    text('settings', None, 'any other flag file; --flagfile is the same', flag_values=into)
    flags.DEFINE_integer('rounds', None, "of every run [the flag file's]", flag_values=into)
    flags.DEFINE_integer('seeds', 1, 'runs of a combination, with seeds from 0', flag_values=into)
    flags.DEFINE_enum('score', 'best', ['best', 'final'], 'accuracy by round', flag_values=into)
    flags.DEFINE_float(
        'validation', 0.1, 'share of the training data to evaluate on', flag_values=into
    )
    text('data_dir', None, 'directory of prepared datasets', flag_values=into)
    text('output', 'runs/search', 'folder of runs and ranking', flag_values=into)
    text(
        'halving',
        None,
        'rounds after which the worse half of the combinations in a program is given up, as 10,20; '
        'all that can share a program then do, unless --together says otherwise',
        flag_values=into,
    )
    define_together(into)
    flags.DEFINE_bool('dry_run', False, 'show the plan, and stop', flag_values=into)


def _main(arguments: Sequence[str]) -> int:
    own = [re.sub(r'^--?flagfile(?==|$)', '--settings', argument) for argument in arguments]
    cut = arguments.index('--') if '--' in arguments else len(arguments)
    arguments = [*own[:cut], *arguments[cut:]]
    values, names, further = parse(arguments, define, (__doc__ or '').strip())
    given = values.flag_values_dict()
    if names:
        raise ValueError(f'unexpected arguments {" ".join(names)}; flags begin with --.')
    if given['method'] is None:
        raise ValueError('--method is missing; python -m jaxfed.main --method=list shows all.')
    of_all = [
        f'--{name}={given[name]}' for name in ('rounds', 'data_dir') if given[name] is not None
    ]
    output = check_output(given['output'])
    search = make_search(
        method=given['method'],
        axes=given['grid'],
        column=given['column'],
        flagfile=given['settings'],
        seeds=given['seeds'],
        score=given['score'],
        validation=given['validation'],
        halving=given['halving'],
        output=output,
        flags_=[*of_all, *further],
    )
    console = Console(highlight=False, emoji=False, markup=False)
    cells = [cell for seeds in search.cells.values() for cell in seeds]
    if given['dry_run']:
        for cell in cells:
            state = 'done  ' if runner.is_done(cell) else 'to run'
            console.print(f'{state}  {cell.name}', soft_wrap=True)
        for combination, reason in search.skipped.items():
            console.print(f'skipped {" ".join(combination)}: {reason}', soft_wrap=True)
        return 0
    check_report(search, output)
    check_given_up(search)
    use_machine()
    failed = train(cells, output, together=given['together'], rungs=search.rungs)
    ranking = rank(search)
    show(search, ranking, console)
    texts = {
        'search.md': markdown(search, ranking),
        'search.csv': as_csv(search, ranking),
        'search.json': as_json(search, ranking),
    }
    write_all({output / name: text for name, text in texts.items()}, console)
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    """Search as the arguments say.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs could not be done, 2 for bad input, 130 if interrupted.
    """
    return guarded(_main, arguments)


if __name__ == '__main__':
    run(main)
