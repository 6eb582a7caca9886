"""The numbers of a grid's cells: accuracy over the seeds, rounds to a target, cost."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from experiments.grid.published import BASELINE
from experiments.grid.runner import RecordedCell
from jaxfed.metrics import (
    mean_and_deviation,
    mean_of_last,
    moving_average,
    rounds_to_target,
    speed_up,
)
from jaxfed.metrics.curves import Curve

SCORES = {  # name -> which accuracy, over the rounds
    'best': 'the best over the rounds',
    'final': 'after the last round',
    'last10': 'mean of the last ten rounds',
    'moving': 'exponential moving average after the last round, weight 0.6 on the past',
    'best_moving': 'the highest exponential moving average, weight 0.6 on the past',
}
# For methods with a model for each client.
PERSONAL = {'personal': "of local models on their clients' held-out examples, in the last round"}


class Score(NamedTuple):
    """Runs of one row and column with different seeds."""

    asked: int  # requested seeds
    accuracies: tuple[float | None, ...] = ()  # percent, of the runs that did not diverge
    failed: int = 0  # runs that diverged, or stopped before they were evaluated
    # Rounds or speed-up of the runs with a known target; None: not reached.
    speeds: tuple[float | None, ...] = ()
    lacking: str = ''  # why other runs have none: 'FedAvg not run', 'FedAvg failed', 'no target'

    @property
    def done(self) -> int:
        """Number of finished runs."""
        return len(self.accuracies) + self.failed

    @property
    def mean(self) -> float | None:
        """Mean accuracy in percent."""
        return mean_and_deviation(self.accuracies)[0]

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None for less than two runs."""
        return mean_and_deviation(self.accuracies)[1]

    @property
    def speed(self) -> float | None:
        """Mean over the runs that reached the target."""
        return mean_and_deviation(self.speeds)[0]


class RowCost(NamedTuple):
    """The cost of the runs of a row."""

    runs: int
    hours: float
    client_steps: float  # of all runs
    upload: float  # of a client and round, relative to FedAvg's; the maximum over the runs
    download: float
    forward_passes: int  # a local step, in addition to the local model's own
    auxiliary: int  # examples a class that the method uses on the server
    set_aside: int  # examples that were set aside, the maximum over the runs


def accuracy(run: RecordedCell, score: str) -> float | None:
    """The accuracy of a run in percent; `score` is one of `SCORES` or `PERSONAL`.

    None for a run that stopped early, with no evaluation in its last ten rounds.
    """
    # Records of earlier versions lack the averages.
    if score == 'last10':
        return mean_of_last(curve_of(run))
    if 'moving' in score:
        averages = moving_average([entry['test_accuracy'] for entry in run.metrics])
        return 100 * (averages[-1] if score == 'moving' else max(averages))
    return 100 * float(run.summary[f'{score}_accuracy'])


def curve_of(run: RecordedCell) -> Curve:
    """The rounds of a run and their accuracies in percent."""
    shares = [entry['test_accuracy'] for entry in run.metrics]
    percents = [None if share is None else 100 * share for share in shares]
    return [entry['round'] for entry in run.metrics], percents


def score_of(
    runs: Mapping[int, RecordedCell],
    baselines: Mapping[int, RecordedCell],
    *,
    asked: int,
    score: str,
    speed: str = '',
    target: str = '',
) -> Score:
    """Summarise the runs of one row and column.

    Args:
      runs: seed -> finished run.
      baselines: seed -> run of the baseline.
      asked: requested number of seeds.
      score: one of `SCORES`, or `PERSONAL`.
      speed: '', 'rounds' to the target, or 'speed-up': the baseline's rounds over the run's.
      target: 'flag' for the run's --target_accuracy, 'baseline' for the baseline's score, of an
        average its best.

    Returns:
      The score.
    """
    kept = {seed: run for seed, run in runs.items() if _has_accuracy(run, score)}
    speeds: list[float | None] = []
    lacking = ''
    compares = compares_with_baseline(speed, target)
    for seed, run in kept.items() if speed else ():
        baseline = baselines.get(seed)
        if compares and baseline is None:
            lacking = f'{BASELINE} not run'
            continue
        goal = _goal(run, baseline, target, score)
        if goal is None:
            lacking = lacking or (f'{BASELINE} failed' if compares else 'no target')
            continue
        if baseline is None or speed == 'rounds':
            speeds.append(rounds_to_target(curve_of(run), goal))
        else:
            speeds.append(speed_up(curve_of(baseline), curve_of(run), goal))
    accuracies = tuple(accuracy(run, score) for run in kept.values())
    return Score(asked, accuracies, len(runs) - len(kept), tuple(speeds), lacking)


def _has_accuracy(run: RecordedCell, score: str) -> bool:
    """Whether a run did not diverge, and did not stop before it was evaluated."""
    field = 'personal_accuracy' if score in PERSONAL else 'best_accuracy'
    return not run.summary['failed'] and run.summary[field] is not None


def _goal(
    run: RecordedCell, baseline: RecordedCell | None, target: str, score: str
) -> float | None:
    """The accuracy to reach in percent, None if it is unknown."""
    if target == 'flag':
        share = run.config['target_accuracy']
        return None if share is None else 100 * share
    if baseline is None or not _has_accuracy(baseline, score):
        return None
    return accuracy(baseline, goal_of(score))


def goal_of(score: str) -> str:
    """The score of the baseline that others have to reach; no round has an average."""
    return score if score in ('final', *PERSONAL) else 'best'


def compares_with_baseline(speed: str, target: str) -> bool:
    """Whether a speed needs runs of the baseline; arguments as for `score_of`."""
    return speed == 'speed-up' or (speed == 'rounds' and target == 'baseline')


def places(scores: Sequence[Score], *, decimals: int = 2) -> list[int]:
    """The best and the second best of a column, as printed.

    Means that print the same share a place. Rows without a number, with a diverged run or with
    missing runs have none.

    Args:
      scores: of one column.
      decimals: of the printed percent.

    Returns:
      1, 2 or 0 for each.
    """
    ranked = [
        None
        if score.mean is None or score.failed or score.done < score.asked
        else round(score.mean, decimals)
        for score in scores
    ]
    order = sorted({mean for mean in ranked if mean is not None}, reverse=True)
    place = dict(zip(order[:2], (1, 2), strict=False))
    return [0 if mean is None else place.get(mean, 0) for mean in ranked]


def within(
    score: Score, accuracy_: float, spread: float | None, *, alike: bool = True
) -> bool | None:
    """Whether a mean agrees with the paper's.

    |mean - paper| <= the paper's sd if it reports one, else 2 sd of our seeds

    Args:
      score: ours.
      accuracy_: the paper's, in percent.
      spread: the paper's sd, None if it reports none.
      alike: whether rounds and other settings are the paper's.

    Returns:
      The verdict on the printed numbers; None without a mean or any spread, with diverged or
      missing runs, or with other settings.
    """
    allowed = spread if spread is not None else 2 * (score.sd or 0.0) or None
    complete = score.done >= score.asked and not score.failed
    if not alike or not complete or score.mean is None or allowed is None:
        return None
    return abs(round(score.mean, 2) - accuracy_) <= allowed + 1e-9


def cost_of(runs: Iterable[RecordedCell]) -> RowCost | None:
    """Add up the cost of the runs of a row; None without runs."""
    runs = list(runs)
    if not runs:
        return None
    summaries = [run.summary for run in runs]
    costs = [summary['cost'] for summary in summaries]
    return RowCost(
        runs=len(runs),
        hours=sum(summary['seconds_total'] for summary in summaries) / 3600,
        client_steps=sum(map(_client_steps, runs)),
        upload=max(cost['upload'] for cost in costs),
        download=max(cost['download'] for cost in costs),
        forward_passes=max(cost['forward_passes'] for cost in costs),
        auxiliary=max(map(_auxiliary, runs)),
        set_aside=max(summary['auxiliary_examples'] for summary in summaries),
    )


def _client_steps(run: RecordedCell) -> float:
    if 'client_steps' in run.summary:
        return run.summary['client_steps']
    # Older records hold a rounded rate.
    steps = run.summary['client_steps_per_second'] * sum(e['seconds'] for e in run.metrics)
    return float(f'{steps:.3g}')


def _auxiliary(run: RecordedCell) -> int:
    """Examples a class that a run uses on the server: the setting's, by default the method's."""
    needed, setting = run.summary['cost']['auxiliary'], run.config.get('auxiliary_per_class')
    return setting if needed and setting is not None else needed
