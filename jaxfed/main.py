"""Command line: python -m jaxfed.main --method=fedlmd."""

import contextlib
import dataclasses
import functools
import gc
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from jaxfed.config import Config
from jaxfed.data.augment import parse_augment
from jaxfed.engine import distributed
from jaxfed.engine.devices import describe_devices, find_devices, idle_accelerator, use_every_core
from jaxfed.engine.distributed import join, liveness
from jaxfed.internal import command_line, console, folders, signals
from jaxfed.internal.backend import on_cpu
from jaxfed.internal.include import check_included, include_first
from jaxfed.internal.program_cache import keep_programs
from jaxfed.internal.signals import ending
from jaxfed.recording import run_files
from jaxfed.runs import checks, config_flags, simulate
from jaxfed.runs.dry_run import show_dry_run
from jaxfed.runs.experiment import make_experiment, method_of, set_up
from jaxfed.runs.listings import list_measures, list_methods
from jaxfed.sweeps import grid, outcomes, sweep
from jaxfed.sweeps.halving import parse_halving
from jaxfed.sweeps.runner import is_done


def resume_command(workdir: Path) -> str:
    """The command of this process with the work directory, which continues its run."""
    program, words = Path(sys.argv[0]), ['python', '-m', 'jaxfed']
    in_package = program.parent.name == 'jaxfed' and program.name in ('main.py', '__main__.py')
    if program.suffix == '.py' and not in_package:
        words = ['python', str(program)]
    elif program.name == 'jaxfed':
        words = ['jaxfed']
    # The last value of a flag counts.
    extra = [] if flags.FLAGS.workdir else [f'--workdir={workdir}']
    extra += ['--resume'] if flags.FLAGS.resume is False else []
    return shlex.join([*words, *sys.argv[1:], *extra])


def leave(workdir: Path | None, word: str, *, exclusive: bool = False) -> None:
    """Clean up and print the last message, when a signal ends the process.

    Args:
      workdir: of the run; None if it has none yet.
      word: 'interrupted' or 'terminated'.
      exclusive: whether no other process can use it.
    """
    folders.discard_unfinished()
    kept = f'{liveness.describe_rest()}.'
    if workdir:
        # An earlier process may have recorded rounds; each run of a sweep has its folder.
        paths = [*workdir.glob(run_files.METRICS), *workdir.glob(f'*/{run_files.METRICS}')]
        if any(path.is_file() and path.stat().st_size for path in paths):
            kept = f'{workdir} holds the rounds done; to continue: {resume_command(workdir)}'
    console.show_last_words(f'{word}; {kept}')
    if exclusive and workdir and not (workdir / run_files.PARTITION).exists():
        run_files.discard_workdir(workdir)


def main(arguments: Sequence[str]) -> int:
    """Train with the settings of the flags.

    Args:
      arguments: the program's name; more are an error.

    Returns:
      The exit status: 0, 1 if training diverged or a file of a run could not be written, 2 for bad
      input, data that cannot be read, a sweep's table that cannot be written or too little memory,
      130 if interrupted, 143 if terminated.
    """
    values = flags.FLAGS
    workdir = Path(values.workdir).expanduser() if values.workdir else None
    with ending(functools.partial(leave, workdir)):
        if len(arguments) > 1:
            console.show_error(
                f'unexpected arguments {" ".join(arguments[1:])}; flags begin with --.'
            )
            return 2
        command_line.quiet_libraries()
        console.escape_unknown_characters()
        for flag, show in (('method', list_methods), ('measure', list_measures)):
            if values[flag].value == 'list':
                show()
                return 0
        try:
            check_included(values.include)
        except ValueError as error:
            console.show_error(str(error))
            return 2
        # One of several processes reports errors when it has joined the others.
        if not values.distributed and values.num_processes is None:
            try:
                check_settings(config_flags.from_flags(), sweep_=values.sweep or '')
            except ValueError as error:
                console.show_error(str(error))
                return 2
        with contextlib.suppress(RuntimeError):  # the program has used JAX before
            use_every_core()
        try:
            numbers = values.num_processes, values.process_id
            join.start(values.coordinator, *numbers, detect=values.distributed)
        except ValueError as error:
            console.show_error(str(error))
            return distributed.abort(2)
        with distributed.propagate_errors():
            status, message = train()
            if message:
                console.show_error(message)
            return distributed.shut_down(status, message)


def check_settings(config: Config, *, sweep_: str) -> None:
    """Check the settings that need neither data nor JAX's devices.

    Args:
      config: the settings.
      sweep_: the value of --sweep, whose first point replaces some of them.

    Raises:
      ValueError: if a setting is invalid.
    """
    checks.check_types(config)
    first = grid.with_values(config, dict(grid.parse_grid(sweep_, config)[0]))
    checks.check(first)
    method_of(first)
    parse_augment(config.augment)


def train() -> tuple[int, str]:
    """Train with the settings of the flags, in one process or as one of several.

    Returns:
      The exit status, as of `main`, and an error message, '' for none.
    """
    try:
        devices, idle = describe_devices(find_devices()), idle_accelerator()
    except ValueError as error:
        return 2, str(error)
    values = flags.FLAGS
    if not on_cpu() or values.precision != 'float32':
        devices += f'; arithmetic in {values.precision}'
    console.say(f'device: {devices}')
    if idle and distributed.is_leader():
        console.show_warning(idle)
    if values.compilation_cache:
        keep_programs()
    try:
        agreed = [name for name, flag in config_flags.COMMAND_FLAGS.items() if flag.agreed]
        distributed.check_settings({f'--{name}': values[name].value for name in agreed})
        config = config_flags.from_flags()
        if values.sweep or values.halving or values.together or values.seeds != 1:
            return train_sweep(config)
        if values.dry_run:
            show_dry_run(make_experiment(config))
            return 0, ''
        experiment = set_up(config)
    except (ValueError, OSError) as error:  # also TooLarge, in a dry run
        return 2, str(error)
    try:
        exclusive = distributed.is_leader()
        with ending(functools.partial(leave, experiment.workdir, exclusive=exclusive)):
            simulate.train(experiment, command=resume_command(experiment.workdir))
    except simulate.Diverged as error:
        return 1, str(error)
    except ValueError as error:  # too large for the memory, or a damaged work directory
        return 2, str(error)
    except OSError as error:
        return 1, f'{error}; {experiment.workdir} holds the rounds done.'
    except signals.Interrupted as error:
        return 128 + error.signal, str(error)
    return 0, ''


def train_sweep(config: Config) -> tuple[int, str]:
    """Train the grid of --sweep and --seeds, or print its dry run.

    Args:
      config: the common settings of its experiments.

    Returns:
      The exit status, 1 also if an experiment has no summary, and an error message, as of `train`.

    Raises:
      ValueError: for bad input, before training.
      OSError: if data cannot be read.
    """
    if distributed.process_count() > 1:
        raise ValueError(
            '--sweep, --seeds, --halving and --together train in one process; omit --num_processes '
            'and --distributed.'
        )
    values = flags.FLAGS
    checks.check_types(config)
    points = grid.parse_grid(values.sweep or '', config)
    if values.halving and len(points) == 1:
        raise ValueError(
            f'--halving={values.halving} compares settings; name several, as in '
            '--sweep="learning_rate=.01,.1".'
        )
    given = dict.fromkeys(name for point in points for name in grid.of_problem(point, config))
    if values.halving and given:
        raise ValueError(
            f'--halving={values.halving} compares settings of one problem, but --sweep varies '
            f'{", ".join(given)}; leave it out, and sweep again for each value.'
        )
    dataset, method = outcomes.subject(points, config)
    named = dataclasses.replace(config, dataset=dataset, method=method)
    folder = run_files.new_folder(named, '-sweep')
    members = sweep.expand(config, points, values.seeds, folder)
    (rungs,) = {tuple(parse_halving(values.halving, member.config)) for member in members}
    if values.dry_run:
        sweep.show_dry_run(members, folder, rungs=rungs, most=values.together)
        return 0, ''
    try:
        with ending(functools.partial(leave, folder)):
            results = sweep.run(members, folder, rungs=rungs, most=values.together, quiet=False)
    except signals.Interrupted as error:
        return 128 + error.signal, f'{error}; to continue: {resume_command(folder)}'
    except KeyboardInterrupt:
        return 130, f'interrupted; to continue: {resume_command(folder)}'
    outcomes.show_outcomes(results, folder, config)
    return int(not all(is_done(member.config) for member in members)), ''


def run() -> None:
    """Define the flags, parse them and run `main`."""
    gc.freeze()  # each collection of garbage would visit the loaded modules again
    try:
        include_first(sys.argv[1:])
        config_flags.define_flags()
    except ValueError as error:  # of a function that the program has registered
        console.show_error(str(error))
        sys.exit(2)
    try:
        app.run(main, flags_parser=config_flags.parse_program)
    finally:
        console.flush()


if __name__ == '__main__':
    run()
