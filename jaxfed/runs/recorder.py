"""Records experiments while they train: logs, progress bar and checkpoints."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxfed.internal import console
from jaxfed.recording import checkpoints
from jaxfed.recording.entries import Entry
from jaxfed.recording.log import Log, open_log
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.state import State

Watch = Callable[[int, Entry], None]  # (number of the experiment, its recorded entry)


class Recorder(NamedTuple):
    """What is done with the rounds of X experiments while they train."""

    logs: Sequence[Log]  # X; () if nothing is recorded
    record: Watch
    save: Callable[[int, State], None]  # (round, state): writes a checkpoint


def no_recorder() -> Recorder:
    """The recorder of processes after the first."""
    return Recorder((), lambda x, entry: None, lambda round_, state: None)


@contextlib.contextmanager
def open_recorder(
    experiments: Sequence[Experiment],
    manager: Any,
    done: int,
    state: State,
    *,
    quiet: bool,
    watch: Watch,
) -> Iterator[Recorder]:
    """Opens the recorder of experiments that continue after `done` rounds.

    Args:
      experiments: X.
      manager: from `open_checkpoints`.
      done: rounds of earlier processes.
      state: after them.
      quiet: show no progress, which is only shown for a single experiment.
      watch: called after an entry is recorded.
    """
    with contextlib.ExitStack() as stack:
        logs = []
        for e, recorded in zip(experiments, state.recorded, strict=True):
            rounds = done if recorded < 0 else int(recorded)
            logs.append(stack.enter_context(open_log(e.config, e.parts, e.workdir, rounds)))
        if done:
            console.say(f'going on after round {done}', quiet=quiet)
        hidden = quiet or len(experiments) > 1
        report = stack.enter_context(console.progress(experiments[0].config.rounds, quiet=hidden))

        def record(x: int, entry: Entry) -> None:
            logs[x].record(entry)
            report(entry)
            watch(x, entry)

        def save(round_: int, state: State) -> None:
            # A checkpoint is only valid with the lines of its rounds.
            for log in logs:
                log.settle()
            checkpoints.save(manager, round_, state)

        yield Recorder(logs, record, save)
