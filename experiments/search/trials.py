"""The trials of Optuna: chosen and trained in batches, each as large as a program holds."""

from collections.abc import Callable, Sequence
from typing import Any

from optuna.pruners import MedianPruner
from optuna.trial import FrozenTrial, TrialState, create_trial

from experiments.grid import runner, training
from experiments.grid.runner import Cell
from experiments.search import study
from experiments.search.cells import Search, halving_of
from experiments.search.study import Journal
from jaxfed.internal import console
from jaxfed.runs.rounds import Stop, never
from jaxfed.sweeps.training import program_size

STARTUP = 5  # completed trials before the first is pruned
# A trial is pruned after a quarter of the rounds: with skewed labels the first rounds say little.
WARMUP = 4


def plan(search: Search, *, together: int) -> Search:
    """The search with the cells of all earlier trials and of the first batch.

    Args:
      search: of Optuna.
      together: the largest number of runs in a program; 0 for the default of the device.

    Raises:
      ValueError: as `study.read` and `study.ask`.
    """
    trials = study.read(search)
    search = study.with_trials(search, trials)
    waiting = any(trial.state == TrialState.RUNNING for trial in trials)
    search, _ = study.ask(search, trials, _count(search, together=together, waiting=waiting))
    return search


def _count(search: Search, *, together: int, waiting: bool) -> int:
    """The number of trials to choose.

    Batches end at multiples of their size, so that a search chooses the same trials whether or not
    it was interrupted. `waiting` trials of an interrupted batch are trained first.
    """
    assert search.optuna
    size = _batch_size(search, together=together)
    rest = -search.chosen % size
    return max(0, min(search.optuna.trials - search.chosen, rest or size * (not waiting)))


def _batch_size(search: Search, *, together: int) -> int:
    """The number of trials that a program holds; with halving at least two, which it compares."""
    least = 2 if search.rungs else 1
    return max(least, program_size(search.config, most=together) // search.seeds)


def train(search: Search, journal: Journal, *, together: int) -> tuple[Search, dict[str, str]]:
    """Train the trials of an interrupted search, then new ones up to --trials.

    A trial with a run that ends in an error has no result; the next start trains it again.

    Args:
      search: from `make_search`.
      journal: the study.
      together: the largest number of runs in a program; 0 for the default of the device.

    Returns:
      The search with all trials; the failed runs, name -> reason.

    Raises:
      ValueError: as `study.tell_finished`.
    """
    assert search.optuna
    last, failed = search.optuna.trials, dict[str, str]()
    search = study.with_trials(search, journal.study.trials)
    study.tell_finished(search, journal)
    waiting = journal.running
    if waiting or search.chosen < last:
        runner.check_same_data(filter(runner.is_done, search.every), search.every)
    while True:
        trials = journal.study.trials
        count = _count(search, together=together, waiting=bool(waiting))
        search, chosen = study.ask(search, trials, count)
        journal.study.add_trials(chosen)
        batch = waiting + [trial for trial in chosen if trial.state == TrialState.RUNNING]
        if not batch:
            return search, failed
        console.say(
            f'{console.counted(len(batch), "trial")}, up to trial {search.chosen} of {last}'
        )
        size = _batch_size(search, together=together)
        for earlier, part in _batches(search, [*trials, *chosen], batch, size=size):
            failed |= _train_batch(search, earlier, part, together=together)
        study.tell_finished(search, journal)
        waiting = []


def _batches(
    search: Search, trials: Sequence[FrozenTrial], due: Sequence[FrozenTrial], *, size: int
) -> list[tuple[list[FrozenTrial], list[FrozenTrial]]]:
    """Divide the trials to train by batch: those of the batches before, and those of the batch.

    Without interruption a batch knows no other trials.

    Args:
      search: with the cells of all trials.
      trials: all of the study.
      due: those to train.
      size: of a batch.
    """
    runnable = [trial for trial in trials if study.combination_of(search, trial) in search.cells]
    batch_of = {trial.number: i // size for i, trial in enumerate(runnable)}
    return [
        (runnable[: batch * size], [trial for trial in due if batch_of[trial.number] == batch])
        for batch in sorted({batch_of[trial.number] for trial in due})
    ]


def _train_batch(
    search: Search, earlier: Sequence[FrozenTrial], batch: Sequence[FrozenTrial], *, together: int
) -> dict[str, str]:
    """Train the unfinished runs of trials; return the failed runs, name -> reason."""
    combinations = dict.fromkeys(study.combination_of(search, trial) for trial in batch)
    cells = [cell for combination in combinations for cell in search.cells[combination]]
    with training.progress_lines(cells):
        return runner.run_cells(
            cells,
            together=together or len(cells),
            stop_of=_stop_of(search, earlier),
            halves=bool(search.rungs),
        )


def _stop_of(search: Search, trials: Sequence[FrozenTrial]) -> Callable[[Sequence[Cell]], Stop]:
    """Cells of a program -> which of them stop early, by halving or by earlier trials."""
    assert search.optuna
    if search.rungs:
        return halving_of(search)
    return median_rule(search, trials) if search.optuna.pruner == 'median' else lambda cells: never


def median_rule(search: Search, trials: Sequence[FrozenTrial]) -> Callable[[Sequence[Cell]], Stop]:
    """Optuna's median rule: a trial stops whose best mean accuracy so far is below the median.

    The median is that of the completed trials in the same round. A trial also stops if one of its
    seeds diverged and the others were evaluated. If its seeds are in several programs, it does not
    stop.

    Args:
      search: with the number of seeds and rounds.
      trials: the earlier trials.

    Returns:
      Cells of a program -> which of them stop.

    Reference:
      Golovin et al., Google Vizier: A Service for Black-Box Optimization, KDD 2017, section 3.1.2.
    """
    earlier = study.in_memory(trials)
    pruner = MedianPruner(STARTUP, search.config.rounds // WARMUP)

    def is_worse(round_: int, metrics: Sequence[Sequence[dict[str, Any]]]) -> bool:
        values = study.mean_accuracies(metrics)
        trial = create_trial(state=TrialState.RUNNING, intermediate_values=values)
        return round_ in values and pruner.prune(earlier, trial)

    def stop_of(cells: Sequence[Cell]) -> Stop:
        seeds: dict[tuple[str, ...], list[int]] = {}
        for x, cell in enumerate(cells):
            seeds.setdefault(cell.variant, []).append(x)

        def stop(
            round_: int, metrics: Sequence[list[dict[str, Any]]], running: Sequence[int]
        ) -> list[int]:
            stopped = []
            for numbers in seeds.values():
                alive = [x for x in numbers if x in running]
                evaluated = all(_is_evaluated(metrics[x]) for x in alive)
                diverged = len(alive) < len(numbers) and evaluated
                whole = len(numbers) == search.seeds
                if (
                    alive
                    and whole
                    and (diverged or is_worse(round_, [metrics[x] for x in numbers]))
                ):
                    stopped += alive
            return stopped

        return stop

    return stop_of


def _is_evaluated(metrics: Sequence[dict[str, Any]]) -> bool:
    """Whether a run has an accuracy, without which it would have no score."""
    return any(entry['test_accuracy'] is not None for entry in metrics)
