"""Kill a run with kill -9 at random moments, resume it, and compare it with an undisturbed run.

    python -m experiments.stress.faults --kills=30 --output=experiments/results/faults_cpu.json

A job runs once without interruption. Then it runs again and again with a kill -9 at a random time
after its start, or while it writes a checkpoint, until it finishes. After every kill the records
must be complete, except for a torn last line of a round after the last checkpoint; at the end
metrics.jsonl must be equal except for times, and model.safetensors must be bit-identical.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from experiments.benchmarks import reporting
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.recording.run_files import METRICS, MODEL, SUMMARY

# State on server and clients, measures that depend on earlier rounds, a checkpoint a round.
JOB = (
    '--method=scaffold+fedavgm',
    '--model=mlp',
    '--rounds=300',
    '--measure=forgetting,consistency',
    '--dropout=0.2',
    '--devices=1',
    '--checkpoint_every=1',
)


class Count(NamedTuple):
    """Numbers of events."""

    kills: int
    in_checkpoint: int  # kills while a checkpoint was being written
    before_training: int
    runs: int  # that were finished
    rounds_repeated: int  # after a kill, because no checkpoint had them
    failures: int  # differences from the uninterrupted run, lost rounds, torn lines


def start(workdir: Path, job: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the job, given by its flags, as a process."""
    command = [sys.executable, '-m', 'jaxfed.main', *job, f'--workdir={workdir}']
    with log_of(workdir).open('ab') as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def log_of(workdir: Path) -> Path:
    """The file with the output of the processes that work in a directory."""
    return workdir.parent / f'{workdir.name}.log'


def finish(workdir: Path, job: Sequence[str]) -> None:
    """Runs the job to its end; raises RuntimeError if it fails."""
    if start(workdir, job).wait():
        raise RuntimeError(log_of(workdir).read_text()[-2000:])


def is_writing(workdir: Path, since: float) -> bool:
    """Whether a checkpoint is being written, begun after `since`, a time of the clock."""
    try:
        return any(
            path.stat().st_ctime > since
            for path in (workdir / FOLDER).glob('*.orbax-checkpoint-tmp')
        )
    except FileNotFoundError:  # it has just been renamed
        return False


def saved_round(workdir: Path) -> int:
    """Round of the newest complete checkpoint, 0 without one."""
    names = [path.name for path in (workdir / FOLDER).glob('*')]
    return max([int(name) for name in names if name.isdecimal()], default=0)


def recorded(workdir: Path) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl, without times."""
    path = workdir / METRICS
    lines = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
    return [
        {name: value for name, value in json.loads(line).items() if 'seconds' not in name}
        for line in lines
    ]


def kill_one(workdir: Path, job: Sequence[str], delay: float, in_checkpoint: bool) -> str:
    """Starts the job and kills it.

    Args:
      workdir: its work directory.
      job: its flags.
      delay: seconds after its first record, or after its start if negative.
      in_checkpoint: whether to wait for a checkpoint that is being written.

    Returns:
      'finished' if the job ended before, else the phase in which it was killed: 'checkpoint',
      'training' or 'before'.
    """
    before = len(recorded(workdir))
    since, began = time.time(), time.monotonic()
    process = start(workdir, job)
    while delay > 0 and process.poll() is None and len(recorded(workdir)) == before:
        time.sleep(0.01)
    time.sleep(abs(delay))
    while in_checkpoint and process.poll() is None and not is_writing(workdir, since):
        time.sleep(0.0005)
        if time.monotonic() - began > 300:
            raise RuntimeError(f'{workdir} wrote no checkpoint in 300 s.')
    ended = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    code = process.wait()
    if ended and code:
        log = log_of(workdir).read_text()
        raise RuntimeError(f'the job ended with {code} by itself:\n{log[-2000:]}')
    if ended:
        return 'finished'
    if is_writing(workdir, since):
        return 'checkpoint'
    return 'training' if delay > 0 else 'before'


def survive(kills: int, seed: int, job: Sequence[str] = JOB) -> Count:
    """Kills and resumes the job, and compares it with an uninterrupted run.

    Args:
      kills: in all.
      seed: of their moments.
      job: flags of the job.

    Returns:
      Numbers of events.

    Raises:
      RuntimeError: if the job itself fails.
    """
    rng = random.Random(seed)
    counts = dict.fromkeys(Count._fields, 0)
    with tempfile.TemporaryDirectory() as folder:
        reference, began = Path(folder, 'reference'), time.monotonic()
        finish(reference, job)
        seconds = time.monotonic() - began
        lines, model = recorded(reference), (reference / MODEL).read_bytes()
        while counts['kills'] < kills:
            workdir = Path(folder, f'run{counts["runs"]}')
            while counts['kills'] < kills and not (workdir / SUMMARY).exists():
                early = rng.random() < 0.15
                delay = -rng.uniform(0, 4) if early else rng.uniform(0, seconds / 4)
                before = saved_round(workdir)
                where = kill_one(workdir, job, delay, in_checkpoint=rng.random() < 0.5)
                if where == 'finished':
                    break
                kept, saved = recorded(workdir), saved_round(workdir)
                counts['kills'] += 1
                counts['in_checkpoint'] += where == 'checkpoint'
                counts['before_training'] += where == 'before'
                counts['rounds_repeated'] += max(len(kept) - saved, 0)
                # The lines equal those of the uninterrupted run; no checkpoint has later rounds.
                counts['failures'] += kept != lines[: len(kept)]
                counts['failures'] += saved > len(kept)
                counts['failures'] += saved < before
            if not (workdir / SUMMARY).exists():
                finish(workdir, job)
            counts['runs'] += 1
            counts['failures'] += recorded(workdir) != lines
            counts['failures'] += (workdir / MODEL).read_bytes() != model
            counts['failures'] += (workdir / FOLDER).exists()
    return Count(**counts)


def main(args: flags.FlagValues) -> None:
    """Kills, prints and writes."""
    os.environ.setdefault('PYTHONPATH', os.getcwd())
    began = time.monotonic()
    counts = survive(args.kills, args.seed)._asdict()
    print(json.dumps(counts, indent=2))
    seconds = round(time.monotonic() - began)
    described = {'machine': reporting.machine(), 'job': ' '.join(JOB), 'seconds': seconds}
    reporting.write(described | counts, args.output)
    if counts['failures']:
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_integer('kills', 30, 'Kills in all.', lower_bound=1)
    flags.DEFINE_integer('seed', 0, 'Seed of their moments.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
