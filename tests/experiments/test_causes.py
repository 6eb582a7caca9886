"""What makes the released clients harder: the committed tables."""

import shutil

from experiments.fedlmd import causes


def test_the_committed_tables_follow_from_the_records():
    page = (causes.RECORDS / 'README.md').read_text()
    assert all(table in page for table in causes.make_tables())


def test_a_run_is_described_by_its_first_hundred_rounds(tmp_path):
    run = causes.RECORDS / 'released' / 'fedlmd' / 'cifar10_lda0.05' / 'FedAvg' / 'seed0'
    copy = tmp_path / 'run'
    shutil.copytree(run, copy)
    path = copy / 'metrics.jsonl'
    lines = path.read_text().splitlines()
    assert len(lines) == 200
    before = causes.describe(copy)
    # Rounds after the hundredth have no effect, the fifty-first has.
    later = [line.replace('"test_accuracy": 0.', '"test_accuracy": 0.9') for line in lines[100:]]
    path.write_text('\n'.join([*lines[:100], *later]) + '\n')
    assert causes.describe(copy) == before
    changed = lines[50].replace('"test_accuracy": 0.', '"test_accuracy": 0.9')
    path.write_text('\n'.join([*lines[:50], changed, *lines[51:]]) + '\n')
    now = causes.describe(copy)
    assert now[0] == before[0] and float(now[1]) > float(before[1]) and float(now[2]) > 90
