"""Damaged files and disks that fail: a run continues with the same results, or names the cause."""

import pytest

from experiments.stress import full_disk, power_loss
from jaxfed.recording import log

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fast(cheap_runs):
    with power_loss.cheap_runs():
        yield


@pytest.mark.parametrize('kind', power_loss.KINDS)
def test_damaged_files_give_the_same_results_or_are_named(kind):
    # The script also fills files with zeros, which takes a third more time.
    found = power_loss.survive(kind, pairs=3, damages=('emptied', 'halved', 'removed'))
    assert not found['failures']
    assert found['continued'] + found['named'] == found['singles'] + found['pairs'] > 20
    assert found['continued'] and found['named']


def test_other_results_and_unclear_errors_are_failures(tmp_path, monkeypatch):
    reference = power_loss.finish(tmp_path / 'whole', 1)
    (tmp_path / 'run' / 's0' / 'checkpoints').mkdir(parents=True)
    assert power_loss.outcome(tmp_path / 'run', [], reference) == 'continued'
    reference[0].metrics[2]['train_loss'] += 1e-9
    assert power_loss.outcome(tmp_path / 'other', [], reference) == 'other results'
    (tmp_path / 'other' / 's0' / 'summary.json').write_text('')
    assert power_loss.outcome(tmp_path / 'other', [], reference).startswith('unclear: ')


def test_torn_lines_continue_after_the_checkpoint_before(tmp_path, caplog):
    reference = power_loss.finish(tmp_path / 'run', 1)
    power_loss.interrupt(tmp_path / 'torn', 1)
    path = tmp_path / 'torn' / 's0' / 'metrics.jsonl'
    assert len(log.read(path.parent, 4)) == 4
    path.write_bytes(b'\n'.join(path.read_bytes().splitlines()[:2]) + b'\n{"round": 3, "te')
    results = power_loss.finish(tmp_path / 'torn', 1)
    assert power_loss.are_equal(results, reference)
    assert results[0].summary['resumed_after'] == 2
    assert 'checkpoint of round 3 cannot be used' in caplog.text
    assert 'metrics.jsonl lacks some of the first 3 rounds' in caplog.text


@pytest.mark.parametrize('seeds', [1, 2])
def test_every_write_may_fail(seeds, tmp_path):
    count = full_disk.fail_every_write(tmp_path / 'work', seeds)
    assert not count.failures
    assert count.tries == count.completed + count.stopped > 10
    assert count.stopped > 10


def test_a_folder_that_is_taken_away_stops_the_run(tmp_path):
    tmp_path.chmod(0o755)
    count = full_disk.take_away(tmp_path / 'work', 1)
    assert not count.failures
    assert count.tries == count.stopped + count.refused == 2 * power_loss.ROUNDS
    assert count.refused <= power_loss.ROUNDS <= count.stopped
