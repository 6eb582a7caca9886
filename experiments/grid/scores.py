"""The numbers of a grid's cells: accuracy over the seeds, rounds to a target, cost."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.grid.published import BASELINE
from experiments.grid.runner import RecordedCell
from jaxfed.metrics import mean_and_deviation, rounds_to_target


class Score(NamedTuple):
    """Runs of one row and column with different seeds."""

    asked: int  # seeds
    accuracies: tuple[float, ...] = ()  # percent, of the runs that did not diverge
    failed: int = 0  # runs that diverged
    # Rounds or speed-up of those whose target is known; None: not reached.
    speeds: tuple[float | None, ...] = ()
    lacking: str = ''  # why others have none: 'FedAvg not run', 'FedAvg failed', 'no target'

    @property
    def done(self) -> int:
        """Runs that there are."""
        return len(self.accuracies) + self.failed

    @property
    def mean(self) -> float | None:
        """Mean accuracy in percent."""
        return mean_and_deviation(self.accuracies)[0]

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None of less than two runs."""
        return mean_and_deviation(self.accuracies)[1]

    @property
    def speed(self) -> float | None:
        """Mean over the runs that reached the target."""
        return mean_and_deviation(self.speeds)[0]


class RowCost(NamedTuple):
    """What the runs of a row cost."""

    runs: int
    hours: float
    client_steps: float  # of all runs
    upload: float  # of a client and round, relative to FedAvg's; the most of all runs
    download: float
    forward_passes: int  # a local step, besides the local model's own
    auxiliary: int  # examples a class that the method uses on the server
    set_aside: int  # examples that were set aside, the most of all runs


def accuracy(run: RecordedCell, score: str) -> float:
    """Best or final accuracy of a run, in percent.

    Args:
      run: finished, with an evaluation.
      score: 'best' or 'final'.

    Returns:
      The accuracy, exactly as recorded.
    """
    return 100 * float(run.summary[f'{score}_accuracy'])


def rounds_to(run: RecordedCell, target: float) -> int | None:
    """The first round with at least an accuracy in percent, None if there is none."""
    curve = [entry['round'] for entry in run.metrics], [_percent(e) for e in run.metrics]
    return rounds_to_target(curve, target)


def _percent(entry: Mapping[str, Any]) -> float | None:
    accuracy = entry['test_accuracy']
    return None if accuracy is None else 100 * accuracy


def target_of(
    run: RecordedCell, baseline: RecordedCell | None, *, target: str, score: str
) -> float | None:
    """The accuracy that a run is to reach.

    Args:
      run: of a method.
      baseline: run of the same seed and column, if there is one.
      target: 'flag' for the run's --target_accuracy, 'baseline' for the baseline's score.
      score: of the baseline, 'best' or 'final'.

    Returns:
      In percent; None where it is not known, or there is nothing to compare with.
    """
    if target == 'flag':
        told = run.config['target_accuracy']
        return None if told is None else 100 * told
    if baseline is None or baseline.summary['failed']:
        return None
    return accuracy(baseline, score)


def speed_of(
    run: RecordedCell, baseline: RecordedCell | None, wanted: float, *, kind: str
) -> float | None:
    """Rounds to an accuracy, or the baseline's rounds over them.

    Args:
      run: of a method.
      baseline: run of the same seed and column; needed for a speed-up.
      wanted: accuracy in percent.
      kind: 'rounds' or 'speed-up'.

    Returns:
      The number; None if the run does not reach it.
    """
    taken = rounds_to(run, wanted)
    if taken is None or kind == 'rounds':
        return taken
    own = None if baseline is None else rounds_to(baseline, wanted)
    return None if own is None else own / taken


def score_of(
    runs: Mapping[int, RecordedCell],
    baselines: Mapping[int, RecordedCell],
    *,
    asked: int,
    score: str,
    speed: str = '',
    target: str = '',
) -> Score:
    """Sum up the runs of one row and column.

    Args:
      runs: seed -> run, of the seeds that are done.
      baselines: seed -> run of the baseline.
      asked: number of seeds.
      score: 'best' or 'final'.
      speed: '', 'rounds' or 'speed-up'.
      target: as in `target_of`.

    Returns:
      The score.
    """
    kept = {seed: run for seed, run in runs.items() if not run.summary['failed']}
    speeds, lacking = [], ''
    for seed, run in kept.items() if speed else ():
        baseline = baselines.get(seed)
        wanted = target_of(run, baseline, target=target, score=score)
        compares = compares_with_baseline(speed, target)
        if compares and baseline is None:
            lacking = f'{BASELINE} not run'
        elif wanted is None:
            lacking = lacking or (f'{BASELINE} failed' if compares else 'no target')
        else:
            speeds.append(speed_of(run, baseline, wanted, kind=speed))
    return Score(
        asked,
        tuple(accuracy(run, score) for run in kept.values()),
        len(runs) - len(kept),
        tuple(speeds),
        lacking,
    )


def compares_with_baseline(speed: str, target: str) -> bool:
    """Whether a speed needs runs of the baseline.

    Args:
      speed: '', 'rounds' or 'speed-up'.
      target: as in `target_of`.

    Returns:
      Whether it does.
    """
    return speed == 'speed-up' or (speed == 'rounds' and target == 'baseline')


def places(scores: Sequence[Score], *, decimals: int = 2) -> list[int]:
    """Who is best and second best, as printed.

    Equal printed means share a place. Rows without a number, with a diverged run or with fewer
    runs than asked for have none.

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

    |mean - paper| <= the paper's sd where it tells one, else 2 sd of our seeds

    Args:
      score: ours.
      accuracy_: the paper's, in percent.
      spread: the paper's sd, if it tells one.
      alike: whether rounds and other settings are the paper's.

    Returns:
      Whether it does; None without a mean, without any spread, or with other settings.
    """
    allowed = spread if spread is not None else None if score.sd is None else 2 * score.sd
    if not alike or score.mean is None or allowed is None:
        return None
    return abs(score.mean - accuracy_) <= allowed + 1e-9


def cost_of(runs: Iterable[RecordedCell]) -> RowCost | None:
    """Add up what runs cost.

    Args:
      runs: of one row.

    Returns:
      The cost; None without runs.
    """
    runs = list(runs)
    if not runs:
        return None

    def most(*keys: str) -> Any:
        return max(_dig(run.summary, keys) for run in runs)

    def steps(run: RecordedCell) -> float:
        if 'client_steps' in run.summary:
            return run.summary['client_steps']
        # Older records tell a rounded rate.
        about = run.summary['client_steps_per_second'] * sum(e['seconds'] for e in run.metrics)
        return float(f'{about:.3g}')

    def auxiliary(run: RecordedCell) -> int:
        needed = run.summary['cost']['auxiliary']
        given = run.config.get('auxiliary_per_class')
        return given if needed and given is not None else needed

    return RowCost(
        runs=len(runs),
        hours=sum(run.summary['seconds_total'] for run in runs) / 3600,
        client_steps=sum(map(steps, runs)),
        upload=most('cost', 'upload'),
        download=most('cost', 'download'),
        forward_passes=most('cost', 'forward_passes'),
        auxiliary=max(map(auxiliary, runs)),
        set_aside=most('auxiliary_examples'),
    )


def _dig(value: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value
