"""Compiles the programs of a run for a target, and measures them."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from experiments.benchmarks.ahead_of_time.targets import Target, target_mesh
from experiments.benchmarks.measuring import compiled, reporting
from experiments.benchmarks.measuring.operations import counted, layer_bytes
from experiments.benchmarks.programs.rounds import CLASSES, SHAPE
from jaxfed.config import Config
from jaxfed.data.augment import make_augment, normalise
from jaxfed.engine.devices import REPLICATED, shapes
from jaxfed.engine.local import Context
from jaxfed.engine.round import run_steps, start_lanes
from jaxfed.engine.stacking import stacking
from jaxfed.internal.backend import compile_program, compiling_for
from jaxfed.methods.costs import size_of
from jaxfed.models import ops
from jaxfed.runs.experiment import Experiment, make_experiment, make_network
from jaxfed.runs.prepare import Prepared, local_settings, prepare
from jaxfed.types import Dataset

EXAMPLES = 50_000
TIMES = ('compile_seconds', 'compile_cpu_seconds')  # the second does not grow with other work


def black_images() -> Dataset:
    """Images of the shape of CIFAR-10."""
    x, y = np.zeros((EXAMPLES, *SHAPE), np.uint8), np.arange(EXAMPLES, dtype=np.int32) % CLASSES
    test = EXAMPLES // 5
    return Dataset('black images', x, y, x[:test], y[:test], CLASSES)


def compile_case(
    target: Target, config: Config, *, devices: int = 1, at_once: int = 1
) -> dict[str, Any]:
    """Compile the programs of a run for a target.

    Args:
      target: one of `TARGETS`.
      config: the settings; its data is ignored.
      devices: number of devices.
      at_once: programs that are compiled side by side; their CPU seconds are then mixed.

    Returns:
      Measures of each program by its name, see `compiled.describe`, with the seconds of its
      compilation; and the seconds until a run would start.
    """
    with reporting.usage_errors():
        experiment = make_experiment(config, None, black_images())
    mesh, seconds = target_mesh(target, devices), dict[str, tuple[float, float]]()
    last = [time.process_time()]

    def note(event: str, duration_secs: float, **facts: Any) -> None:
        # The event before is the end of the program's lowering.
        before, last[0] = last[0], time.process_time()
        if event.endswith('/backend_compile_duration'):
            seconds[facts['fun_name']] = duration_secs, last[0] - before

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        device_kind = mesh.devices.flat[0].device_kind
        with compiling_for(target.platform, at_once, device_kind), counted() as operations:
            prepared = prepare([experiment], mesh)
            step = compile_step(experiment, prepared, mesh)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    evaluation = prepared.evaluation
    test = 'evaluate_teacher' if 'agreement' in experiment.measures.needs else 'evaluate'
    programs = {
        'step': ('step', step),
        'train': ('train', prepared.programs.train),
        'merge': ('merge', prepared.programs.merge),
        'evaluation': (test, evaluation.global_model),
        'local evaluation': ('evaluate_locals', evaluation.local_models),
    }
    measures = {
        name: dict(zip(TIMES, seconds[f'jit({function})'], strict=True))
        | compiled.describe(program)
        for name, (function, program) in programs.items()
        if program is not None
    }
    for name, (function, _) in programs.items():
        if name in measures and (name == 'step' or measures[name]['flop'] is None):
            measures[name]['flop'] = operations[function]
    return {
        'precision': config.precision,
        'lanes': prepared.lanes,
        'memory': prepared.needed,
        'prepare_seconds': prepared.compile_seconds,
        'least_bytes_of_a_step': least_traffic(experiment, prepared.lanes),
        'programs': measures,
    }


def compile_step(experiment: Experiment, prepared: Prepared, mesh: Mesh) -> Any:
    """One local step of all lanes of a device, of which `train` has a loop.

    It may have copies that `train` has outside of the loop.
    """
    context = Context(
        experiment.model,
        experiment.method,
        local_settings(
            experiment.config,
            longest=max(map(len, experiment.dealt.partition)),
            image_shape=experiment.input_shape,
        ),
        make_augment(experiment.augmentations, mean=experiment.mean, std=experiment.std),
        functools.partial(normalise, mean=experiment.mean, std=experiment.std),
        None,
        stacking(),
    )
    one = NamedSharding(Mesh(mesh.devices[:1], mesh.axis_names), REPLICATED)
    train: Any = prepared.programs.train
    arguments, _ = train.args_info

    def step(device: Any, lanes: Any) -> Any:
        return run_steps(context, device, 1, lanes)

    start = functools.partial(start_lanes, context)
    operands = shapes(jax.eval_shape(start, *shapes(arguments, one)), one)
    return compile_program(step, *operands, donate_argnums=1)


def least_traffic(experiment: Experiment, lanes: int) -> int:
    """Bytes of a local step that moves parameters, gradients and activations once each.

    L (2 P + A), with P bytes of parameters and A of the images and of the results of all
    convolutions and dense layers.
    """
    config, model = experiment.config, experiment.model
    layers = ops.convolution('grouped')
    plain = make_network(config, experiment.input_shape, CLASSES, convolution=layers)
    params = jax.eval_shape(plain.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((config.batch_size, *experiment.input_shape), jnp.float32)
    jaxpr = jax.make_jaxpr(plain.evaluate)(params, x, model.stats)
    activations = size_of(x) + layer_bytes(jaxpr.jaxpr)
    return lanes * (2 * size_of(params) + activations // (1 + (config.precision == 'bfloat16')))
