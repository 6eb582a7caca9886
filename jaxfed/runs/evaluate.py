"""Evaluation of an experiment's models, compiled: the global one, and the local ones of a round."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.engine.devices import AXIS, fetch, replicate, split
from jaxfed.engine.evaluation import evaluate, evaluate_teacher
from jaxfed.engine.execution import peak_memory
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.local_evaluation import HeldOut, evaluate_locals, personal_accuracy
from jaxfed.engine.round import ServerState
from jaxfed.engine.stacking import row
from jaxfed.metrics import Evaluation, Teacher
from jaxfed.metrics.history import History
from jaxfed.metrics.measures import (
    LocalModels,
    RoundData,
    measure_round,
    need_local_models,
    needs,
    parse_clients,
    parse_measures,
)
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.gradients import make_gradients
from jaxfed.types import Array, Outputs, PyTree

T = TypeVar('T')


class Kept(NamedTuple):
    """The local models of an experiment after a round, as far as their clients arrived."""

    slots: np.ndarray  # [n] places in the cohort, ascending
    models: PyTree  # [n, ...] NumPy: parameters and batch statistics; () if they are not kept


class Tests(NamedTuple):
    """How an experiment's models are evaluated."""

    of_global: Callable[[ServerState], Evaluation]
    # (server before the round, after it, what the round kept, [S] cohort)
    # -> means over the round's clients, and what the chosen measures look at
    of_locals: Callable[
        [ServerState, ServerState, Kept, np.ndarray], tuple[dict[str, float], LocalModels | None]
    ]
    # (cohort, evaluation, earlier rounds, local models), None where not evaluated
    # -> fields of the chosen measures
    measure: Callable[[np.ndarray, Evaluation | None, History, LocalModels | None], dict[str, Any]]
    memory: int  # bytes that the largest program takes on each device, besides the test data


class Programs(NamedTuple):
    """The compiled evaluations, and what their results are taken from."""

    of_global: Any
    of_locals: Any
    personal: Any
    gradients: Sequence[Callable[[tuple[PyTree, PyTree], np.ndarray], Any] | None]  # X
    room: int  # local models of a device
    held: int  # the most examples that any client holds out for itself
    memory: int


def compile_tests(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    server: ServerState,
    to_input: Callable[[Array], Array],
    *,
    lanes: int,
) -> list[Tests]:
    """Compile the evaluations that the settings ask for.

    Args:
      experiments: X that share their programs.
      mesh: the devices.
      server: [X, ...] of any round.
      to_input: normalisation.
      lanes: models that a device evaluates side by side.

    Returns:
      The evaluations of each experiment; that of local models is there if the settings ask for it.
    """
    placed: dict[int, PyTree] = {}  # experiments without validation data have one test set
    for dataset in (experiment.dealt.dataset for experiment in experiments):
        if id(dataset.x_test) not in placed:
            placed[id(dataset.x_test)] = replicate((dataset.x_test, dataset.y_test), mesh)
    sets = [placed[id(experiment.dealt.dataset.x_test)] for experiment in experiments]
    programs = compile_programs(experiments, mesh, server, sets[0], to_input, lanes=lanes)
    return [
        make_tests(experiment, mesh, programs, test_set, gradients)
        for experiment, test_set, gradients in zip(
            experiments, sets, programs.gradients, strict=True
        )
    ]


def compile_programs(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    server: ServerState,
    test_set: tuple[Array, Array],
    to_input: Callable[[Array], Array],
    *,
    lanes: int,
) -> Programs:
    """Compile what evaluates the models of any of several experiments.

    Args:
      experiments: as for `compile_tests`, like all that is not named here.
      mesh: see there.
      server: see there.
      test_set: (images, labels) on the devices, of any of them.
      to_input: see there.
      lanes: see there.

    Returns:
      The programs.
    """
    config, model = experiments[0].config, experiments[0].model
    needed = needs(parse_measures(config.measure))
    teaches = 'agreement' in needed
    everywhere = NamedSharding(mesh, PartitionSpec())
    room = -(-config.clients_per_round // mesh.size)
    held = most_held(experiments) if config.personal_test else 0
    lanes = min(lanes, room)

    def shaped(leaf: Any, *front: int, sharding: Any = None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*front, *leaf.shape), leaf.dtype, sharding=sharding)

    def apply(weights: tuple[PyTree, PyTree], x: Array) -> Outputs:
        params, stats = weights
        return model.evaluate(params, x, stats)

    def compiled(test: Callable[..., Any], *arguments: PyTree, **placed: Any) -> Any:
        return (
            jax.jit(functools.partial(test, apply, prepare=to_input, mesh=mesh), **placed)
            .lower(*arguments)
            .compile()
        )

    own = jax.eval_shape(lambda server: row((server.params, server.stats), 0), server)
    weights = jax.tree.map(functools.partial(shaped, sharding=everywhere), own)
    of_global = compiled(
        evaluate_teacher if teaches else evaluate, weights, *test_set, out_shardings=everywhere
    )
    of_locals = personal = None
    if config.local_eval_every:
        over_devices = NamedSharding(mesh, PartitionSpec(AXIS))
        kept = jax.tree.map(lambda leaf: shaped(leaf, mesh.size, room, sharding=over_devices), own)
        teacher = jax.tree.map(
            functools.partial(shaped, sharding=everywhere),
            of_global.out_info[1] if teaches else None,
        )
        count = split(np.zeros(mesh.size, np.int32), mesh)
        local = functools.partial(evaluate_locals, lanes=lanes)
        of_locals = compiled(local, kept, count, *test_set, teacher)
        if config.personal_test:
            examples = split(
                held_out(
                    experiments[0], np.array([], int), mesh.size, room, most_held(experiments)
                ),
                mesh,
            )
            accuracy = functools.partial(personal_accuracy, lanes=lanes)
            personal = compiled(accuracy, kept, weights, count, examples)
    gradients: Sequence[Any] = [None] * len(experiments)
    program = None
    if 'gradients' in needed:
        gradients, program = make_gradients(experiments, mesh, weights, to_input)
    images = experiments[0].dealt.dataset.x_test.nbytes
    return Programs(
        of_global=of_global,
        of_locals=of_locals,
        personal=personal,
        gradients=gradients,
        room=room,
        held=held,
        memory=max(
            peak_memory(program) - counted
            for program, counted in (
                (of_global, images), (of_locals, images), (personal, 0), (program, 0),
            )
            if program is not None
        ),
    )  # fmt: skip


def make_tests(
    experiment: Experiment,
    mesh: Mesh,
    programs: Programs,
    test_set: tuple[Array, Array],
    of_gradients: Callable[[tuple[PyTree, PyTree], np.ndarray], Any] | None,
) -> Tests:
    """Make the evaluations of one experiment.

    Args:
      experiment: from `set_up`.
      mesh: the devices.
      programs: compiled for it.
      test_set: (images, labels) on the devices.
      of_gradients: takes the gradients of its clients, if they are measured.

    Returns:
      The evaluations.
    """
    config, dealt = experiment.config, experiment.dealt
    names = parse_measures(config.measure)
    chosen, needed = parse_clients(config.confusion_clients), needs(names)
    looks_at_locals = bool(chosen) or need_local_models(names)
    teaches = 'agreement' in needed

    def test(server: ServerState) -> tuple[Evaluation, Teacher | None]:
        found = programs.of_global((server.params, server.stats), *test_set)
        evaluation, teacher = found if teaches else (found, None)
        return jax.device_get(evaluation), replicate(teacher, mesh)

    # The global model after one round is that before the next.
    observe = remember_two(test) if looks_at_locals else test

    def of_locals(
        before: ServerState, server: ServerState, kept: Kept, cohort: np.ndarray
    ) -> tuple[dict[str, float], LocalModels | None]:
        arrived = cohort[kept.slots]
        if not arrived.size:
            return {}, None
        evaluation, teacher = observe(before) if looks_at_locals else (None, None)
        room, total = programs.room, mesh.size * programs.room
        count = split(np.clip(len(arrived) - room * np.arange(mesh.size), 0, room), mesh)
        models = split(jax.tree.map(lambda leaf: fill(leaf, total, room), kept.models), mesh)

        def of_arrived(found: PyTree) -> PyTree:
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), fetch(found))
            return jax.tree.map(lambda leaf: leaf[: len(arrived)], flat)

        each, agreement = of_arrived(programs.of_locals(models, count, *test_set, teacher))
        means = {'local_accuracy': float(each.accuracy.mean())}
        if config.personal_test:
            own = held_out(experiment, arrived, mesh.size, room, programs.held)
            both = programs.personal(models, (server.params, server.stats), count, split(own, mesh))
            holding = of_arrived(own.mask.any(axis=2))
            for name, accuracy in zip(
                ('personal_accuracy', 'personal_global_accuracy'), of_arrived(both), strict=True
            ):
                if holding.any():
                    means[name] = float(accuracy[holding].mean())
        if evaluation is None:
            return means, None
        with_models = 'models' in needed
        return means, LocalModels(
            before=evaluation,
            after=observe(server)[0],
            each=each,
            agreement=agreement,
            models=kept.models[0] if with_models else None,
            start=jax.device_get(before.params) if with_models else None,
            gradients=of_gradients((before.params, before.stats), arrived)
            if of_gradients
            else None,
        )

    @np.errstate(over='ignore', invalid='ignore')  # of a run that diverges
    def measure(
        cohort: np.ndarray,
        now: Evaluation | None,
        past: History,
        local: LocalModels | None,
    ) -> dict[str, Any]:
        counts = dealt.label_counts[cohort]
        data = RoundData(cohort, counts, dealt.dataset.y_test, past, chosen)
        return measure_round(names, data, now, local)

    return Tests(
        of_global=lambda server: observe(server)[0],
        of_locals=of_locals,
        measure=measure,
        memory=programs.memory,
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


def keep_own(waves: Sequence[tuple[Schedule, PyTree]], experiment: int, cohort_size: int) -> Kept:
    """Picks the local models of one experiment out of a round's.

    Args:
      waves: schedules and local models of X experiments, from `run_waves`.
      experiment: its number x.
      cohort_size: S.

    Returns:
      Its models in the order of the cohort.
    """
    slots = [plan.slot[plan.used] for plan, _ in waves]
    every = np.concatenate([*slots, np.array([], np.int32)])
    mine = np.flatnonzero(every // cohort_size == experiment)
    order = mine[np.argsort(every[mine])]
    models = jax.tree.map(
        lambda *rows: np.concatenate(rows)[order] if len(rows) > 1 else rows[0][order],
        *(models for _, models in waves),
    ) if waves else ()  # fmt: skip
    return Kept(every[order] % cohort_size, models)


def fill(rows: np.ndarray, total: int, room: int) -> np.ndarray:
    """Puts rows on devices one after another, with zeros behind them.

    Args:
      rows: [n, ...].
      total: D M, at least n.
      room: M, of a device.

    Returns:
      [D, M, ...].
    """
    full = np.zeros((total, *rows.shape[1:]), rows.dtype)
    full[: len(rows)] = rows
    return full.reshape(-1, room, *rows.shape[1:])


def held_out(
    experiment: Experiment, clients: np.ndarray, devices: int, room: int, most: int
) -> HeldOut:
    """What clients hold out for themselves, filled up to one size.

    Args:
      experiment: from `set_up`.
      clients: [n] ids, dealt to the devices one after another.
      devices: D.
      room: M, clients of a device; n is at most D M.
      most: H, the most that any client holds out.

    Returns:
      NumPy arrays [D, M, H, ...].
    """
    dataset, personal = experiment.dealt.dataset, experiment.dealt.personal
    rows = np.zeros((devices * room, most), np.int64)
    mask = np.zeros(rows.shape, bool)
    for place, client in enumerate(clients):
        part = personal[client]
        rows[place, : len(part)], mask[place, : len(part)] = part, True
    shape = devices, room, most
    examples = rows.reshape(shape)
    return HeldOut(dataset.x_train[examples], dataset.y_train[examples], mask.reshape(shape))


def most_held(experiments: Sequence[Experiment]) -> int:
    """The most examples that any client holds out for itself.

    Args:
      experiments: from `set_up`.

    Returns:
      The number.
    """
    return max(len(part) for experiment in experiments for part in experiment.dealt.personal)
