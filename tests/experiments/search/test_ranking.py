"""The ranking of combinations, and its report."""

import csv
import json

import pytest

from experiments.grid import runner
from experiments.grid.scores import Score, score_of
from experiments.search import ranking, report
from experiments.search.cells import make_search
from experiments.search.ranking import Ranked


def test_ranking_of_ties_failed_and_missing_runs(tmp_path, monkeypatch):
    scored = {
        '--beta=1': Score(2, (50.001, 49.999)),
        '--beta=2': Score(2, (60.0,), 1),
        '--beta=3': Score(2, (50.002,)),
        '--beta=4': Score(2),
        '--beta=5': Score(2, (49.0, 48.0)),
        '--beta=6': Score(2, (50.0, 50.001)),
    }
    made = make_search(
        method='kd', axes=['beta:1,2,3,4,5,6'], seeds=2, output=tmp_path, flags_=['--rounds=1']
    )
    monkeypatch.setattr(
        ranking, 'score_of_cells', lambda cells, _: (scored[cells[0].variant[0]], 0)
    )
    ranks = ranking.rank(made)
    assert [(ranked.flags[0], ranked.place) for ranked in ranks] == [
        ('--beta=1', 1), ('--beta=6', 1), ('--beta=5', 3),
        ('--beta=2', 0), ('--beta=3', 0), ('--beta=4', 0),
    ]  # fmt: skip
    words = report.settled(ranks)
    assert words.startswith('Chosen: --beta=1; 2 combinations share the first place')
    assert 'not all runs are done' in words
    assert report.command_of(made, ranks[0]).endswith(' --validation=0 --seeds=2')
    text = report.markdown(made, ranks)
    assert '| 1 | 1 | 50.00 | 0.00 | 2 of 2 | 0 | - |' in text
    assert '| - | 2 | 60.00 | - | 2 of 2 | 1 | - |' in text
    assert '| - | 3 | 50.00 | - | 1 of 2 | 0 | - |' in text
    assert '| - | 4 | - | - | 0 of 2 | 0 | - |' in text
    for score, reason in {
        Score(1): 'no combination has all its seeds',
        Score(1, (), 1): 'a run of every combination diverged',
        Score(1, (50.0,)): 'only some seeds of every combination were trained',
    }.items():
        assert reason in report.settled([Ranked(('--beta=4',), score, 0)])


def test_a_run_without_a_personal_accuracy_has_no_score():
    summary = {'failed': False, 'best_accuracy': 0.5, 'personal_accuracy': None}
    runs = {0: runner.RecordedCell({}, summary, [])}
    assert score_of(runs, {}, asked=1, score='personal').accuracies == ()
    assert score_of(runs, {}, asked=1, score='best').accuracies == (50.0,)


def test_stopped_combinations_rank_below_finished_ones(tmp_path, monkeypatch):
    scored = {
        '--beta=1': (Score(2, (70.0, 70.0)), 2),
        '--beta=2': (Score(2, (60.0, 60.0)), 0),
        '--beta=3': (Score(2, (65.0, 66.0)), 4),
        '--beta=4': (Score(2, (), 2), 0),
        '--beta=5': (Score(2, (60.0, 60.0)), 4),
    }
    made = make_search(
        method='kd', axes=['beta:1,2,3,4,5'], seeds=2, output=tmp_path, flags_=['--rounds=6'],
        halving='4,2',
    )  # fmt: skip
    assert made.rungs == (2, 4)
    monkeypatch.setattr(ranking, 'score_of_cells', lambda cells, _: scored[cells[0].variant[0]])
    ranks = ranking.rank(made)
    assert [(ranked.flags[0], ranked.place) for ranked in ranks] == [
        ('--beta=2', 1), ('--beta=3', 0), ('--beta=5', 0), ('--beta=1', 0), ('--beta=4', 0),
    ]  # fmt: skip
    text = 'Stopped early after round 2: --beta=1. Stopped early after round 4: --beta=3; --beta=5.'
    assert report.given_up(ranks) == text
    assert text in report.markdown(made, ranks)
    assert '| - | 3 | 65.50 | 0.71 | 2 of 2 | 0 | 4 |' in report.markdown(made, ranks)
    assert json.loads(report.as_json(made, ranks))['chosen'] == ['--beta=2']
    lines = list(csv.DictReader(report.as_csv(made, ranks).splitlines()))
    assert [line['given up'] for line in lines] == ['', '4', '4', '2', '']
    # The winner has diverged.
    scored['--beta=2'] = Score(2, (60.0,), 1), 0
    ranks = ranking.rank(made)
    assert [(ranked.flags[0], ranked.place) for ranked in ranks][:3] == [
        ('--beta=3', 1), ('--beta=5', 2), ('--beta=1', 3),
    ]  # fmt: skip
    assert 'it stopped early, and all others failed' in report.settled(ranks)


def test_runs_evaluated_on_test_data_are_refused(tmp_path, monkeypatch):
    made = make_search(method='kd', axes=['beta:1'], output=tmp_path)
    summary = {'evaluated_on': 'test', 'failed': False}
    monkeypatch.setattr(runner, 'is_done', lambda cell: True)
    monkeypatch.setattr(runner, 'read', lambda cell: runner.RecordedCell({}, summary, []))
    with pytest.raises(ValueError, match='was evaluated on test data'):
        ranking.rank(made)
