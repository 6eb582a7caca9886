"""The search with Optuna: its choices, its study, and the trials that it stops."""

import importlib.util
import json
import re

import pytest

from experiments.grid import runner
from experiments.search.__main__ import main
from experiments.search.cells import OptunaSettings, make_search
from tests.experiments.search.test_search import plain_npz, stamps

optuna = pytest.importorskip('optuna')
from experiments.search import study, trials  # noqa: E402

STATES = optuna.trial.TrialState
SEARCH = (
    '--method=fedavg', '--sampler=optuna', '--range=learning_rate:.003..1:log', '--rounds=3',
    '--grid=momentum:0,.9', '--validation=.25', '--together=6',
)  # fmt: skip


def make(tmp_path, *, ranges=('beta:0..1', 'gamma:0..1'), axes=(), count=20, seed=0, **changes):
    return make_search(
        **{'method': 'fedcad', 'flags_': ['--rounds=20']} | changes,
        axes=axes,
        ranges=ranges,
        optuna=OptunaSettings(count, seed, 'median'),
        output=tmp_path,
    )


def results(folder):
    """Number, flags, state, value and rounds of all trials in a study."""
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(folder / 'study.journal'))
    )
    held = optuna.load_study(study_name='search', storage=storage).trials
    return [(t.number, t.params, t.state, t.value, t.intermediate_values) for t in held]


def values(folder):
    """The report of a search."""
    return json.loads((folder / 'search.json').read_text())


@pytest.mark.slow
def test_batches_fill_a_program_and_the_median_stops_trials(command, programs, tmp_path, capsys):
    plain_npz(tmp_path / 'tiny.npz')
    assert command(*SEARCH, '--trials=12', '--seeds=1', '--output=a') == 0
    shown = ' '.join(capsys.readouterr().out.split())
    assert '6 trials, up to trial 6 of 12' in shown and '6 trials, up to trial 12 of 12' in shown
    assert programs == [6, 6]
    found, report = results(tmp_path / 'a'), values(tmp_path / 'a')
    assert [state for _, _, state, _, _ in found[:6]] == [STATES.COMPLETE] * 6
    assert (report['sampler'], report['trials'], report['pruner']) == ('optuna', 12, 'median')
    assert report['grid'] == {'momentum': ['0', '.9']}
    assert report['ranges'] == {'learning_rate': '0.003..1.0:log'}
    given_up = {entry['flags'][1]: entry['given_up_after'] for entry in report['ranking']}
    for _, params, state, value, rounds in found:
        after = given_up[f'--learning_rate={params["learning_rate"]:g}']
        assert (state == STATES.PRUNED) == (after is not None)
        assert [*rounds] == [*range(1, (after or 3) + 1)]
        best = max(rounds.values())
        assert value == pytest.approx(best if after is None else rounds[after])
    # Low rates learn slowly.
    assert any(given_up.values())
    assert report['ranking'][0]['mean'] == max(v for _, _, s, v, _ in found if s == STATES.COMPLETE)
    assert 'Optuna chose 12 trials, --sampler_seed=0, with 12 different combinations' in shown
    assert 'below the median of the completed trials' in shown
    for path in (tmp_path / 'a').rglob('summary.json'):
        assert json.loads(path.read_text())['evaluated_on'] == 'validation'
    # The same command trains nothing, and a larger number of trials continues.
    before = stamps(tmp_path / 'a' / 'flags')
    assert command(*SEARCH, '--trials=12', '--output=a') == 0
    assert stamps(tmp_path / 'a' / 'flags') == before
    assert results(tmp_path / 'a') == found and programs == [6, 6]
    # A grid must not meet runs that stopped early.
    assert command('--method=fedavg', '--grid=learning_rate:1', '--output=a') == 2
    assert 'with --sampler=optuna; give another' in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_search_continues_as_if_it_had_not_stopped(
    command, programs, tmp_path, stopped_before, monkeypatch
):
    plain_npz(tmp_path / 'tiny.npz')
    flags = (*SEARCH, '--trials=9', '--seeds=2')  # three trials in a program
    assert command(*flags, '--output=a') == 0
    with stopped_before(2):  # in the first batch
        command(*flags, '--output=b')
    assert {state for _, _, state, _, _ in results(tmp_path / 'b')} == {STATES.RUNNING}

    inner, calls = study.tell_finished, []

    def record_then_stop(search, journal):
        """The process is killed after the second batch, before the study has its results."""
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        inner(search, journal)

    with monkeypatch.context() as patch:
        patch.setattr(study, 'tell_finished', record_then_stop)
        assert command(*flags, '--output=b') == 130
    with (tmp_path / 'b' / 'study.journal').open('a') as file:
        file.write('{"op_code": 5, "wor')  # a part of a line
    (tmp_path / 'b' / 'study.journal.lock').touch()
    with stopped_before(3):  # in the third batch
        command(*flags, '--output=b')
    assert command(*flags, '--output=b') == 0
    assert results(tmp_path / 'a') == results(tmp_path / 'b')
    a, b = values(tmp_path / 'a'), values(tmp_path / 'b')
    assert a == b and any(entry['given_up_after'] for entry in a['ranking'])
    # The seeds of a trial stop together.
    for entry in a['ranking']:
        assert len(entry['accuracies']) == 2


@pytest.mark.slow
def test_halving_stops_the_worse_half_of_a_batch(command, programs, tmp_path):
    plain_npz(tmp_path / 'tiny.npz')
    flags = (*SEARCH[:4], *SEARCH[5:], '--trials=4', '--halving=1', '--output=a')
    assert command(*flags) == 0
    report = values(tmp_path / 'a')
    assert (report['pruner'], report['halving']) == ('none', [1])
    assert sorted(str(entry['given_up_after']) for entry in report['ranking']) == [
        '1', '1', 'None', 'None',
    ]  # fmt: skip
    assert [s for _, _, s, _, _ in results(tmp_path / 'a')].count(STATES.PRUNED) == 2


def test_choices_follow_from_the_seed_and_earlier_trials(tmp_path):
    axes = {'method': 'kd', 'axes': ['tau:1,3'], 'ranges': ['beta:.1..10:log']}
    search = make(tmp_path, **axes)
    made, first = study.ask(search, [], 6)
    params = [trial.params for trial in first]
    assert made.chosen == 6 and len(made.cells) == 6
    assert [trial.params for trial in study.ask(search, [], 6)[1]] == params
    # A part of the batch was stored before the process ended.
    _, rest = study.ask(study.with_trials(search, first[:2]), first[:2], 4)
    assert [trial.params for trial in rest] == params[2:]
    _, other = study.ask(make(tmp_path, **axes, seed=1), [], 6)
    assert [trial.params for trial in other] != params
    assert len({p['beta'] for p in params}) == 6
    assert {p['tau'] for p in params} == {'1', '3'} and all(0.1 <= p['beta'] <= 10 for p in params)


@pytest.mark.parametrize(
    'earlier, waiting, seeds, count',
    [
        (0, False, 1, 6), (6, False, 1, 6), (6, True, 1, 0), (4, True, 1, 2), (18, False, 1, 2),
        (20, False, 1, 0), (30, False, 1, 0), (0, False, 4, 1), (0, False, 9, 1), (0, False, 3, 2),
    ],
)  # fmt: skip
def test_size_of_a_batch(tmp_path, earlier, waiting, seeds, count):
    search = make(tmp_path, seeds=seeds)._replace(chosen=earlier)
    assert trials._count(search, together=6, waiting=waiting) == count


def test_a_batch_with_halving_has_two_trials(tmp_path):
    for seeds, count in ((1, 6), (9, 2)):
        search = make(tmp_path, seeds=seeds, method='kd', ranges=['beta:0..1'], halving='5')
        assert trials._count(search, together=6, waiting=False) == count


def test_a_batch_knows_the_batches_before_it(tmp_path):
    search, chosen = study.ask(make(tmp_path), [], 12)
    runnable = [t for t in chosen if study.combination_of(search, t) in search.cells]
    assert len(runnable) == 12 < len(chosen)  # some are refused
    for due, parts in (
        (runnable[6:], [(6, runnable[6:])]),
        (runnable[8:10], [(6, runnable[8:10])]),  # two of an interrupted batch are finished
        ([runnable[1], *runnable[7:]], [(0, runnable[1:2]), (6, runnable[7:])]),  # one failed
    ):
        expected = [(runnable[:known], part) for known, part in parts]
        assert trials._batches(search, chosen, due, size=6) == expected


def test_streamed_experiments_are_chosen_one_by_one(tmp_path):
    search = make(tmp_path, flags_=['--stream=on'])
    assert trials._count(search, together=6, waiting=False) == 1


def finished(value, rounds, state=STATES.COMPLETE):
    return optuna.trial.create_trial(
        state=state,
        value=value,
        params={'beta': 0.5},
        distributions={'beta': optuna.distributions.FloatDistribution(0, 1)},
        intermediate_values=dict(enumerate(rounds, 1)),
    )


def entries(*accuracies):
    return [{'round': r, 'test_accuracy': a} for r, a in enumerate(accuracies, 1)]


def test_the_median_of_completed_trials_stops_a_trial(tmp_path):
    search = make(tmp_path, ranges=['beta:0..1'], method='kd', seeds=2, axes=())
    search = search._replace(config=search.config.__class__(rounds=16))
    search, _ = study.ask(search, [], 2)
    cells = search.every
    assert [cell.seed for cell in cells] == [0, 1, 0, 1]
    accuracies = [10, 20, 30, 40]
    earlier = [finished(50, [a] * 5) for a in (20, 30, 40, 50)]
    stop = trials.median_rule(search, earlier)(cells)
    low, high = entries(*[0.1] * 4), entries(*[0.9] * 4)
    assert stop(4, [low, low, high, high], [0, 1, 2, 3]) == []  # too few trials are complete
    pruned = finished(None, accuracies, STATES.PRUNED)
    stop = trials.median_rule(search, [*earlier, finished(50, [60] * 5), pruned])(cells)
    assert stop(4, [low, low, high, high], [0, 1, 2, 3]) == [0, 1]
    assert stop(4, [low, low, low, low], [2, 3]) == [2, 3]
    # The mean over the seeds counts: 50 is above the median of 40.
    assert stop(4, [low, high, high, high], [0, 1, 2, 3]) == []
    # The best round so far counts.
    once = entries(0.1, 0.9, 0.1, 0.1)
    assert stop(4, [once, once, high, high], [0, 1, 2, 3]) == []
    # Rounds that were not evaluated, and the first quarter.
    late = entries(0.1, 0.1, 0.1, None)
    assert stop(4, [late, late, high, high], [0, 1, 2, 3]) == []
    assert stop(2, [low[:2], low[:2], high[:2], high[:2]], [0, 1, 2, 3]) == []
    # A seed that diverged stops the others.
    assert stop(1, [high, high, high, high], [0, 2, 3]) == [0]
    # Not before they have an accuracy.
    assert stop(1, [entries(None)] * 2 + [high] * 2, [0, 2, 3]) == []
    # Seeds in several programs are not compared.
    alone = trials.median_rule(search, [*earlier, finished(50, [60] * 5)])(cells[:3])
    assert alone(4, [high, high, low], [0, 1, 2]) == []


def test_refused_combinations_are_replaced(tmp_path):
    search = make(tmp_path)  # beta must be at most gamma
    made, found = study.ask(search, [], 6)
    states = [trial.state for trial in found]
    assert states.count(STATES.RUNNING) == made.chosen == len(made.cells) == 6
    assert states.count(STATES.PRUNED) == len(made.skipped) > 0
    assert all('beta <= gamma' in reason for reason in made.skipped.values())
    for cut in (2, len(found) - 1):  # where the process ended
        earlier = study.with_trials(search, found[:cut])
        again, rest = study.ask(earlier, found[:cut], 6 - earlier.chosen)
        assert [t.params for t in rest] == [t.params for t in found[cut:]]
        assert again == made
    with pytest.raises(ValueError, match='no combination can be run: '):
        study.ask(make(tmp_path, ranges=['beta:2..3']), [], 2)


def test_results_of_trials(tmp_path, monkeypatch):
    search = make(tmp_path)
    with study.opened(search) as journal:
        search, asked = study.ask(search, [], 4)
        journal.study.add_trials(asked)
        failed, given_up, whole = [cells[0].folder for cells in search.cells.values()][:3]
        rounds = {failed: 2, given_up: 1, whole: 20}

        def read(cell):
            last = rounds[cell.folder]
            summary = {
                'evaluated_on': 'validation', 'failed': cell.folder == failed, 'rounds': last,
                'stopped_early': cell.folder == given_up, 'best_accuracy': 0.7,
            }  # fmt: skip
            return runner.RecordedCell({}, summary, entries(*[0.5] * (last - 1), 0.7))

        monkeypatch.setattr(runner, 'is_done', lambda cell: cell.folder in rounds)
        monkeypatch.setattr(runner, 'read', read)
        study.tell_finished(search, journal)
    expected = {failed: STATES.PRUNED, given_up: STATES.PRUNED, whole: STATES.COMPLETE}
    for trial in study.read(search):
        combination = study.combination_of(search, trial)
        if combination in search.skipped:
            assert (trial.state, trial.value) == (STATES.PRUNED, None)
            continue
        folder = search.cells[combination][0].folder
        assert trial.state == expected.get(folder, STATES.RUNNING)
        if folder in rounds:
            assert trial.value == pytest.approx(70)
            assert [*trial.intermediate_values] == [*range(1, rounds[folder] + 1)]


def test_other_searches_and_damaged_studies_are_refused(tmp_path):
    with study.opened(make(tmp_path)) as journal:
        _, chosen = study.ask(make(tmp_path, ranges=['beta:0...1', 'gamma:.9..1']), [], 1)
        journal.study.add_trials(chosen)
        busy = pytest.raises(ValueError, match='another process runs this search')
        with busy, study.opened(make(tmp_path)):
            pass
    assert len(study.read(make(tmp_path, count=30))) == 1
    refused = {
        '--range=beta:0.0..1.0 --range=gamma:0.0..1.0, not --range=beta:0.0..0.5 --range=gamma':
            {'ranges': ('beta:0...5', 'gamma:0..1')},
        'holds a search with --range=beta:0.0..1.0 --range=gamma:0.0..1.0, not --grid=tau:1,3; '
        '--method=fedcad, not --method=kd': {'method': 'kd', 'axes': ['tau:1,3'], 'ranges': ()},
        '--seeds=1, not --seeds=2': {'seeds': 2},
        '--score=best, not --score=final': {'score': 'final'},
        '--sampler_seed=0, not --sampler_seed=3': {'seed': 3},
        'flag file flags, not flag file fedcad/cifar10_dirichlet0.5':
            {'column': 'fedcad/cifar10_dirichlet0.5'},
    }  # fmt: skip
    for message, changes in refused.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            study.read(make(tmp_path, **changes))
    path = tmp_path / 'study.journal'
    path.write_text('{}\n' + path.read_text())
    with pytest.raises(ValueError, match=r'study.journal cannot be read \(.*\); move it away'):
        study.read(make(tmp_path))


@pytest.mark.slow
def test_trials_with_an_error_stay_open(command, tmp_path, monkeypatch):
    plain_npz(tmp_path / 'tiny.npz')
    sizes = []

    def run_cells(cells, **_):
        sizes.append(len(cells))
        return {cell.name: 'no memory' for cell in cells}

    monkeypatch.setattr(runner, 'run_cells', run_cells)
    assert command(*SEARCH, '--trials=8', '--output=a') == 1
    assert {state for _, _, state, _, _ in results(tmp_path / 'a')} == {STATES.RUNNING}
    # The next start repeats their batches, and chooses no others.
    assert command(*SEARCH, '--trials=8', '--output=a') == 1
    assert sizes == [6, 2, 6, 2] and len(results(tmp_path / 'a')) == 8
    assert values(tmp_path / 'a')['chosen'] is None


def test_a_dry_run_writes_nothing(command, tmp_path, capsys):
    plain_npz(tmp_path / 'tiny.npz')
    before = stamps(tmp_path)
    assert command(*SEARCH, '--trials=20', '--output=a', '--dry_run') == 0
    shown = capsys.readouterr().out
    assert shown.count('to run') == 6
    assert '6 of 20 trials are chosen' in shown
    assert stamps(tmp_path) == before and not (tmp_path / 'a').exists()


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--range=beta:0..1'], '--range=beta:0..1 needs --sampler=optuna'),
        (['--grid=beta:1', '--trials=3'], '--trials=3 needs --sampler=optuna'),
        (['--grid=beta:1', '--pruner=none'], '--pruner=none needs --sampler=optuna'),
        (['--grid=beta:1', '--sampler_seed=1'], '--sampler_seed=1 needs --sampler=optuna'),
        (['--grid=beta:1', '--sampler=random'], 'sampler'),
        (['--range=beta:0..1', '--sampler=optuna'], 'needs --trials, as in --trials=32'),
        (['--range=beta:0..1', '--sampler=optuna', '--trials=0'], '--trials must be at least 1'),
        (['--sampler=optuna', '--trials=3'], '--grid is missing'),
        (
            ['--range=beta:0..1', '--sampler=optuna', '--trials=3', '--sampler_seed=-1'],
            '--sampler_seed must be at least 0, got -1',
        ),
        (
            [
                '--range=beta:0..1', '--sampler=optuna', '--trials=3', '--pruner=median',
                '--halving=2',
            ],
            '--halving=2 and --pruner=median: leave one of them out',
        ),
        (
            [
                '--range=beta:0..1', '--sampler=optuna', '--trials=3', '--pruner=median',
                '--score=personal',
            ],
            '--score=personal and --pruner=median: the pruner compares global models',
        ),
        (
            [
                '--range=beta:0..1', '--sampler=optuna', '--trials=3', '--seeds=3', '--together=2',
            ],
            '--pruner=median compares whole trials: --together must be at least 3',
        ),
        (
            ['--range=beta:-2..-1', '--sampler=optuna', '--trials=3'],
            'no combination can be run: ',
        ),
        (
            ['--range=beta:0..1', '--sampler=optuna', '--trials=3', '--', '--beta=2'],
            '--beta=2.0 is searched',
        ),
        (
            ['--range=beta:0..1', '--sampler=optuna', '--trials=3', '--', '--dataset=no_such'],
            'no_such',
        ),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)  # fmt: skip
def test_invalid_input_is_refused_before_the_first_run(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(['--method=kd', *arguments]) == 2
    shown = capsys.readouterr()
    assert re.fullmatch(r'error: .*\n', shown.err)
    assert message in shown.err
    assert not list(tmp_path.iterdir())


def test_a_missing_optuna_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    assert main(['--method=kd', '--range=beta:0..1', '--sampler=optuna', '--trials=3']) == 2
    assert "needs the package optuna: pip install -e '.[optuna]'" in capsys.readouterr().err
