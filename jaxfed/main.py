"""Command line: python -m jaxfed.main --method=fedlmd."""

import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import app, flags

from jaxfed.config import Config
from jaxfed.engine import distributed
from jaxfed.engine.devices import (
    describe_devices,
    idle_accelerator,
    keep_compiled_programs,
    use_every_core,
)
from jaxfed.engine.distributed import join, liveness
from jaxfed.internal import command_line, console, folders, signals
from jaxfed.internal.signals import ending
from jaxfed.recording import run_files
from jaxfed.runs import checks, config_flags, simulate
from jaxfed.runs.dry_run import show_dry_run
from jaxfed.runs.experiment import make_experiment, set_up
from jaxfed.runs.listings import list_measures, list_methods
from jaxfed.sweeps import sweep
from jaxfed.sweeps.halving import parse_halving


def leave(workdir: Path | None, word: str, *, exclusive: bool = False) -> None:
    """Clean up and print what is kept, when a signal ends the process.

    Args:
      workdir: of the run; None if it has none yet.
      word: 'interrupted' or 'terminated'.
      exclusive: whether no other process can work in it.
    """
    folders.discard_unfinished()
    # Rounds may be those of an earlier process; the runs of a sweep have folders of their own.
    patterns = (run_files.METRICS, f'*/{run_files.METRICS}') if workdir else ()
    paths = [path for pattern in patterns for path in Path(str(workdir)).glob(pattern)]
    done = any(path.is_file() and path.stat().st_size for path in paths)
    kept = f'the rounds done are in {workdir}' if done else liveness.describe_rest()
    console.show_last_words(f'{word}; {kept}.')
    if exclusive and workdir and not (workdir / run_files.PARTITION).exists():
        run_files.discard_workdir(workdir)


def main(arguments: Sequence[str]) -> int:
    """Train as the flags say.

    Args:
      arguments: the program's name, and nothing else.

    Returns:
      The exit status: 0, 1 if training diverged or a file could not be read or written, 2 for bad
      input or too little memory, 130 if interrupted after a round, 143 if terminated after one.
    """
    values = flags.FLAGS
    with ending(functools.partial(leave, Path(values.workdir) if values.workdir else None)):
        if len(arguments) > 1:
            console.show_error(
                f'unexpected arguments {" ".join(arguments[1:])}; flags begin with --.'
            )
            return 2
        command_line.quiet_libraries()
        for flag, show in (('method', list_methods), ('measure', list_measures)):
            if values[flag].value == 'list':
                show()
                return 0
        with contextlib.suppress(RuntimeError):  # a program that has used JAX has its devices
            use_every_core()
        try:
            join.start(
                values.coordinator,
                values.num_processes,
                values.process_id,
                detect=values.distributed,
            )
        except ValueError as error:
            console.show_error(str(error))
            return distributed.abort(2)
        with distributed.propagate_errors():
            status, message = train()
            if message:
                console.show_error(message)
            return distributed.shut_down(status, message)


def train() -> tuple[int, str]:
    """Train as the flags say, in one process or as one of several.

    Returns:
      The exit status, as of `main`, and an error message, '' for none.
    """
    try:
        devices, idle = describe_devices(jax.devices()), idle_accelerator()
    except (RuntimeError, AssertionError) as error:  # JAX's, for a platform that is not there
        platforms = os.environ.get('JAX_PLATFORMS')
        reason = f' ({error})' if str(error) else ''
        return 2, f'JAX finds no device with JAX_PLATFORMS={platforms}{reason}; leave it out.'
    console.say(f'device: {devices}', quiet=False)
    if idle and distributed.is_leader():
        console.show_warning(idle)
    if flags.FLAGS.compilation_cache and 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
        keep_compiled_programs()
    try:
        agreed = [name for name, flag in config_flags.COMMAND_FLAGS.items() if flag.agreed]
        distributed.check_settings({f'--{name}': flags.FLAGS[name].value for name in agreed})
        config = config_flags.from_flags()
        values = flags.FLAGS
        if values.sweep or values.halving or values.together or values.seeds != 1:
            return train_sweep(config)
        if flags.FLAGS.dry_run:
            show_dry_run(make_experiment(config))
            return 0, ''
        experiment = set_up(config)
    except (ValueError, OSError) as error:  # also TooLarge, in a dry run
        return 2, str(error)
    try:
        with ending(
            functools.partial(leave, experiment.workdir, exclusive=distributed.is_leader())
        ):
            simulate.train(experiment)
    except simulate.Diverged as error:
        return 1, str(error)
    except ValueError as error:  # too large for the memory, or a damaged work directory
        return 2, str(error)
    except OSError as error:
        return 1, f'{error}; the rounds done are in {experiment.workdir}.'
    except signals.Interrupted as error:
        return 128 + error.signal, str(error)
    return 0, ''


def train_sweep(config: Config) -> tuple[int, str]:
    """Train the grid that --sweep and --seeds name, or print what it takes.

    Args:
      config: the settings that its experiments have in common.

    Returns:
      The exit status, 1 also if an experiment failed, and an error message, as of `train`.

    Raises:
      ValueError: for bad input, before training.
      OSError: if data cannot be read.
    """
    if distributed.process_count() > 1:
        raise ValueError(
            '--sweep, --seeds and --halving train in one process; leave --num_processes and '
            '--distributed out.'
        )
    values = flags.FLAGS
    checks.check(config)
    grid = sweep.parse_grid(values.sweep or '', config)
    rungs = parse_halving(values.halving, config)
    folder = run_files.new_folder(config, '-sweep')
    members = sweep.expand(config, grid, values.seeds, folder)
    if values.dry_run:
        sweep.show_dry_run(members, folder, rungs=rungs, most=values.together)
        return 0, ''
    for member in members:
        parse_halving(values.halving, member.config)
    try:
        with ending(functools.partial(leave, folder)):
            outcomes = sweep.run(members, folder, rungs=rungs, most=values.together, quiet=False)
    except signals.Interrupted as error:
        return 128 + error.signal, f'{str(error).removesuffix(".")}, with --workdir={folder}.'
    except KeyboardInterrupt:
        return 130, f'interrupted; what is done is kept, with --workdir={folder}.'
    sweep.show_outcomes(outcomes, folder, config)
    return int(any(outcome.failed for outcome in outcomes)), ''


def run() -> None:
    """Define the flags, parse them and run `main`."""
    config_flags.define_flags()
    app.run(main, flags_parser=command_line.parse_program)


if __name__ == '__main__':
    run()
