"""Compiled evaluation of an experiment's global model and of the local models of a round."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxfed.engine.devices import REPLICATED, SPLIT, fetch, replicate, shapes, split
from jaxfed.engine.evaluation import evaluate, evaluate_teacher
from jaxfed.engine.execution import peak_memory
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.local_evaluation import HeldOut, evaluate_locals, personal_accuracy
from jaxfed.engine.stacking import row
from jaxfed.engine.types import ServerState
from jaxfed.internal.backend import lower
from jaxfed.metrics import Evaluation, Teacher
from jaxfed.metrics.history import History
from jaxfed.metrics.measures import LocalModels, Personal, RoundData
from jaxfed.metrics.selection import measure_round, need_local_models
from jaxfed.runs.client_images import client_images
from jaxfed.runs.deal import padded
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.gradients import gradients_of, largest_chunk, lower_gradients
from jaxfed.types import Array, Outputs, PyTree

T = TypeVar('T')


class ArrivedModels(NamedTuple):
    """The local models of an experiment after a round, of the n clients whose updates arrived."""

    slots: np.ndarray  # [n] places in the cohort, ascending
    weights: PyTree  # [n, ...] NumPy: (parameters, batch statistics); () if not kept


class Evaluator(NamedTuple):
    """The evaluations of one experiment."""

    evaluate_global: Callable[[ServerState], Evaluation]  # queued; JAX arrays
    # (server before the round, after it, ArrivedModels, [S] client ids)
    # -> (fields of accuracies of the round's clients, input of the chosen measures)
    evaluate_locals: Callable[..., tuple[dict[str, float], LocalModels | None]]
    # (ids of the clients whose updates arrived, Evaluation, earlier rounds, LocalModels), None if
    # not evaluated
    # -> fields of the chosen measures
    measure: Callable[[np.ndarray, Evaluation | None, History, LocalModels | None], dict[str, Any]]


class EvaluationPrograms(NamedTuple):
    """The evaluations that X experiments share, lowered or compiled; None if not needed."""

    global_model: Any
    local_models: Any = None  # with --local_eval_every
    personal: Any = None  # with --personal_test
    gradients: Any = None  # for measures of gradients


class Room(NamedTuple):
    """The sizes of the arguments of `EvaluationPrograms`."""

    models: int  # local models on a device
    held_out: int  # H, the most examples that a client holds out
    chunk: int  # examples of a client whose gradient is computed at once


def room_for(experiments: Sequence[Experiment], mesh: Mesh) -> Room:
    """The sizes that X experiments need."""
    config = experiments[0].config
    held_out = [len(part) for e in experiments for part in e.dealt.personal]
    return Room(
        models=-(-config.clients_per_round // mesh.size),
        held_out=max(held_out) if config.personal_test else 0,
        chunk=largest_chunk(experiments),
    )


def place_test_sets(experiments: Sequence[Experiment], mesh: Mesh) -> list[tuple[Array, Array]]:
    """The test sets (images, labels) of X experiments on all devices.

    Images are rows [m, H W channels], like those of training; labels are [m].
    """
    # Without validation data, experiments share one test set.
    sets = {id(e.dealt.dataset.x_test): e.dealt.dataset for e in experiments}
    placed = {
        key: replicate((dataset.x_test.reshape(len(dataset.x_test), -1), dataset.y_test), mesh)
        for key, dataset in sets.items()
    }
    return [placed[id(e.dealt.dataset.x_test)] for e in experiments]


def lower_evaluation(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    server: ServerState,
    test_set: tuple[Array, Array],
    to_input: Callable[[Array], Array],
    lanes: int,
) -> EvaluationPrograms:
    """Lower the evaluations of X experiments.

    Args:
      experiments: X that share the programs.
      mesh: the devices.
      server: [X, ...], or its shapes.
      test_set: of any of them, from `place_test_sets`.
      to_input: normalisation.
      lanes: most local models that a device evaluates at once.
    """
    first = experiments[0]
    config, model, needs = first.config, first.model, first.measures.needs
    everywhere, room = NamedSharding(mesh, REPLICATED), room_for(experiments, mesh)
    lanes, teaches = min(lanes, room.models), 'agreement' in needs

    def apply(weights: tuple[PyTree, PyTree], x: Array) -> Outputs:
        params, stats = weights
        return model.evaluate(params, x, stats)

    def from_rows(x: Array) -> Array:
        return to_input(x.reshape(len(x), *first.input_shape))

    def lowered(function: Callable[..., Any], *arguments: PyTree, **options: Any) -> Any:
        program = partial(function, apply, prepare=from_rows, mesh=mesh)
        return lower(program, *arguments, **options)

    one = jax.eval_shape(lambda server: row((server.params, server.stats), 0), server)
    weights = shapes(one, everywhere)
    test = partial(evaluate_teacher if teaches else evaluate, keep_logits='logits' in needs)
    programs = EvaluationPrograms(lowered(test, weights, *test_set, out_shardings=everywhere))
    if config.local_eval_every:
        stack = shapes(one, NamedSharding(mesh, SPLIT), mesh.size, room.models)
        count = split(np.zeros(mesh.size, np.int32), mesh)
        teacher = shapes(programs.global_model.out_info[1], everywhere) if teaches else None
        test_locals = partial(evaluate_locals, lanes=lanes)
        local_models = lowered(test_locals, stack, count, *test_set, teacher)
        programs = programs._replace(local_models=local_models)
        if config.personal_test:
            examples = held_out_examples(first, np.array([], int), mesh.size, room)
            test_personal = partial(personal_accuracy, lanes=lanes)
            personal = lowered(test_personal, stack, weights, count, split(examples, mesh))
            programs = programs._replace(personal=personal)
    if 'gradients' in needs:
        gradients = lower_gradients(experiments, mesh, weights, to_input)
        programs = programs._replace(gradients=gradients)
    return programs


def evaluation_memory(programs: EvaluationPrograms, test_images: int) -> int:
    """Bytes of the largest compiled program on each device, without those of the test images."""
    # The test images are an argument of the first two, and counted once for all programs.
    with_images = [programs.global_model, programs.local_models]
    memory = [peak_memory(p) - test_images for p in with_images if p is not None]
    return max(memory + [peak_memory(p) for p in programs[2:] if p is not None])


def make_evaluators(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    programs: EvaluationPrograms,
    test_sets: Sequence[tuple[Array, Array]],
) -> list[Evaluator]:
    """Bind compiled programs to X experiments and their test sets from `place_test_sets`."""
    room = room_for(experiments, mesh)
    bound = zip(experiments, test_sets, strict=True)
    return [make_evaluator(e, mesh, programs, test_set, room) for e, test_set in bound]


def make_evaluator(
    experiment: Experiment,
    mesh: Mesh,
    programs: EvaluationPrograms,
    test_set: tuple[Array, Array],
    room: Room,
) -> Evaluator:
    """The evaluations of one of the experiments of `make_evaluators`."""
    dealt, measures = experiment.dealt, experiment.measures
    compares = need_local_models(measures.names, measures.confusion_clients)

    def evaluate_once(server: ServerState) -> tuple[Evaluation, Teacher | None]:
        result = programs.global_model((server.params, server.stats), *test_set)
        evaluation, teacher = result if 'agreement' in measures.needs else (result, None)
        return evaluation, replicate(teacher, mesh)

    # The global model after a round is the one before the next round.
    evaluate_server = remember_two(evaluate_once) if compares else evaluate_once

    def evaluate_local(
        before: ServerState, after: ServerState, local: ArrivedModels, cohort: np.ndarray
    ) -> tuple[dict[str, float], LocalModels | None]:
        arrived = cohort[local.slots]
        if not arrived.size:
            return {}, None
        evaluation, teacher = evaluate_server(before) if compares else (None, None)
        stack = split(over_places(local.weights, mesh.size, room.models), mesh)
        places = len(arrived) - room.models * np.arange(mesh.size)
        count = split(np.clip(places, 0, room.models).astype(np.int32), mesh)
        result = programs.local_models(stack, count, *test_set, teacher)
        each, agreement = first_places(result, len(arrived))
        means, personal = {'local_accuracy': float(each.accuracy.mean())}, None
        if experiment.config.personal_test:
            examples = held_out_examples(experiment, arrived, mesh.size, room)
            result = programs.personal(
                stack, (after.params, after.stats), count, split(examples, mesh)
            )
            tested = examples.mask.any(axis=2)
            personal = only_tested(*first_places((*result, tested), len(arrived)))
            means |= personal_fields(personal)
        if evaluation is None:
            return means, None
        gradients = None
        if programs.gradients is not None:
            weights = before.params, before.stats
            compiled = programs.gradients
            gradients = gradients_of(experiment, mesh, compiled, room.chunk, weights, arrived)
        with_models = 'models' in measures.needs
        return means, LocalModels(
            before=jax.device_get(evaluation),
            after=jax.device_get(evaluate_server(after)[0]),
            each=each,
            personal=personal,
            agreement=agreement,
            models=local.weights[0] if with_models else None,
            start=jax.device_get(before.params) if with_models else None,
            gradients=gradients,
        )

    @np.errstate(over='ignore', invalid='ignore')  # if training diverges
    def measure(
        cohort: np.ndarray, evaluation: Evaluation | None, past: History, local: LocalModels | None
    ) -> dict[str, Any]:
        counts, y = dealt.label_counts[cohort], dealt.dataset.y_test
        seen = RoundData(cohort, counts, y, past, measures.confusion_clients)
        return measure_round(measures.names, seen, evaluation, local)

    return Evaluator(
        evaluate_global=lambda server: evaluate_server(server)[0],
        evaluate_locals=evaluate_local,
        measure=measure,
    )


def only_tested(local: np.ndarray, common: np.ndarray, tested: np.ndarray) -> Personal:
    """The accuracies [n] of clients, without those that are not tested."""
    return Personal(np.where(tested, local, np.nan), np.where(tested, common, np.nan))


def personal_fields(personal: Personal) -> dict[str, float]:
    """The fields of the means over the clients that keep examples."""
    tested = ~np.isnan(personal.local)
    if not tested.any():
        return {}
    mean = float(personal.common[tested].mean())
    return spread(personal.local[tested]) | {'personal_global_accuracy': mean}


def spread(accuracy: np.ndarray) -> dict[str, float]:
    """The fields of the personal accuracies of n clients [n]."""
    worst = np.sort(accuracy)[: -(-len(accuracy) // 10)]
    return {
        'personal_accuracy': float(accuracy.mean()),
        'personal_worst_tenth': float(worst.mean()),
        'personal_deviation': float(accuracy.std()),
    }


def remember_two(function: Callable[[ServerState], T]) -> Callable[[ServerState], T]:
    """Cache the results for the last two arguments, which are compared by identity."""
    cache: list[tuple[ServerState, T]] = []

    def cached(server: ServerState) -> T:
        for known, result in cache:
            if known is server:
                return result
        result = function(server)
        cache[:] = [*cache[-1:], (server, result)]
        return result

    return cached


def select_experiment(
    waves: Sequence[tuple[Schedule, PyTree]], experiment: int, cohort_size: int
) -> ArrivedModels:
    """The local models of one of X experiments, from the result of `run_waves`."""
    if not waves:
        return ArrivedModels(np.array([], np.int32), ())
    slot = np.concatenate([schedule.slot[schedule.used] for schedule, _ in waves])
    members = np.flatnonzero(slot // cohort_size == experiment)
    order = members[np.argsort(slot[members])]

    def select(*rows: np.ndarray) -> np.ndarray:
        return np.concatenate(rows)[order] if len(rows) > 1 else rows[0][order]

    return ArrivedModels(slot[order] % cohort_size, jax.tree.map(select, *(w for _, w in waves)))


def over_places(tree: PyTree, devices: int, room: int) -> PyTree:
    """Rows [n, ...] as [D, M, ...] for D devices, the last ones zeros."""

    def fill(rows: np.ndarray) -> np.ndarray:
        full = np.zeros((devices * room, *rows.shape[1:]), rows.dtype)
        full[: len(rows)] = rows
        return full.reshape(devices, room, *rows.shape[1:])

    return jax.tree.map(fill, tree)


def first_places(tree: PyTree, count: int) -> PyTree:
    """The first `count` rows of [D, M, ...], the inverse of `over_places`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], fetch(tree))


def held_out_examples(
    experiment: Experiment, clients: np.ndarray, devices: int, room: Room
) -> HeldOut:
    """The examples that clients hold out, NumPy [D, M, H, ...] padded to H."""
    parts = [experiment.dealt.personal[client] for client in clients]
    rows, mask = padded(parts, devices * room.models, room.held_out)
    images = client_images(experiment, clients, rows)
    examples = HeldOut(images, experiment.dealt.dataset.y_train[rows], mask)
    return jax.tree.map(lambda leaf: leaf.reshape(devices, room.models, *leaf.shape[1:]), examples)
