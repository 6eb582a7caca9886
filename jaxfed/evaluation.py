"""Evaluation of an experiment's models, compiled: the global one, and the local ones of a round."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxfed.devices import replicate, split
from jaxfed.experiment import Experiment
from jaxfed.lanes import Schedule
from jaxfed.metrics import Evaluation, Own, evaluate, local_accuracy, personal_accuracy
from jaxfed.round import ServerState
from jaxfed.types import Array, Outputs, PyTree

Kept = list[tuple[Schedule, PyTree]]  # a round's waves and local models, from `run_waves`


class Tests(NamedTuple):
    """How an experiment's models are evaluated."""

    of_global: Callable[[ServerState], Evaluation]
    # (server after the round, what the round kept, cohort) -> means over the round's clients
    of_locals: Callable[[ServerState, Kept, np.ndarray], dict[str, float]]
    programs: list[Any]  # compiled


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
      The evaluations; that of local models gives an empty dict where nobody asked for it.
    """
    config, dataset, model = experiment.config, experiment.dealt.dataset, experiment.model
    test_set = replicate((dataset.x_test, dataset.y_test), mesh)

    def apply(weights: tuple[PyTree, PyTree], x: Array) -> Outputs:
        params, stats = weights
        return model.evaluate(params, x, stats)

    def compiled(test: Callable[..., Any], *arguments: PyTree) -> Any:
        return (
            jax.jit(functools.partial(test, apply, prepare=to_input, mesh=mesh))
            .lower(*arguments)
            .compile()
        )

    weights = server.params, server.stats
    of_global = compiled(evaluate, weights, *test_set)
    programs = {'global': of_global}
    if config.local_eval_every:
        kept = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*plan.slot.shape, *leaf.shape), leaf.dtype), weights
        )
        local = functools.partial(local_accuracy, lanes=lanes)
        personal = functools.partial(personal_accuracy, lanes=lanes)
        count = split(plan.clients, mesh)
        programs['local'] = compiled(local, kept, count, *test_set)
        if config.personal_test:
            own = split(held_out(experiment, plan, cohort), mesh)
            programs['personal'] = compiled(personal, kept, weights, count, own)

    def of_locals(server: ServerState, kept: Kept, cohort: np.ndarray) -> dict[str, float]:
        if not config.local_eval_every:
            return {}
        found: dict[str, list[np.ndarray]] = {}
        for plan, rows in kept:
            used, count = plan.used, split(plan.clients, mesh)
            models = split(jax.tree.map(functools.partial(spread, used=used), rows), mesh)
            each = programs['local'](models, count, *test_set)
            found.setdefault('local_accuracy', []).append(np.asarray(each)[used])
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
                found.setdefault(name, []).append(np.asarray(each)[holding])
        means = {name: np.concatenate(parts) for name, parts in found.items()}
        return {name: float(values.mean()) for name, values in means.items() if values.size}

    return Tests(
        of_global=lambda server: jax.device_get(
            of_global((server.params, server.stats), *test_set)
        ),
        of_locals=of_locals,
        programs=list(programs.values()),
    )


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
