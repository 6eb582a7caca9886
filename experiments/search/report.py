"""The report of a search, on the terminal and as Markdown, CSV and JSON."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from experiments.grid.scores import PERSONAL, SCORES
from experiments.search.axes import Range
from experiments.search.cells import STUDY, Search
from experiments.search.ranking import Ranked
from jaxfed.internal import console, files
from jaxfed.internal.csv_text import csv_text
from jaxfed.internal.include import include_again

WHOLE = '--validation=0'  # trains on all training data


def command_of(search: Search, chosen: Ranked) -> str:
    """The command that trains a combination on all training data."""
    # The run's flags override the grid's, as in the search. A flag file may set --validation.
    words = [*search.shown, *chosen.flags, *search.run_flags, WHOLE]
    words += [f'--seeds={search.seeds}'] if search.seeds > 1 else []
    return shlex.join(['python', '-m', 'jaxfed.main', *include_again(), *words])


def settled(ranking: Sequence[Ranked]) -> str:
    """Name the chosen combination in a sentence."""
    first = [ranked for ranked in ranking if ranked.place == 1]
    if not first:
        if any(ranked.score.done < ranked.score.asked for ranked in ranking):
            return 'Nothing is chosen: no combination has all its seeds.'
        if all(ranked.score.failed for ranked in ranking):
            return 'Nothing is chosen: a run of every combination diverged.'
        return 'Nothing is chosen: only some seeds of every combination were trained to the end.'
    words = f'Chosen: {" ".join(first[0].flags)}'
    if len(first) > 1:
        words += f'; {len(first)} combinations share the first place, this is the first of them'
    if any(ranked.score.done < ranked.score.asked for ranked in ranking):
        words += '; not all runs are done'
    if first[0].given_up:
        words += '; it stopped early, and all others failed'
    return f'{words}.'


def given_up(ranking: Sequence[Ranked]) -> str:
    """List the combinations that stopped early, a sentence for each round; '' for none."""
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
    when = (SCORES | PERSONAL)[search.score].capitalize()
    seeds = console.counted(search.seeds, 'seed')
    text = (
        f'Accuracy on held-out training examples; the search never uses test data. {when}, '
        f'percent, mean ± sd of {seeds}, {search.config.rounds} rounds, '
        f'--validation={search.validation:g} of the training data.'
    )
    if search.optuna:
        text += (
            f' Optuna chose {search.chosen} trials, --sampler_seed={search.optuna.seed}, with '
            f'{len(search.cells)} different combinations.'
        )
    if search.rungs:
        text += (
            f' After round {", ".join(map(str, search.rungs))} the worse half of the combinations '
            'in a program stopped, unless it had only one; their accuracy is that of fewer rounds.'
        )
    elif search.optuna and search.optuna.pruner == 'median':
        text += (
            ' A trial stopped early if its best accuracy so far was below the median of the '
            'completed trials in that round; its accuracy is that of fewer rounds.'
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
    """The ranking as CSV, means and deviations with four decimals."""
    lines: list[list[Any]] = [[*_heads(search), 'seeds', 'evaluated_on']]
    for ranked in ranking:
        score = ranked.score
        numbers = ['' if v is None else f'{v:.4f}' for v in (score.mean, score.sd)]
        counts = [score.done, score.failed, ranked.given_up or '', score.asked]
        lines.append([ranked.place or '', *ranked.values, *numbers, *counts, 'validation'])
    return csv_text(lines)


def as_json(search: Search, ranking: Sequence[Ranked]) -> str:
    """The ranking as JSON."""
    best = ranking[0]
    report = {
        'method': search.method,
        'column': search.place,
        **_sampling(search),
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


def _sampling(search: Search) -> dict[str, Any]:
    """The axes and how combinations were chosen, for JSON."""
    grid = {name: axis for name, axis in search.axes.items() if not isinstance(axis, Range)}
    if not search.optuna:
        return {'sampler': 'grid', 'grid': grid}
    return {
        'sampler': 'optuna',
        'trials': search.chosen,
        'sampler_seed': search.optuna.seed,
        'pruner': search.optuna.pruner,
        'grid': grid,
        'ranges': {name: str(search.axes[name]) for name in search.axes if name not in grid},
    }


def check_report(search: Search) -> None:
    """Raise a ValueError if --output holds the ranking of another search, or an unreadable one."""
    output, sampler = search.output, 'optuna' if search.optuna else 'grid'
    path = output / 'search.json'
    if not path.exists():
        if sampler == 'grid' and (output / STUDY).exists():
            raise ValueError(
                f'--output={output} holds an unfinished search with --sampler=optuna; give another.'
            )
        return
    try:
        held = json.loads(path.read_text())
        axes = *held['grid'], *held.get('ranges', ())
        other = held['method'], held['column'], axes, held.get('sampler', 'grid')
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{path} cannot be read ({error!r}); move it away.') from error
    if other != (search.method, search.place, tuple(search.axes), sampler):
        words = f'{other[0]} on {other[1]} over {", ".join(axes)}'
        words += f' with --sampler={other[3]}' * (other[3] != sampler)
        raise ValueError(f'--output={output} holds a search of {words}; give another.')


def show(search: Search, ranking: Sequence[Ranked]) -> None:
    """Print the ranking and the choice."""
    table = Table(title=f'Search of {search.method}', box=box.SIMPLE_HEAD, pad_edge=False)
    for head in _heads(search):
        table.add_column(head, justify='right')
    for ranked in ranking:
        table.add_row(*_cells_of(ranked), style='bold' if ranked.place == 1 else '')
    console.TERMINAL.print(table)
    show_skipped(search)
    for text in filter(None, (about(search), settled(ranking), given_up(ranking))):
        console.TERMINAL.print(text)
    if ranking[0].place:
        console.say(f'Train it: {command_of(search, ranking[0])}')


def show_skipped(search: Search) -> None:
    """Print the combinations that the method refuses."""
    for combination, reason in search.skipped.items():
        console.say(f'skipped {" ".join(combination)}: {reason}')
