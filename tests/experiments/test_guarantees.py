"""The figures on the page of guarantees are those of the committed results."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / 'experiments' / 'results'
PAGE = (ROOT / 'docs' / 'guarantees.md').read_text()
TEXT = ' '.join(PAGE.split())

# Start of a row -> results with the kills that it counts.
KILLS = {
    '`kill -9` of a run,': ['faults'],
    '`kill -9` of `--seeds=2`,': [
        'faults_seeds',
        'faults_sweep',
        'faults_halving',
        'faults_halving_2',
    ],
    '`kill -9` of `--seeds=8`': ['faults_endings'],
    '`kill -9` of one or both': ['faults_processes'],
}


def result(name):
    return json.loads((RESULTS / f'{name}_cpu.json').read_text())


def row(start):
    """The cells of a row of the page."""
    [line] = [line for line in PAGE.splitlines() if line.startswith(f'| {start}')]
    return [cell.strip() for cell in line.strip('|').split('|')]


def numbers(start):
    """The last three cells: tried, survived, lost."""
    return [int(cell) for cell in row(start)[-3:]]


@pytest.mark.parametrize('start', KILLS)
def test_kills(start):
    results = [result(name) for name in KILLS[start]]
    kills = sum(found['kills'] for found in results)
    assert numbers(start) == [kills, kills, 0]
    assert not any(found['failures'] for found in results)
    stated = re.search(r'(\d+)[a-z ]* while a checkpoint was written', row(start)[0])
    if stated:
        assert int(stated[1]) == sum(found['in_checkpoint'] for found in results)


def test_pauses():
    pauses = [result(name)['pause'] for name in ('faults', 'faults_processes')]
    tried = sum(len(pause['codes']) for pause in pauses)
    assert numbers('SIGSTOP') == [tried, tried, 0]
    assert {pause['failures'] for pause in pauses} == {0}


def test_damaged_files_and_failed_writes():
    damaged = [v for v in result('power_loss').values() if isinstance(v, dict) and 'singles' in v]
    cases = sum(found['singles'] + found['pairs'] for found in damaged)
    assert numbers('emptied') == [cases, cases, 0]
    assert cases == sum(found['continued'] + found['named'] for found in damaged)
    failed = [v for v in result('full_disk').values() if isinstance(v, dict) and 'tries' in v]
    tries, refused = (sum(found[name] for found in failed) for name in ('tries', 'refused'))
    assert numbers('failed writes') == [tries, tries, 0]
    assert f'({refused} of {tries})' in TEXT
    assert not any(found['failures'] for found in [*damaged, *failed])


def test_runs_against_the_plain_loop():
    nasty = result('nasty_numbers')
    equal = [
        run['deviation']
        for runs in nasty['methods'].values()
        for run in runs.values()
        if run['kind'] == 'equal'
    ]
    assert len(equal) == nasty['equal']
    assert (
        f'{nasty["runs"]} runs, of which {nasty["equal"]} equal the plain loop to {max(equal):g}, '
        f'{nasty["diverged"]} diverge as it does, {nasty["refused"]} are refused, and '
        f'{nasty["amplified"]} amplify rounding'
    ) in TEXT
    drawn = [json.loads(path.read_text()) for path in RESULTS.glob('combinations_cpu*.json')]
    assert not any(found['failures'] for found in drawn)
    count = sum((Counter(found['outcomes']) for found in drawn), Counter())
    largest = max(found['largest_deviation'] for found in drawn)
    assert (
        f'{count.total() // 1000} {count.total() % 1000:03} experiments, of which '
        f'{count["equal"]} equal it to {largest:g}, {count["refused"]} are refused and '
        f'{count["amplified"]} amplify rounding'
    ) in TEXT


def test_memory_and_calls():
    found = result('resources')
    for network in ('cnn', 'resnet8', 'vgg11'):
        cells = [
            f'{case["estimate_mib"]}, measured {case["measured_mib"]} '
            f'({100 * (case["estimate_mib"] / case["measured_mib"] - 1):+.0f} %)'
            for case in found['memory']
            if case['network'] == network
        ]
        assert row(f'`{network}`')[1:] == cells
    grown, last = found['growth_in_second_half'], found['calls'][-1]
    assert (grown['descriptors'], grown['threads'], grown['arrays']) == (0, 0, 0)
    assert not found['temporary_files_left']
    assert f'array, and {grown["resident"]} MiB' in TEXT and last['call'] == 100


def test_the_soak():
    found = result('soak_tiny')
    assert found['rounds'] == 20_000 and found['job'] == 'tiny'
    each, growth = 1000 / found['rounds_per_second'], 100 * found['resident_growth']
    assert f'took {each:.1f} ms each, {60 * found["rounds_per_second"]:.0f} a minute' in TEXT
    assert f'was {found["throughput_ratio"]:.2f} times as fast' in TEXT
    assert f'memory grew by {growth:.1f} %' in TEXT
    assert f'live arrays by {100 * found["array_growth"]:.0f} %' in TEXT
