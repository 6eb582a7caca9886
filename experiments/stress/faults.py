"""Whether a run survives being killed: kill -9 at random moments, resume, compare.

    python -m experiments.stress.faults --kills=30 --output=experiments/results/faults_cpu.json

A job is run once without interruption, and again and again with a kill -9 a random time after its
start, or in the middle of writing a checkpoint, until it is finished. After every kill the records
have to be whole but for a torn last line of what came after the last checkpoint; at the end
metrics.jsonl has to be the same, but for times, and model.safetensors the same to the last bit.
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

from absl import app, flags

from experiments.benchmarks.machine import machine
from jaxfed.internal.files import write_json
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.recording.run_files import METRICS, MODEL, SUMMARY

# State on server and clients, measures that remember rounds, lost clients, a checkpoint a round.
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
    """What happened."""

    kills: int
    in_checkpoint: int  # kills while a checkpoint was being written
    before_training: int
    runs: int  # that went to their end
    rounds_repeated: int  # done again after a kill, because no checkpoint had them
    failures: int  # differences from the uninterrupted run, lost rounds, torn lines


def start(workdir: Path, job: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the job as a process of its own.

    Args:
      workdir: its work directory.
      job: its flags.

    Returns:
      The process.
    """
    command = [sys.executable, '-m', 'jaxfed.main', *job, f'--workdir={workdir}']
    with (workdir.parent / f'{workdir.name}.log').open('ab') as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def is_writing(workdir: Path, since: float) -> bool:
    """Whether a checkpoint is being written that was begun after a time of the clock."""
    try:
        return any(
            path.stat().st_ctime > since
            for path in (workdir / FOLDER).glob('*.orbax-checkpoint-tmp')
        )
    except FileNotFoundError:  # it has just got its name
        return False


def saved_round(workdir: Path) -> int:
    """Round of the newest whole checkpoint, 0 without one."""
    names = [path.name for path in (workdir / FOLDER).glob('*')]
    return max([int(name) for name in names if name.isdecimal()], default=0)


def recorded(workdir: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl, without times."""
    path = workdir / METRICS
    lines = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
    return [
        {name: value for name, value in json.loads(line).items() if 'seconds' not in name}
        for line in lines
    ]


def kill_one(workdir: Path, job: Sequence[str], moment: float, in_checkpoint: bool) -> str:
    """Start the job and kill it.

    Args:
      workdir: its work directory.
      job: its flags.
      moment: seconds from when it begins to record, or from its start where that is negative.
      in_checkpoint: whether to wait for a checkpoint that is being written.

    Returns:
      'finished' if it was faster, else where it was killed: 'checkpoint', 'training' or 'before'.
    """
    begun = time.time()
    process, began = start(workdir, job), time.monotonic()
    already = len(recorded(workdir))
    while moment > 0 and process.poll() is None and len(recorded(workdir)) == already:
        time.sleep(0.01)
    time.sleep(abs(moment))
    while in_checkpoint and process.poll() is None and not is_writing(workdir, begun):
        time.sleep(0.0005)
        if time.monotonic() - began > 300:
            raise RuntimeError(f'{workdir} wrote no checkpoint in 300 s.')
    ended = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    code = process.wait()
    if ended:
        if code:
            log = (workdir.parent / f'{workdir.name}.log').read_text()
            raise RuntimeError(f'the job ended with {code} by itself:\n{log[-2000:]}')
        return 'finished'
    if is_writing(workdir, begun):
        return 'checkpoint'
    return 'training' if moment > 0 else 'before'


def survive(kills: int, seed: int, job: Sequence[str] = JOB) -> Count:
    """Kill and resume, and compare with a run that was left alone.

    Args:
      kills: how many.
      seed: of their moments.
      job: flags of the job.

    Returns:
      What happened.

    Raises:
      RuntimeError: if the job ends with an error of its own.
    """
    rng = random.Random(seed)
    counts = dict.fromkeys(Count._fields, 0)
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder, 'reference')
        process, began = start(reference, job), time.monotonic()
        if process.wait():
            raise RuntimeError((reference.parent / 'reference.log').read_text()[-2000:])
        whole = time.monotonic() - began
        want, model = recorded(reference), (reference / MODEL).read_bytes()
        while counts['kills'] < kills:
            workdir = Path(folder, f'run{counts["runs"]}')
            while counts['kills'] < kills and not (workdir / SUMMARY).exists():
                early = rng.random() < 0.15
                moment = -rng.uniform(0, 4) if early else rng.uniform(0, whole / 4)
                before = saved_round(workdir)
                where = kill_one(workdir, job, moment, in_checkpoint=rng.random() < 0.5)
                if where == 'finished':
                    break
                counts['kills'] += 1
                counts['in_checkpoint'] += where == 'checkpoint'
                counts['before_training'] += where == 'before'
                held, saved = recorded(workdir), saved_round(workdir)
                counts['rounds_repeated'] += max(len(held) - saved, 0)
                # Lines are those of the run left alone, and no checkpoint is ahead of them.
                counts['failures'] += held != want[: len(held)]
                counts['failures'] += saved > len(held)
                counts['failures'] += saved < before
            if not (workdir / SUMMARY).exists() and start(workdir, job).wait():
                raise RuntimeError((workdir.parent / f'{workdir.name}.log').read_text()[-2000:])
            counts['runs'] += 1
            counts['failures'] += recorded(workdir) != want
            counts['failures'] += (workdir / MODEL).read_bytes() != model
            counts['failures'] += (workdir / FOLDER).exists()
    return Count(**counts)


def main(_: Sequence[str]) -> None:
    """Kill, print and write."""
    os.environ.setdefault('PYTHONPATH', os.getcwd())
    began = time.monotonic()
    values = flags.FLAGS
    found = survive(values.kills, values.seed)._asdict()
    told = {'machine': machine(), 'job': ' '.join(JOB), 'seconds': round(time.monotonic() - began)}
    print(json.dumps(found, indent=2))
    if values.output:
        write_json(Path(values.output), told | found)
    if found['failures']:
        sys.exit(1)


if __name__ == '__main__':
    # Here, because tests import this module beside jaxfed's own flags.
    flags.DEFINE_integer('kills', 30, 'Kills in all.', lower_bound=1)
    flags.DEFINE_integer('seed', 0, 'Of the moments.')
    flags.DEFINE_string('output', None, 'JSON file.')
    app.run(main)
