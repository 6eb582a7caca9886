"""Search hyper-parameters on held-out training data; test data is never used.

    python -m experiments.search --method=fedcad --grid=beta:0,.3,.5,.7 \\
        --column=fedcad/cifar10_dirichlet0.5 --data_dir=DIR
    python -m experiments.search --method=fedlmd --range=beta:.1..10:log \\
        --sampler=optuna --trials=32

Trains every combination, or those that Optuna chooses, without a share of the training data, and
ranks them by their accuracy on that share. Finished runs are skipped. Flags after -- apply to every
run.
"""

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from experiments.grid import command, training
from experiments.grid.scores import PERSONAL, SCORES
from experiments.search import report
from experiments.search.cells import OptunaSettings, Search, halving_of, make_search
from experiments.search.ranking import check_given_up, rank
from jaxfed.internal import console
from jaxfed.sweeps.halving import check_together


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
    flags.DEFINE_enum(
        'score', 'best', [*SCORES, *PERSONAL], 'accuracy by round', flag_values=values
    )
    flags.DEFINE_float(
        'validation', 0.1, 'share of the training data to evaluate on', flag_values=values
    )
    flags.DEFINE_enum(
        'sampler',
        'grid',
        ['grid', 'optuna'],
        'grid trains every combination, optuna chooses --trials of them by earlier results',
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        'range', None, 'NAME:LOW..HIGH or NAME:LOW..HIGH:log, for optuna', flag_values=values
    )
    for name, text in {
        'trials': 'combinations that optuna chooses; a larger number continues a search',
        'sampler_seed': 'seed of the choices of optuna [0]',
    }.items():
        flags.DEFINE_integer(name, None, text, flag_values=values)
    flags.DEFINE_enum(
        'pruner',
        None,
        ['median', 'none'],
        'whether optuna stops trials below the median of earlier ones [median, or none with '
        '--halving or --score=personal]',
        flag_values=values,
    )


def read_optuna(values: Mapping[str, Any]) -> OptunaSettings | None:
    """The settings of --sampler=optuna; None for a grid.

    Raises:
      ValueError: for an invalid value, a flag of another sampler, or if Optuna is not installed.
    """
    if values['sampler'] == 'grid':
        for name in ('range', 'trials', 'sampler_seed', 'pruner'):
            if values[name] is not None:
                value = values[name][0] if name == 'range' else values[name]
                raise ValueError(
                    f'--{name}={value} needs --sampler=optuna; add that, or leave it out.'
                )
        return None
    if importlib.util.find_spec('optuna') is None:
        raise ValueError("--sampler=optuna needs the package optuna: pip install -e '.[optuna]'.")
    trials, seed = values['trials'], values['sampler_seed'] or 0
    if trials is None:
        raise ValueError('--sampler=optuna needs --trials, as in --trials=32.')
    for name, number, least in (('trials', trials, 1), ('sampler_seed', seed, 0)):
        if number < least:
            raise ValueError(f'--{name} must be at least {least}, got {number}.')
    if values['score'] == 'personal' and values['pruner'] == 'median':
        raise ValueError(
            '--score=personal and --pruner=median: the pruner compares global models; leave one '
            'of them out.'
        )
    if values['halving'] and values['pruner']:
        raise ValueError(
            f'--halving={values["halving"]} and --pruner={values["pruner"]}: leave one of them out.'
        )
    default = 'none' if values['halving'] or values['score'] == 'personal' else 'median'
    return OptunaSettings(trials, seed, values['pruner'] or default)


def _check_pruner(search: Search, together: int) -> None:
    """Raise a ValueError if the pruner never sees all seeds of a trial in one program."""
    if search.optuna and search.optuna.pruner != 'none' and 0 < together < search.seeds:
        raise ValueError(
            f'--pruner={search.optuna.pruner} compares whole trials: --together must be at least '
            f'{search.seeds}, the seeds of a trial, got {together}; raise it, or set --pruner=none.'
        )


@command.guarded
def main(arguments: Sequence[str]) -> int:
    """Search hyper-parameters.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs failed, 2 for invalid input, 130 if interrupted, 143 if
      terminated.
    """
    cut = arguments.index('--') if '--' in arguments else len(arguments)
    renamed = [re.sub(r'^--?flagfile(?==|$)', '--settings', flag) for flag in arguments[:cut]]
    parsed = command.parse([*renamed, *arguments[cut:]], define, __doc__)
    values = parsed.values
    if parsed.names:
        raise ValueError(f'unexpected arguments {" ".join(parsed.names)}; flags begin with --.')
    if values['method'] is None:
        raise ValueError('--method is missing; python -m jaxfed.main --method=list shows all.')
    search = make_search(
        method=values['method'],
        axes=values['grid'],
        ranges=values['range'] or (),
        column=values['column'],
        flagfile=values['settings'],
        seeds=values['seeds'],
        score=values['score'],
        validation=values['validation'],
        halving=values['halving'],
        optuna=read_optuna(values),
        output=command.check_output(values['output']),
        flags_=parsed.run_flags,
    )
    check_together(search.config, search.rungs, seeds=search.seeds, most=values['together'])
    _check_pruner(search, values['together'])
    train = train_trials if search.optuna else train_grid
    trained = train(search, together=values['together'], dry_run=values['dry_run'])
    if trained is None:
        return 0
    search, failed = trained
    ranking = rank(search)
    report.show(search, ranking)
    command.write_all(
        {
            search.output / 'search.md': report.markdown(search, ranking),
            search.output / 'search.csv': report.as_csv(search, ranking),
            search.output / 'search.json': report.as_json(search, ranking),
        }
    )
    return 1 if failed else 0


def train_grid(
    search: Search, *, together: int, dry_run: bool
) -> tuple[Search, dict[str, str]] | None:
    """Train every combination.

    Args:
      search: from `make_search`.
      together: the largest number of runs in a program; 0 for all with halving, else for the
        default of the device.
      dry_run: show the plan only.

    Returns:
      The search and its failed runs, name -> reason; None for a dry run.

    Raises:
      ValueError: for invalid settings, data or folders, before the first run.
    """
    if dry_run:
        training.show_cells(search.every)
        report.show_skipped(search)
        return None
    report.check_report(search)
    check_given_up(search)
    training.use_machine()
    most = together or len(search.every) * bool(search.rungs)
    failed = training.train(
        search.every,
        search.output,
        together=most,
        stop_of=halving_of(search),
        halves=bool(search.rungs),
    )
    return search, failed


def train_trials(
    search: Search, *, together: int, dry_run: bool
) -> tuple[Search, dict[str, str]] | None:
    """Train the combinations that Optuna chooses; arguments, result and errors as `train_grid`."""
    from experiments.search import study, trials  # Optuna is optional

    report.check_report(search)
    training.use_machine()
    planned = trials.plan(search, together=together)
    if dry_run:
        assert search.optuna
        training.show_cells(planned.every)
        report.show_skipped(planned)
        console.say(
            f'{planned.chosen} of {search.optuna.trials} trials are chosen; the others depend on '
            'their results.'
        )
        return None
    training.check(planned.every, search.output)
    with study.opened(search) as journal:
        return trials.train(search, journal, together=together)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
