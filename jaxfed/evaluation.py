"""Evaluation of an experiment's models, compiled: the global one, and the local ones of a round."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.devices import AXIS, fetch, replicate, split
from jaxfed.execution import peak_memory
from jaxfed.experiment import Experiment
from jaxfed.gradients import make_gradients
from jaxfed.lanes import Schedule
from jaxfed.metrics import (
    Evaluation,
    Own,
    Teacher,
    evaluate,
    evaluate_locals,
    evaluate_teacher,
    personal_accuracy,
)
from jaxfed.metrics.measures import (
    Locals,
    Seen,
    needs,
    of_local_models,
    parse_clients,
    parse_measures,
    take,
)
from jaxfed.metrics.past import Past
from jaxfed.round import ServerState
from jaxfed.types import Array, Outputs, PyTree

T = TypeVar('T')
Kept = list[tuple[Schedule, PyTree]]  # a round's waves and local models, from `run_waves`


class Tests(NamedTuple):
    """How an experiment's models are evaluated."""

    of_global: Callable[[ServerState], Evaluation]
    # (server before the round, after it, what the round kept, cohort)
    # -> means over the round's clients, and what the chosen measures look at
    of_locals: Callable[
        [ServerState, ServerState, Kept, np.ndarray], tuple[dict[str, float], Locals | None]
    ]
    # (cohort, evaluation, earlier rounds, local models), None where not evaluated
    # -> fields of the chosen measures
    measure: Callable[[np.ndarray, Evaluation | None, Past, Locals | None], dict[str, Any]]
    memory: int  # bytes that the largest program takes on each device, besides the test data


def compile_tests(
    experiment: Experiment,
    mesh: Mesh,
    server: ServerState,
    cohort: np.ndarray,
    plan: Schedule,
    to_input: Callable[[Array], Array],
    *,
    lanes: int,
) -> Tests:
    """Compile the evaluations that the settings ask for.

    Args:
      experiment: from `set_up`.
      mesh: the devices.
      server: of any round.
      cohort: [S] client ids of any round.
      plan: its schedule.
      to_input: normalisation.
      lanes: models that a device evaluates side by side.

    Returns:
      The evaluations; that of local models is there if the settings ask for it.
    """
    config, dealt, model = experiment.config, experiment.dealt, experiment.model
    dataset, names = dealt.dataset, parse_measures(config.measure)
    chosen, needed = parse_clients(config.confusion_clients), needs(names)
    looks_at_locals = bool(chosen) or of_local_models(names)
    teaches = 'agreement' in needed
    test_set = replicate((dataset.x_test, dataset.y_test), mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def apply(weights: tuple[PyTree, PyTree], x: Array) -> Outputs:
        params, stats = weights
        return model.evaluate(params, x, stats)

    def compiled(test: Callable[..., Any], *arguments: PyTree, **placed: Any) -> Any:
        return (
            jax.jit(functools.partial(test, apply, prepare=to_input, mesh=mesh), **placed)
            .lower(*arguments)
            .compile()
        )

    weights = server.params, server.stats
    programs = {
        'global': compiled(
            evaluate_teacher if teaches else evaluate, weights, *test_set, out_shardings=everywhere
        )
    }
    if config.local_eval_every:
        kept = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (*plan.slot.shape, *leaf.shape),
                leaf.dtype,
                sharding=NamedSharding(mesh, PartitionSpec(AXIS)),
            ),
            weights,
        )
        teacher = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
            programs['global'].out_info[1] if teaches else None,
        )
        count = split(plan.clients, mesh)
        local = functools.partial(evaluate_locals, lanes=lanes)
        programs['local'] = compiled(local, kept, count, *test_set, teacher)
        if config.personal_test:
            own = split(held_out(experiment, plan, cohort), mesh)
            personal = functools.partial(personal_accuracy, lanes=lanes)
            programs['personal'] = compiled(personal, kept, weights, count, own)
    of_gradients = None
    if 'gradients' in needed:
        of_gradients, programs['gradients'] = make_gradients(experiment, mesh, weights, to_input)

    def test(server: ServerState) -> tuple[Evaluation, Teacher | None]:
        found = programs['global']((server.params, server.stats), *test_set)
        evaluation, teacher = found if teaches else (found, None)
        return jax.device_get(evaluation), replicate(teacher, mesh)

    # The global model after one round is that before the next.
    observe = remember_two(test) if looks_at_locals else test

    def of_locals(
        before: ServerState, server: ServerState, kept: Kept, cohort: np.ndarray
    ) -> tuple[dict[str, float], Locals | None]:
        if not kept:  # every client was lost
            return {}, None
        evaluation, teacher = observe(before) if looks_at_locals else (None, None)
        found: dict[str, list[np.ndarray]] = {}
        tested = []
        for plan, rows in kept:
            used, count = plan.used, split(plan.clients, mesh)
            models = split(jax.tree.map(functools.partial(spread, used=used), rows), mesh)
            each = jax.tree.map(
                lambda leaf, used=used: fetch(leaf)[used],
                programs['local'](models, count, *test_set, teacher),
            )
            tested.append(each)
            found.setdefault('local_accuracy', []).append(each[0].accuracy)
            if not config.personal_test:
                continue
            own = held_out(experiment, plan, cohort)
            both = programs['personal'](
                models, (server.params, server.stats), count, split(own, mesh)
            )
            holding = used & own.mask.any(axis=2)
            for name, each in zip(
                ('personal_accuracy', 'personal_global_accuracy'), both, strict=True
            ):
                found.setdefault(name, []).append(fetch(each)[holding])
        parts = {name: np.concatenate(values) for name, values in found.items()}
        means = {name: float(values.mean()) for name, values in parts.items() if values.size}
        if evaluation is None:
            return means, None
        slots = np.concatenate([plan.slot[plan.used] for plan, _ in kept])
        order = np.argsort(slots)
        arrived = cohort[slots[order]]
        each, agreement = in_order(tested, order)
        with_models = 'models' in needed
        return means, Locals(
            before=evaluation,
            after=observe(server)[0],
            each=each,
            agreement=agreement,
            models=in_order([rows[0] for _, rows in kept], order) if with_models else None,
            start=jax.device_get(before.params) if with_models else None,
            end=jax.device_get(server.params) if with_models else None,
            gradients=of_gradients((before.params, before.stats), arrived)
            if of_gradients
            else None,
        )

    @np.errstate(over='ignore', invalid='ignore')  # of a run that diverges
    def measure(
        cohort: np.ndarray,
        now: Evaluation | None,
        past: Past,
        local: Locals | None,
    ) -> dict[str, Any]:
        counts = dealt.label_counts[cohort]
        return take(names, Seen(cohort, counts, dataset.y_test, past, chosen), now, local)

    return Tests(
        of_global=lambda server: observe(server)[0],
        of_locals=of_locals,
        measure=measure,
        memory=max(
            peak_memory(program) - (dataset.x_test.nbytes if name in ('global', 'local') else 0)
            for name, program in programs.items()
        ),
    )


def remember_two(function: Callable[[ServerState], T]) -> Callable[[ServerState], T]:
    """Makes a function that computes nothing again for its last two arguments.

    Args:
      function: of a server state, which is never changed in place.

    Returns:
      The same function.
    """
    last: list[tuple[ServerState, T]] = []

    def remembering(server: ServerState) -> T:
        for known, result in last:
            if known is server:
                return result
        result = function(server)
        last[:] = [*last[-1:], (server, result)]
        return result

    return remembering


def in_order(parts: Sequence[PyTree], order: np.ndarray) -> PyTree:
    """Puts rows of several waves in the order of the cohort.

    Args:
      parts: trees of NumPy arrays [n, ...], one a wave.
      order: [S] positions in all parts one after another.

    Returns:
      A tree of [S, ...].
    """
    return jax.tree.map(lambda *rows: np.concatenate(rows)[order], *parts)


def spread(rows: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Puts rows where they are used, zeros elsewhere.

    Args:
      rows: [n, ...].
      used: [D, M] bool, n of them True.

    Returns:
      [D, M, ...].
    """
    full = np.zeros((*used.shape, *rows.shape[1:]), rows.dtype)
    full[used] = rows
    return full


def held_out(experiment: Experiment, plan: Schedule, cohort: np.ndarray) -> Own:
    """What the clients of a schedule hold out for themselves, filled up to one size.

    Args:
      experiment: from `set_up`.
      plan: schedule of D devices with M clients.
      cohort: [S] client ids.

    Returns:
      NumPy arrays [D, M, H, ...], H the most that any client holds out.
    """
    dataset, personal = experiment.dealt.dataset, experiment.dealt.personal
    most = max(len(part) for part in personal)
    rows = np.zeros((*plan.slot.shape, most), np.int64)
    mask = np.zeros(rows.shape, bool)
    for place, slot in np.ndenumerate(plan.slot):
        part = personal[cohort[slot]]
        rows[place][: len(part)], mask[place][: len(part)] = part, True
    return Own(dataset.x_train[rows], dataset.y_train[rows], mask)
