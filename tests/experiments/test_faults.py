"""Real processes are interrupted: the records are those of an uninterrupted run."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.stress import faults
from jaxfed.recording.run_files import METRICS, MODEL, SUMMARY

pytestmark = pytest.mark.slow

JOB = (
    '--method=scaffold+fedavgm',
    '--model=mlp',
    '--rounds=16',  # each writes a checkpoint
    '--num_clients=8',
    '--clients_per_round=3',
    '--local_epochs=1',
    '--measure=forgetting,consistency',
    '--dropout=0.2',
    '--devices=1',
    '--checkpoint_every=1',
)


def test_killed_locked_terminated_and_resumed_without_leftovers(tmp_path):
    reference, workdir = tmp_path / 'reference', tmp_path / 'run'
    faults.finish(reference, JOB)
    # kill -9 while a checkpoint is written
    where = faults.kill_one(workdir, JOB, 0.05, faults.is_writing)
    assert where in ('checkpoint', 'training')
    assert not list(faults.temporary_of(workdir).iterdir())
    assert not (workdir / SUMMARY).exists()
    lines, saved = faults.recorded(workdir), faults.saved_round(workdir)
    assert lines and lines == faults.recorded(reference)[: len(lines)]
    # it resumes, and a second process is refused
    process = faults.start(workdir, JOB)
    while (rounds := len(faults.recorded(workdir))) < min(saved + 2, 14) or rounds == len(lines):
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        second = subprocess.run(
            [sys.executable, '-m', 'jaxfed.main', *JOB, f'--workdir={workdir}'],
            capture_output=True,
            text=True,
        )
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert second.returncode == 2
    assert 'another process uses it' in second.stderr
    # SIGTERM ends it after a round, with a checkpoint
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == 143
    rounds = len(faults.recorded(workdir))
    assert faults.saved_round(workdir) == rounds < 16
    log = (tmp_path / 'run.log').read_text()
    assert f'stopped after round {rounds}; to continue: python -m jaxfed' in log
    # the final records are those of the uninterrupted run
    faults.finish(workdir, JOB)
    assert faults.recorded(workdir) == faults.recorded(reference)
    assert (workdir / MODEL).read_bytes() == (reference / MODEL).read_bytes()
    assert json.loads((workdir / SUMMARY).read_text())['resumed_after'] == rounds
    assert len((workdir / METRICS).read_text().splitlines()) == 16
    assert not faults.leftovers(workdir)
    assert {path.name for path in workdir.rglob('*')} == {
        '.lock', 'accuracy.png', 'config.json', 'metrics.jsonl', 'model.safetensors',
        'partition.json', 'partition.png', 'summary.json',
    }  # fmt: skip


@pytest.mark.parametrize('sweep', [(), (faults.GRID,)], ids=['run', 'sweep'])
def test_one_of_two_processes_that_start_together_trains(sweep, tmp_path):
    reference, workdir, job = tmp_path / 'reference', tmp_path / 'run', (*JOB, '--rounds=8', *sweep)
    faults.finish(reference, job)
    processes = [faults.start(workdir, job) for _ in range(2)]
    codes = sorted(process.wait() for process in processes)
    # A process that starts after the end of the other shows the results of a sweep.
    assert codes == [0, 2] or (sweep and codes == [0, 0])
    log = (tmp_path / 'run.log').read_text()
    assert log.count('error: --workdir=') == codes.count(2) and 'Traceback' not in log
    assert faults.results(workdir) == faults.results(reference)


@pytest.mark.parametrize('kind', ['seeds', 'processes'])
def test_a_killed_sweep_and_pair_of_processes_continue(kind):
    halves = [faults.GRID, '--halving=10', '--validation=0.2'] if kind == 'seeds' else []
    rounds = ('--rounds=20', *halves)
    # With this seed, a kill while a checkpoint is written.
    counts = faults.survive(1, 2, (*faults.JOB, *faults.KINDS[kind], *rounds))
    assert counts.kills == 1 and not counts.failures


def test_a_sweep_that_is_killed_while_its_runs_end_continues():
    job = (*faults.JOB, *faults.KINDS['endings'])
    counts = faults.survive(1, 1, job, ending=True)
    assert counts.kills == 1 and not counts.failures
