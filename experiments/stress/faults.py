"""Kill jobs with kill -9 at random moments, resume them, and compare them with undisturbed ones.

    python -m experiments.stress.faults --kills=100 --output=experiments/results/faults_cpu.json

A later call with the same file adds to it, until it has that many kills.

--kind selects a single run, a sweep, seeds, successive halving, a run of two processes, of which
one or both are killed, or a sweep that is killed while its runs end.

A job runs once without interruption. Then it runs again and again with a kill -9 until it finishes:
at a random time after its start or while it writes a checkpoint, or, for a sweep that ends, while
it writes its summaries. After every kill the records must be complete, except for a torn last line
of a round after the last checkpoint; at the end metrics.jsonl must be equal except for times, and
model.safetensors must be bit-identical.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags

from experiments.benchmarks.measuring import reporting
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.recording.run_files import CONFIG, METRICS, MODEL, SUMMARIES, SUMMARY, TABLE
from jaxfed.sweeps.training import SHARED

# State on server and clients, measures that depend on earlier rounds, a checkpoint a round.
JOB = (
    '--method=scaffold+fedavgm',
    '--model=mlp',
    '--measure=forgetting,consistency',
    '--dropout=0.2',
    '--checkpoint_every=1',
)
SMALL = ('--num_clients=8', '--clients_per_round=4', '--local_epochs=1')
GRID = '--sweep=learning_rate=0.01,0.03'
KINDS = {
    'run': ('--rounds=300', '--devices=1'),
    'sweep': (*SMALL, '--rounds=60', '--devices=1', GRID),
    'seeds': (*SMALL, '--rounds=60', '--devices=1', '--seeds=2'),
    'halving': (*SMALL, '--rounds=60', '--devices=1', GRID, '--halving=50', '--validation=0.2'),
    'processes': (*SMALL, '--rounds=60', '--num_processes=2'),
    'endings': (*SMALL, '--rounds=3', '--devices=1', '--seeds=8'),
}


Moment = Callable[[Path, float], bool]  # of a work directory and the start of its process


class Count(NamedTuple):
    """Numbers of events."""

    kills: int
    in_checkpoint: int  # kills while a checkpoint was being written
    in_summaries: int  # kills while the summaries of a program were being written
    before_training: int
    survivors: int  # processes that another one's end has stopped
    runs: int  # that were finished
    rounds_repeated: int  # after a kill, because no checkpoint had them
    failures: int  # differences from the uninterrupted run, lost rounds, torn lines


def start(workdir: Path, job: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the job, given by its flags, as a process."""
    command = [sys.executable, '-m', 'jaxfed.main', *job, f'--workdir={workdir}']
    temporary = temporary_of(workdir)
    temporary.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {'TMPDIR': str(temporary)}
    with log_of(workdir).open('ab') as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def start_all(workdir: Path, job: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Starts all processes of the job."""
    if '--num_processes=2' not in job:
        return [start(workdir, job)]
    with socket.create_server(('', 0)) as free:
        address = f'--coordinator=127.0.0.1:{free.getsockname()[1]}'
    return [start(workdir, (*job, address, f'--process_id={number}')) for number in (0, 1)]


def log_of(workdir: Path) -> Path:
    """The file with the output of the processes that work in a directory."""
    return workdir.parent / f'{workdir.name}.log'


def temporary_of(workdir: Path) -> Path:
    """The folder for temporary files of the processes that work in a directory."""
    return workdir.parent / f'{workdir.name}.temporary'


def finish(workdir: Path, job: Sequence[str]) -> None:
    """Runs the job to its end; raises RuntimeError if it fails."""
    if any([process.wait() for process in start_all(workdir, job)]):
        raise RuntimeError(log_of(workdir).read_text()[-2000:])


def checkpoints(workdir: Path) -> list[Path]:
    """The checkpoints of a run or of the programs of a sweep."""
    folders = (FOLDER, f'{SHARED}/*/{FOLDER}')
    return [path for folder in folders for path in workdir.glob(f'{folder}/*')]


def leftovers(workdir: Path) -> list[Path]:
    """Checkpoints and temporary files, of which a finished job has none."""
    paths = [path for path in workdir.rglob('*') if '.tmp' in path.name or '-tmp' in path.name]
    return [*checkpoints(workdir), *paths, *temporary_of(workdir).iterdir()]


def runs_in(workdir: Path) -> list[Path]:
    """The folders of the runs of a sweep, or that of a single run."""
    paths = [path for path in sorted(workdir.glob('*/')) if (path / CONFIG).exists()]
    return paths or [workdir]


def records(workdir: Path) -> dict[str, list[dict[str, Any]]]:
    """Name -> recorded lines of each run; a single run has the name of its folder."""
    return {path.name: recorded(path) for path in runs_in(workdir)}


def results(workdir: Path) -> dict[str, Any]:
    """The lines of each run, and name -> content of the models and of the sweep's table."""
    models = {str(path.parent.relative_to(workdir)): path for path in workdir.rglob(MODEL)}
    tables = {path.name: path for path in workdir.glob(TABLE)}
    contents = {name: path.read_bytes() for name, path in (models | tables).items()}
    return {'lines': list(records(workdir).values()), **contents}


def is_finished(workdir: Path) -> bool:
    """Whether the job has ended by itself."""
    return (workdir / SUMMARY).exists() or (workdir / TABLE).exists()


def is_writing(workdir: Path, since: float) -> bool:
    """Whether a checkpoint is being written, begun after `since`, a time of the clock."""
    try:
        return any(
            path.stat().st_ctime > since
            for path in checkpoints(workdir)
            if path.name.endswith('.orbax-checkpoint-tmp')
        )
    except FileNotFoundError:  # it has just been renamed
        return False


def is_ending(workdir: Path, since: float) -> bool:
    """Whether the summaries of a program are being written, begun after `since`."""
    try:
        paths = workdir.glob(f'{SHARED}/*/{SUMMARIES}')
        return any(path.stat().st_ctime > since for path in paths)
    except FileNotFoundError:  # all have just been written
        return False


def saved_round(workdir: Path) -> int:
    """Round of the newest complete checkpoint, 0 without one."""
    names = [path.name for path in checkpoints(workdir)]
    return max([int(name) for name in names if name.isdecimal()], default=0)


def recorded(workdir: Path) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl, without times."""
    path = workdir / METRICS
    lines = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
    return [
        {name: value for name, value in json.loads(line).items() if 'seconds' not in name}
        for line in lines
    ]


def kill_one(
    workdir: Path, job: Sequence[str], delay: float, moment: Moment | None, victims: int = 1
) -> str:
    """Starts the job and kills it.

    Args:
      workdir: its work directory.
      job: its flags.
      delay: seconds after its first record, or after its start if negative.
      moment: what to wait for then, if anything.
      victims: the processes to kill, as a sum of 1 for the first and 2 for the second.

    Returns:
      'finished' if the job ended before, else the phase in which it was killed: 'checkpoint',
      'summaries', 'training' or 'before'.
    """
    before = lines_of(workdir)
    since, began = time.time(), time.monotonic()
    processes = start_all(workdir, job)

    def ended() -> bool:
        return any(process.poll() is not None for process in processes)

    while delay > 0 and not ended() and lines_of(workdir) == before:
        time.sleep(0.01)
    time.sleep(abs(delay))
    while moment and not ended() and not moment(workdir, since):
        time.sleep(0.0005)
        if time.monotonic() - began > 3600:
            raise RuntimeError(f'{workdir} did not reach the moment of the kill in an hour.')
    by_itself = ended()
    for number, process in enumerate(processes):
        if not by_itself and victims >> number & 1:
            process.send_signal(signal.SIGKILL)
    # The others end with status 1, because they have lost one, or with 2 if it had not joined.
    codes = [process.wait() for process in processes]
    expected = {0, 1, 2 if delay < 0 else 1, -signal.SIGKILL}
    if (by_itself and any(codes)) or not {*codes} <= expected:
        log = log_of(workdir).read_text()
        raise RuntimeError(f'the job ended with {codes} by itself:\n{log[-2000:]}')
    if not any(codes):
        return 'finished'
    if is_ending(workdir, since):
        return 'summaries'
    if is_writing(workdir, since):
        return 'checkpoint'
    return 'training' if delay > 0 else 'before'


def lines_of(workdir: Path) -> int:
    """The number of recorded lines of all runs."""
    return sum(map(len, records(workdir).values()))


def check_kill(workdir: Path, reference: Path, before: int) -> tuple[int, int]:
    """Compares what a killed job has left with an uninterrupted one.

    Args:
      workdir: of the killed job.
      reference: of the uninterrupted one.
      before: round of the newest checkpoint before.

    Returns:
      (repeated rounds of all runs, failures).
    """
    whole, saved = records(reference), saved_round(workdir)
    repeated, failures, unfinished = 0, 0, False
    for path in runs_in(workdir):
        # A sweep that was killed before its first run has one name and no lines.
        kept, lines = recorded(path), whole.get(path.name) or whole.get(reference.name, [])
        if (path / SUMMARY).exists() or is_ending(workdir, 0):  # it needs no checkpoint
            failures += kept != lines
            continue
        unfinished = True
        repeated += max(len(kept) - saved, 0)
        # No checkpoint has later rounds than the lines, except of a run that stopped early.
        failures += kept != lines[: len(kept)]
        failures += saved > len(kept) < len(lines)
    return repeated, failures + (unfinished and saved < before)


def survive(
    kills: int, seed: int, job: Sequence[str] = (*JOB, *KINDS['run']), *, ending: bool = False
) -> Count:
    """Kills and resumes the job, and compares it with an uninterrupted run.

    Args:
      kills: in all.
      seed: of their moments.
      job: flags of the job.
      ending: whether to kill only while the summaries of a program are written.

    Returns:
      Numbers of events.

    Raises:
      RuntimeError: if the job itself fails.
    """
    rng = random.Random(seed)
    counts = dict.fromkeys(Count._fields, 0)
    most = 3 if '--num_processes=2' in job else 1
    with tempfile.TemporaryDirectory() as folder:
        reference, began = Path(folder, 'reference'), time.monotonic()
        finish(reference, job)
        seconds = time.monotonic() - began
        whole = results(reference)
        while counts['kills'] < kills:
            workdir = Path(folder, f'run{counts["runs"]}')
            while counts['kills'] < kills and not is_finished(workdir):
                early, victims = rng.random() < 0.15, rng.randint(1, most)
                delay = -rng.uniform(0, 4) if early else rng.uniform(0, seconds / 4)
                before = saved_round(workdir)
                moment = is_writing if rng.random() < 0.5 else None
                if ending:
                    delay, moment = 0.001, is_ending
                where = kill_one(workdir, job, delay, moment, victims)
                if where == 'finished':
                    break
                counts['kills'] += 1
                counts['in_checkpoint'] += where == 'checkpoint'
                counts['in_summaries'] += where == 'summaries'
                counts['before_training'] += where == 'before'
                counts['survivors'] += victims < most
                if not is_finished(workdir):
                    repeated, failures = check_kill(workdir, reference, before)
                    counts['rounds_repeated'] += repeated
                    counts['failures'] += failures
            if not is_finished(workdir):
                finish(workdir, job)
            counts['runs'] += 1
            counts['failures'] += results(workdir) != whole
            counts['failures'] += bool(leftovers(workdir))
            shutil.rmtree(workdir)
    return Count(**counts)


def pause(seconds: float, job: Sequence[str]) -> dict[str, Any]:
    """Stops each process of the job with SIGSTOP for some time during training.

    Returns:
      'codes': the exit status of each process, for each stopped one; 'errors': what they printed;
      'failures': tracebacks, and jobs whose final results are not those of an uninterrupted one.
    """
    codes, errors, failures = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder, 'reference')
        finish(reference, job)
        for victim in range(1 + ('--num_processes=2' in job)):
            workdir = Path(folder, f'run{victim}')
            processes = start_all(workdir, job)
            while not lines_of(workdir) and all(process.poll() is None for process in processes):
                time.sleep(0.01)
            processes[victim].send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            processes[victim].send_signal(signal.SIGCONT)
            codes.append([process.wait() for process in processes])
            log = log_of(workdir).read_text().replace(folder, 'FOLDER')
            errors.append([line for line in log.splitlines() if line.startswith('error: ')])
            failures += 'Traceback' in log
            if not is_finished(workdir):
                finish(workdir, job)
            failures += results(workdir) != results(reference)
    return {'seconds_stopped': seconds, 'codes': codes, 'errors': errors, 'failures': failures}


def main(args: flags.FlagValues) -> None:
    """Kills until there are `--kills` in the file, which is written after every ten, and prints."""
    os.environ.setdefault('PYTHONPATH', os.getcwd())
    job = (*JOB, *KINDS[args.kind])
    report: dict[str, Any] = {'machine': reporting.machine(), 'job': ' '.join(job), 'seconds': 0}
    report |= dict.fromkeys(Count._fields, 0)
    if args.output and Path(args.output).exists():
        report |= json.loads(Path(args.output).read_text())
        if report['job'] != ' '.join(job):
            raise app.UsageError(f'--output={args.output} has the kills of another job.')

    def add(counts: dict[str, int], began: float) -> None:
        report['seconds'] += round(time.monotonic() - began)
        report.update({name: report[name] + number for name, number in counts.items()})
        reporting.write(report, args.output)

    while (left := args.kills - report['kills']) > 0:
        began = time.monotonic()
        seed, ending = args.seed + report['kills'], args.kind == 'endings'
        add(survive(min(left, 10), seed, job, ending=ending)._asdict(), began)
    if args.pause:
        began = time.monotonic()
        report['pause'] = pause(args.pause, job)
        add({'failures': report['pause']['failures']}, began)
    print(json.dumps(report, indent=2))
    if report['failures']:
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_enum('kind', 'run', list(KINDS), 'The job.')
    flags.DEFINE_integer('kills', 30, 'Kills in all, with those in the file.', lower_bound=0)
    flags.DEFINE_integer('seed', 0, 'Seed of the moments of the first ten.')
    flags.DEFINE_float('pause', 0, 'Seconds of a SIGSTOP in another job; 0 for none.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
