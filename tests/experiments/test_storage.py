"""Damaged files and disks that fail: a run continues with the same results, or names the cause."""

import pytest

from experiments.stress import full_disk, power_loss
from jaxfed.recording import log, run_files

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fast(cheap_runs):
    with power_loss.fast_runs():
        yield


# The same damages in every run; the script tries each of each file, and two seeds without a sweep.
@pytest.mark.parametrize('kind', ['run', 'seeds without a summary', 'sweep', 'finished sweep'])
def test_damaged_files_give_the_same_results_or_are_named(kind):
    found = power_loss.survive(kind, singles=20, pairs=3)
    assert not found['failures']
    assert found['continued'] + found['named'] == found['singles'] + found['pairs'] > 15
    assert found['continued'] and found['named']


def test_other_results_and_unclear_errors_are_failures(tmp_path, monkeypatch):
    run = power_loss.JOBS['run']
    reference = run.finish(tmp_path / 'whole')
    (tmp_path / 'run' / 's0' / 'checkpoints').mkdir(parents=True)
    assert power_loss.outcome(run, tmp_path / 'run', [], reference) == 'continued'
    reference[0][0][2]['train_loss'] += 1e-9
    assert power_loss.outcome(run, tmp_path / 'other', [], reference) == 'other results'
    (tmp_path / 'other' / 's0' / 'summary.json').write_text('')
    assert power_loss.outcome(run, tmp_path / 'other', [], reference).startswith('unclear: ')


def test_torn_lines_continue_after_the_checkpoint_before(tmp_path, caplog):
    run = power_loss.JOBS['run']
    reference = run.finish(tmp_path / 'run')
    power_loss.interrupt(run, tmp_path / 'torn')
    path = tmp_path / 'torn' / 's0' / 'metrics.jsonl'
    assert len(log.read(path.parent, 4)) == 4
    path.write_bytes(b'\n'.join(path.read_bytes().splitlines()[:2]) + b'\n{"round": 3, "te')
    assert power_loss.are_equal(run.finish(tmp_path / 'torn'), reference)
    assert run_files.read_summary(path.parent / 'summary.json')['resumed_after'] == 2
    assert 'checkpoint of round 3 cannot be used' in caplog.text
    assert 'metrics.jsonl lacks some of the first 3 rounds' in caplog.text


@pytest.mark.parametrize('job, step', [('run', 1), ('sweep', 3)])  # the script tries all
def test_every_write_may_fail(job, step, tmp_path):
    count = full_disk.fail_every_write(power_loss.JOBS[job], tmp_path / 'work', step)
    assert not count.failures
    assert count.tries == count.completed + count.stopped > 10
    assert count.stopped > 10


def test_a_folder_that_is_taken_away_stops_the_run(tmp_path):
    tmp_path.chmod(0o755)
    count = full_disk.take_away(power_loss.JOBS['run'], tmp_path / 'work')
    assert not count.failures
    assert count.tries == count.stopped + count.refused == 2 * power_loss.ROUNDS
    assert count.refused <= power_loss.ROUNDS <= count.stopped
