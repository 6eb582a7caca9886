"""Command line: python -m jaxfed.main --method=fedlmd."""

import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import app, flags

from jaxfed import config
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


def leave(workdir: Path | None, word: str, *, ours: bool = False) -> None:
    """Tidy up and print what is left where the process is ended.

    Args:
      workdir: of the run; None if it has none yet.
      word: 'interrupted' or 'terminated'.
      ours: whether no other process can be at work in it.
    """
    folders.discard_unfinished()
    # A run that goes on has had rounds before this process; those of a sweep have folders each.
    paths = [
        *(workdir.glob(run_files.METRICS) if workdir else ()),
        *(workdir.glob(f'*/{run_files.METRICS}') if workdir else ()),
    ]
    done = any(path.is_file() and path.stat().st_size for path in paths)
    left = f'the rounds done are in {workdir}' if done else liveness.left_elsewhere()
    console.show_last_words(f'{word}; {left}.')
    if ours and workdir and not (workdir / run_files.PARTITION).exists():
        run_files.discard_workdir(workdir)


def main(arguments: Sequence[str]) -> int:
    """Train as the flags say.

    Args:
      arguments: what the flags left over; there may be nothing.

    Returns:
      The exit status: 0, 1 if training diverged or a file could not be read or written, 2 for bad
      input or too little memory, 130 if interrupted after a round, 143 if terminated after one.
    """
    given = flags.FLAGS.workdir
    with ending(functools.partial(leave, Path(given) if given else None)):
        return _main(arguments)


def _main(arguments: Sequence[str]) -> int:
    """As `main`, where a signal ends the process."""
    if len(arguments) > 1:
        console.show_error(f'unexpected arguments {" ".join(arguments[1:])}; flags begin with --.')
        return 2
    command_line.quiet_libraries()
    if flags.FLAGS.method == 'list':
        list_methods()
        return 0
    if flags.FLAGS.measure == 'list':
        list_measures()
        return 0
    with contextlib.suppress(RuntimeError):  # who has used JAX already has chosen its devices
        use_every_core()
    given = flags.FLAGS
    try:
        join.start(
            given.coordinator, given.num_processes, given.process_id, detect=given.distributed
        )
    except ValueError as error:
        console.show_error(str(error))
        return distributed.abandon(2)
    with distributed.together():
        status, message = train()
        if message:
            console.show_error(message)
        return distributed.end(status, message)


def train() -> tuple[int, str]:
    """Train as the flags say, in one process or as one of several.

    Returns:
      The exit status, as of `main`, and what went wrong, '' for nothing.
    """
    try:
        found, idle = describe_devices(jax.devices()), idle_accelerator()
    except (RuntimeError, AssertionError) as error:  # JAX's, for a platform that is not there
        asked = os.environ.get('JAX_PLATFORMS')
        told = f' ({error})' if str(error) else ''
        return 2, f'JAX finds no device with JAX_PLATFORMS={asked}{told}; leave it out.'
    console.say(f'device: {found}', quiet=False)
    if idle and distributed.leader():
        console.show_warning(idle)
    if flags.FLAGS.compilation_cache and 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
        keep_compiled_programs()
    try:
        distributed.agree(
            {f'--{name}': flags.FLAGS[name].value for name in config_flags.OF_COMMANDS}
        )
        settings = config_flags.from_flags()
        of_many = flags.FLAGS.sweep, flags.FLAGS.halving, flags.FLAGS.together
        if any(of_many) or flags.FLAGS.seeds != 1:
            if distributed.count() > 1:
                raise ValueError(
                    '--sweep, --seeds and --halving train in one process; leave --num_processes '
                    'and --distributed out.'
                )
            return train_sweep(settings)
        if flags.FLAGS.dry_run:
            show_dry_run(make_experiment(settings))
            return 0, ''
        experiment = set_up(settings)
    except (ValueError, OSError) as error:  # of them TooLarge in a dry run
        return 2, str(error)
    try:
        with ending(functools.partial(leave, experiment.workdir, ours=distributed.leader())):
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


def train_sweep(settings: config.Config) -> tuple[int, str]:
    """Train the grid that --sweep and --seeds name, or tell what it takes.

    Args:
      settings: what its experiments have in common.

    Returns:
      The exit status: 0, 1 if an experiment failed, 130 or 143 if interrupted; and a message, as of
      `train`.

    Raises:
      ValueError: for bad input, before training.
      OSError: if data cannot be read.
    """
    checks.check(settings)
    grid = sweep.parse(flags.FLAGS.sweep or '', settings)
    rungs = parse_halving(flags.FLAGS.halving, settings)
    folder = run_files.new_folder(settings, '-sweep')
    members = sweep.expand(settings, grid, flags.FLAGS.seeds, folder)
    most = sweep.check_together(flags.FLAGS.together)
    if flags.FLAGS.dry_run:
        sweep.show_plan(members, folder, rungs=rungs, most=most)
        return 0, ''
    for member in members:
        parse_halving(flags.FLAGS.halving, member.config)
    try:
        with ending(functools.partial(leave, folder)):
            outcomes = sweep.run(members, folder, rungs=rungs, most=most, quiet=False)
    except signals.Interrupted as error:
        told = f'{str(error).removesuffix(".")}, with --workdir={folder}.'
        return 128 + error.signal, told
    except KeyboardInterrupt:
        return 130, f'interrupted; what is done is kept, with --workdir={folder}.'
    sweep.show(outcomes, folder, settings)
    return int(any(outcome.failed for outcome in outcomes)), ''


def run() -> None:
    """Define the flags, parse them and run `main`."""
    config_flags.define_flags()
    app.run(main, flags_parser=command_line.parse_program)


if __name__ == '__main__':
    run()
