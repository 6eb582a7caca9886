"""The measurements of `cost_model`: rounds and evaluations of cases, in separate processes.

The cases of D devices are measured by one process on D cores. All processes and cases take turns.
"""

import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from rich.progress import track

from experiments.benchmarks.measuring import reporting, workers
from experiments.benchmarks.measuring.timing import interleave
from experiments.benchmarks.programs.rounds import CLASSES, SHAPE, Trainer, write_images
from jaxfed import Config
from jaxfed.engine.execution import peak_memory
from jaxfed.engine.lanes import schedule
from jaxfed.models import make_model
from jaxfed.models.ops import convolution
from jaxfed.runs.experiment import make_experiment
from jaxfed.types import Array, PyTree

EXAMPLES, TESTED = 8000, 1000
MODULE = 'experiments.benchmarks.cost_model.cases'


class Case(NamedTuple):
    """A round that is measured."""

    model: str
    batch_size: int
    clients: int  # a round
    steps: int  # local steps of each
    devices: int
    lanes: int = 1
    held_out: str = ''  # the new property of a case that is not fitted


# A step of each network in small and large batches, and each quantity varied.
CASES = (
    Case('mlp', 10, 4, 10, 4),
    Case('mlp', 50, 4, 10, 4),
    Case('mlp', 50, 32, 5, 4),
    Case('mlp', 10, 200, 1, 4),
    Case('mlp', 50, 4, 20, 1),
    Case('mlp', 50, 8, 10, 2),
    Case('mlp', 50, 8, 5, 1, 4),
    Case('lenet', 10, 4, 10, 4),
    Case('lenet', 50, 8, 10, 4),
    Case('lenet', 50, 2, 20, 1),
    Case('lenet', 100, 6, 5, 2),
    Case('lenet', 10, 100, 2, 4),
    Case('lenet', 50, 4, 5, 1, 2),
    Case('cnn', 10, 4, 10, 4),
    Case('cnn', 50, 4, 5, 4),
    Case('cnn', 50, 1, 5, 1),
    Case('cnn', 10, 16, 2, 2),
    Case('cnn', 10, 4, 4, 1, 2),
    Case('resnet8', 10, 4, 5, 4),
    Case('resnet8', 50, 2, 2, 2),
    Case('resnet8', 10, 2, 4, 1, 2),
    Case('lenet', 20, 40, 8, 4, held_out='size'),
    Case('cnn', 25, 10, 8, 4, held_out='size'),
    Case('mlp', 20, 60, 4, 3, held_out='size and devices'),
    Case('resnet8', 25, 8, 4, 4, held_out='size'),
    Case('cnn', 20, 3, 4, 1, 3, held_out='size and lanes'),
    Case('mobilenet', 10, 4, 4, 4, held_out='network'),
    Case('vgg11', 10, 4, 4, 4, held_out='network'),
)


class Step(NamedTuple):
    """Cost of a network by the plain algorithm, as XLA counts it; for one image except P."""

    parameters: int
    train_flops: float
    train_bytes: float
    test_flops: float
    test_bytes: float


class Counts(NamedTuple):
    """Quantities of a compiled case."""

    memory: int  # bytes of the round's program on each device, without the images
    needed: int  # bytes on each device, as estimated before training
    busiest: tuple[int, int]  # clients and steps on the busiest device, idle lanes included
    executed: int  # steps on all devices, idle lanes included


class Turn(NamedTuple):
    """Seconds of a round without evaluation, and of an evaluation."""

    round: float
    test: float
    work: float  # CPU seconds of all cores for the round
    test_work: float


class Measured(NamedTuple):
    """A case and its measurements."""

    case: Case
    counts: Counts
    turns: list[Turn]

    def median(self, name: str) -> float:
        """Median of a field of the turns."""
        return statistics.median(self.all(name))

    def all(self, name: str) -> list[float]:
        """A field of all turns."""
        return [getattr(turn, name) for turn in self.turns]


@functools.cache
def step_of(name: str) -> Step:
    """Counts operations and bytes of a network; an image costs the difference of one more."""
    model = make_model(
        name, input_shape=SHAPE, num_classes=CLASSES, convolution=convolution('grouped')
    )
    params = jax.eval_shape(model.init, jax.random.key(0))

    def train(params: PyTree, x: Array) -> Array:
        return jnp.sum(model.train(params, x, model.stats, jnp.ones(len(x), bool)).logits)

    def test(params: PyTree, x: Array) -> Array:
        return model.evaluate(params, x, model.stats).logits

    def count(function: Callable[..., Any], images: int) -> np.ndarray:
        x = jax.ShapeDtypeStruct((images, *SHAPE), jnp.float32)
        analysis = jax.jit(function).lower(params, x).cost_analysis()
        assert analysis is not None
        return np.array([analysis['flops'], analysis['bytes accessed']])

    trained, tested = (count(f, 3) - count(f, 2) for f in (jax.grad(train), test))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    return Step(parameters, *trained.tolist(), *tested.tolist())


def compile_case(case: Case, folder: Path, *, rounds: int) -> tuple[Trainer, Counts]:
    """Compiles a case for at most `rounds` measurements, with images in `folder`; runs a round."""
    path = write_images(folder / 'x.npz', train=EXAMPLES, test=TESTED)
    clients, rest = divmod(EXAMPLES, case.batch_size * case.steps)
    assert clients >= case.clients and not rest, case
    config = Config(
        dataset='npz', npz=str(path), model=case.model, partition='iid', num_clients=clients,
        clients_per_round=case.clients, local_epochs=1, batch_size=case.batch_size,
        rounds=rounds + 2, devices=str(case.devices), lanes=case.lanes,
    )  # fmt: skip
    experiment = make_experiment(config)
    trainer = Trainer([experiment])
    measure_turn(trainer)
    plan = schedule([case.steps] * case.clients, lanes=case.lanes, devices=case.devices)
    memory = peak_memory(trainer.prepared.programs.train)
    memory -= experiment.dealt.dataset.x_train.nbytes
    busiest = int(plan.clients.max()), plan.length * case.lanes
    return trainer, Counts(memory, trainer.prepared.needed, busiest, plan.executed)


def measure_turn(trainer: Trainer) -> Turn:
    """Measures the next round and an evaluation."""
    ticks, seconds = [time.process_time()], []
    for run in (trainer.train_round, trainer.evaluate):
        seconds.append(run())
        ticks.append(time.process_time())
    return Turn(*seconds, *np.diff(ticks).tolist())


def cases_of(devices: int) -> list[Case]:
    """The cases of a process."""
    return [case for case in CASES if case.devices == devices]


def measure(repeats: int) -> list[Measured]:
    """Measures all cases in turns."""
    with contextlib.ExitStack() as stack:
        # One after another, so that no two compile on the same cores.
        processes = {
            devices: stack.enter_context(
                workers.start(MODULE, [f'--devices={devices}', f'--repeats={repeats}'])
            )
            for devices in track(
                dict.fromkeys(case.devices for case in CASES), 'compiling', transient=True
            )
        }
        places = {case: cases_of(case.devices).index(case) for case in CASES}
        asks = {
            case: functools.partial(processes[case.devices].ask, place)
            for case, place in places.items()
        }
        answers = interleave(asks, repeats, warm_up=False)
    measured = []
    for case, place in places.items():
        memory, needed, busiest, executed = processes[case.devices].ready[place]
        counts = Counts(memory, needed, tuple(busiest), executed)
        measured.append(Measured(case, counts, [Turn(*answer) for answer in answers[case]]))
    return measured


def main(args: flags.FlagValues) -> None:
    """For every request, the index of a case with this number of devices, measures that case."""
    workers.use_cores(args.devices)
    with tempfile.TemporaryDirectory() as name:
        compiled = [
            compile_case(case, Path(name), rounds=args.repeats) for case in cases_of(args.devices)
        ]
        workers.serve(
            [counts for _, counts in compiled], lambda place: measure_turn(compiled[place][0])
        )


if __name__ == '__main__':
    reporting.define_positive('devices', 1, 'Devices of the cases, each a core.')
    reporting.define_positive('repeats', 7, 'Measurements of each case, at most.')
    reporting.run(main)
