"""Compile the programs of a run for an accelerator that this machine does not have.

Prints for every program the seconds of the compiler, by the clock and of all cores; temporary
memory; operations; bytes read and written, and their ratio to the least that a step can move; the
time that both take at the device's peaks; and collectives. `step` is one local step of all lanes;
the other programs contain loops, of which one turn is counted. XLA counts the operations of these
programs for a TPU. It counts none for a GPU, so those of the matrix products and convolutions are
counted here, as for `step` on every target. Nothing is run. Images have the shape of CIFAR-10; the
flags of a run choose the rest.

python -m experiments.benchmarks.ahead_of_time --target=tpu-v5e --method=fedlmd --model=cnn
python -m experiments.benchmarks.ahead_of_time --target=h100 --output=ahead_of_time_h100 \\
    --cases='model=cnn,lenet lanes=1,10 conv=grouped,patches'

A target needs its compiler, but no driver: pip install 'jaxfed[tpu]' or 'jaxfed[cuda12]'.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import json
import math
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh, NamedSharding

from experiments.benchmarks import compiled, reporting
from experiments.benchmarks.rounds import CLASSES, SHAPE
from experiments.benchmarks.targets import TARGETS, Target, compile_elsewhere, target_mesh
from jaxfed.config import SETTINGS, Config
from jaxfed.data.augment import make_augment, normalise
from jaxfed.engine.devices import REPLICATED, shapes
from jaxfed.engine.local import Context
from jaxfed.engine.round import run_steps, start_lanes
from jaxfed.engine.stacking import stacking
from jaxfed.internal.backend import compile_program, compiling_for
from jaxfed.internal.files import read_json, write_json
from jaxfed.methods.costs import size_of
from jaxfed.models import ops
from jaxfed.runs import checks, config_flags
from jaxfed.runs.experiment import Experiment, build_method, make_experiment, make_network
from jaxfed.runs.memory import size_in_words
from jaxfed.runs.prepare import Prepared, local_settings, prepare
from jaxfed.types import Dataset

EXAMPLES = 50_000
TIMES = ('compile_seconds', 'compile_cpu_seconds')  # the second does not grow with other work
LAYERS = ('conv_general_dilated', 'dot_general')
BASE = {'partition': 'iid', 'num_clients': 100}  # equal clients, which all train side by side


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
    try:
        experiment = make_experiment(config, None, black_images())
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    mesh, seconds = target_mesh(target, devices), dict[str, tuple[float, float]]()
    last = [time.process_time()]

    def note(event: str, duration_secs: float, **facts: Any) -> None:
        # The event before is the end of the program's lowering.
        before, last[0] = last[0], time.process_time()
        if event.endswith('/backend_compile_duration'):
            seconds[facts['fun_name']] = duration_secs, last[0] - before

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        with compiling_for(target.platform, at_once), counted() as operations:
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
    """One local step of all lanes of a device, as `train` runs it in a loop."""
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


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """The `products` of each program that is lowered meanwhile, by the name of its function."""
    operations, lower = dict[str, int](), jax.stages.Traced.lower

    def count(traced: Any, **options: Any) -> Any:
        operations[traced.fun_name] = products(traced.jaxpr.jaxpr)
        return lower(traced, **options)

    # A compiled program has no jaxpr.
    with mock.patch.object(jax.stages.Traced, 'lower', count):
        yield operations


def products(jaxpr: Any) -> int:
    """Operations of the matrix products and convolutions of a program, a loop counted as one turn.

    XLA, too, counts one turn of a loop.
    """
    total = 0
    for equation in jaxpr.eqns:
        total += sum(map(products, jaxprs_in_params(equation.params)))
        if equation.primitive.name == 'dot_general':
            (contracted, _), _ = equation.params['dimension_numbers']
            sides = equation.invars[0].aval.shape
            terms = math.prod(sides[axis] for axis in contracted)
        elif equation.primitive.name == 'conv_general_dilated':
            kernel, (output, *_) = (
                equation.invars[1].aval.shape,
                equation.params['dimension_numbers'].rhs_spec,
            )
            terms = math.prod(kernel) // kernel[output]
        else:
            continue
        total += 2 * terms * equation.outvars[0].aval.size
    return total


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

    def results(jaxpr: Any) -> int:
        named = [e for e in jaxpr.eqns if e.primitive.name in LAYERS]
        inside = [inner for e in jaxpr.eqns for inner in jaxprs_in_params(e.params)]
        return sum(size_of([v.aval for v in e.outvars]) for e in named) + sum(map(results, inside))

    activations = size_of(x) + results(jaxpr.jaxpr)
    return lanes * (2 * size_of(params) + activations // (1 + (config.precision == 'bfloat16')))


def parse_cases(text: str) -> list[dict[str, str]]:
    """The settings of each case of --cases, in the order of the text."""
    cases = []
    for part in text.split(';'):
        words = [word.partition('=') for word in part.split()]
        if not all(name in SETTINGS and values for name, _, values in words):
            raise app.UsageError(
                f"--cases={text!r} must name settings and values, as 'model=cnn,lenet lanes=1,10', "
                'and join several grids by semicolons.'
            )
        axes = [[(name, value) for value in values.split(',')] for name, _, values in words]
        cases += [dict(case) for case in itertools.product(*axes)]
    return cases


def words_of(values: flags.FlagValues, *omitted: str) -> list[str]:
    """The flags of the command as words, without those of all cases and the omitted ones."""
    # The flags of a flag file are present themselves.
    others = (*omitted, 'cases', 'output', 'flagfile')
    chosen = [values[name] for name in values if values[name].present or name in BASE]
    return [flag.serialize() for flag in chosen if flag.name not in others]


def config_of(words: Sequence[str], case: Mapping[str, str], devices: int = 1) -> Config:
    """The settings of a case on top of those of the command; every lane of a device has a client.

    Raises:
      UsageError: if they are invalid.
    """
    try:
        of_case = [f'--{name}={value}' for name, value in case.items()]
        config = config_flags.parse([*words, *of_case])
        cohort = max(config.lanes * devices, config.clients_per_round)
        config = dataclasses.replace(config, clients_per_round=cohort, devices='all')
        checks.check(config)
        build_method(config)
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    return config


def devices_of(target: Target, text: str) -> int:
    """The number of devices that --devices names; 'all' is one.

    Raises:
      UsageError: if the target has no such number.
    """
    most = max(target.topologies)
    if text != 'all' and not (text.isdecimal() and 1 <= int(text) <= most):
        raise app.UsageError(f'--devices={text} must be all (one device) or in 1..{most}.')
    return 1 if text == 'all' else int(text)


def read_cases(
    output: str | None, report: Mapping[str, Any], cases: Sequence[Mapping[str, str]]
) -> dict[str, dict[str, Any]]:
    """The compiled cases of an earlier, interrupted command by their settings as JSON.

    Raises:
      UsageError: if the file is damaged, or of another machine or other settings than the report,
        or has other cases than these, which would be lost.
    """
    file = Path(f'{output}.json')
    if not output or not file.exists():
        return {}
    try:
        before = read_json(file)
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    reporting.check_unchanged(output, report, before)
    found = before['cases']
    others = [name_of(case) for case in found if case['settings'] not in cases]
    if others:
        raise app.UsageError(
            f'--output={output}: {file} has cases that --cases does not name, such as '
            f"'{others[0]}'; name them, too, or choose another --output."
        )
    return {json.dumps(case['settings']): case for case in found if 'failed' not in case}


def compile_in_process(case: Mapping[str, str], limit: int) -> dict[str, Any]:
    """The measures of a case, from a process that ends after `limit` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'case'
        words = words_of(flags.FLAGS, 'limit')
        words += [f'--{name}={value}' for name, value in case.items()]
        command = [sys.executable, '-m', 'experiments.benchmarks.ahead_of_time', *words]
        try:
            done = subprocess.run(
                [*command, f'--output={file}'], timeout=limit, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            return {'failed': f'not compiled after {limit} s'}
        if done.returncode:
            return {'failed': reason(done.stderr)}
        return read_json(file.with_suffix('.json'))['cases'][0]


def reason(text: str) -> str:
    """Why a process failed: an exception or a failed check in its output, else its last line."""
    lines = text.strip().splitlines() or ['no message']
    # The compiler's stack follows its message.
    errors = re.findall(r'^[\w.]+Error: .*|\S+] Check failed: .*', text, re.MULTILINE)
    return (errors or lines)[-1][:200].replace('|', '/')


def name_of(case: Mapping[str, Any]) -> str:
    """The settings of a case in words."""
    return ' '.join(f'{key}={value}' for key, value in case['settings'].items()) or 'the run'


def title_of(case: Mapping[str, Any]) -> str:
    """The settings of a case, its precision, memory, and the seconds until its run would start."""
    words = [name_of(case)]
    if 'failed' not in case:
        words += [case['precision'], f'{size_in_words(case["memory"])} on a device']
    if 'prepare_seconds' in case:  # earlier versions wrote none
        words.append(f'ready after {case["prepare_seconds"]:.0f} s')
    return ', '.join(words)


def largest_of(case: Mapping[str, Any]) -> str:
    """The instructions of a step that move most bytes, in words; '' if they are not known."""
    largest = case.get('programs', {}).get('step', {}).get('largest', ())
    named = (f'{i["bytes"] / 1e6:.0f} MB {compiled.label(i["name"], i["source"])}' for i in largest)
    return ', '.join(named)


def notes_of(case: Mapping[str, Any]) -> str:
    """The lines below the table of a case."""
    found = [
        f'{n} {kind} in {program}'
        for program, measured in case.get('programs', {}).items()
        for kind, n in measured['collectives'].items()
    ]
    return f'collectives: {", ".join(found) or "none"}\nlargest of a step: {largest_of(case)}'


def rows(target: Target, case: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table of a case, one for each program."""
    if 'failed' in case:
        return [[case['failed'], *[''] * (len(COLUMNS) - 1)]]
    peak, found = target.flops[case['precision']], []
    for program, measured in case['programs'].items():
        flop, moved = measured['flop'], measured['bytes']
        least = case['least_bytes_of_a_step'] if program == 'step' else None
        collectives = [f'{n} {kind}' for kind, n in measured['collectives'].items()]
        found.append(
            [
                program,
                f'{measured["compile_seconds"]:.1f}',
                f'{measured["compile_cpu_seconds"]:.1f}',
                f'{measured["memory"]["temporary"] / 2**20:.0f}',
                f'{flop / 1e9:.1f}' if flop is not None else '-',
                f'{moved / 1e9:.2f}',
                f'{moved / least:.1f}' if least else '',
                f'{1e3 * flop / peak:.2f}' if flop is not None else '-',
                f'{1e3 * moved / target.bandwidth:.2f}',
                ', '.join(collectives) or 'none',
            ]
        )
    return found


COLUMNS = (
    'program', 's', 'CPU s', 'MiB', 'GFLOP', 'GB', 'to least', 'ms, FLOP', 'ms, GB',
    'collectives',
)  # fmt: skip
LEGEND = (
    '`step` is one local step of all lanes. A loop counts as one turn. GFLOP '
    'are those of matrix products and convolutions; for a TPU, except in `step`, those of all '
    'operations, as XLA counts them. `-`: not counted.'
)


def show(report: Mapping[str, Any]) -> None:
    """Print a table for each case."""
    target = TARGETS[report['target']]
    for case in report['cases']:
        cells = [row[:-1] for row in rows(target, case)]
        notes = notes_of(case) if 'programs' in case else ''
        reporting.console.print(
            reporting.make_table(title_of(case), COLUMNS[:-1], cells, caption=notes)
        )
    where = f'{report["target"]}, {reporting.plural(report["devices"], "device")}'
    reporting.console.print(f'{where}; {reporting.caption(report["machine"])}')


def write_page(report: Mapping[str, Any], path: Path) -> None:
    """Write the tables of all cases as one of Markdown."""
    target = TARGETS[report['target']]
    lines = [('case', *COLUMNS), ['---'] * (len(COLUMNS) + 1)]
    for case in report['cases']:
        names = itertools.chain([title_of(case)], itertools.repeat(''))
        lines += [[name, *row] for name, row in zip(names, rows(target, case), strict=False)]
    table = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    largest = ((name_of(case), largest_of(case)) for case in report['cases'])
    steps = '\n'.join(f'- {name}: {text}' for name, text in largest if text)
    if steps:
        table += f'\n\nThe instructions of a step that move most bytes:\n\n{steps}'
    where = f'{report["target"]}, {reporting.plural(report["devices"], "device")}'
    caption = reporting.caption(report['machine'])
    path.write_text(f'# Programs compiled for {where}\n\n{caption}\n\n{LEGEND}\n\n{table}\n')


def main(args: flags.FlagValues) -> None:
    """Compile every case, print the table and write the files after each case."""
    target = TARGETS[args.target]
    cases, devices = parse_cases(args.cases), devices_of(target, args.devices)
    settings = words_of(args, 'target', 'at_once', 'limit')
    configs = [config_of(settings, case, devices) for case in cases]
    if importlib.util.find_spec(target.package) is None:
        extra = {'tpu': 'tpu', 'gpu': 'cuda12'}[target.platform]
        raise app.UsageError(
            f"--target={args.target} needs its compiler: pip install 'jaxfed[{extra}]'."
        )
    compile_elsewhere()
    words = ['python', '-m', 'experiments.benchmarks.ahead_of_time', *sys.argv[1:]]
    report: dict[str, Any] = {
        'target': args.target,
        'devices': devices,
        'command': shlex.join(words),
        'machine': reporting.machine() | {target.package: version(target.package)},
        'settings': {'target': args.target, 'at_once': args.at_once, 'flags': settings},
        'cases': [],
    }
    done = read_cases(args.output, report, cases)
    for number, case in enumerate(cases, 1):
        with reporting.console.status(f'compiling case {number} of {len(cases)}: {case or ""}'):
            if len(cases) == 1:
                measured = compile_case(target, configs[0], devices=devices, at_once=args.at_once)
            else:
                measured = done.get(json.dumps(case)) or compile_in_process(case, args.limit)
        done[json.dumps(case)] = measured | {'settings': case}
        # With the later cases of an earlier command, which an interruption must not lose.
        report['cases'] = [done[key] for key in map(json.dumps, cases) if key in done]
        if args.output:
            write_json(Path(f'{args.output}.json'), report)
            write_page(report, Path(f'{args.output}.md'))
    show(report)
    if any('failed' in case for case in report['cases']):
        sys.exit(1)


if __name__ == '__main__':
    config_flags.define_flags()
    for name, value in BASE.items():
        flags.FLAGS.set_default(name, value)
    flags.DEFINE_enum('target', None, list(TARGETS), 'The accelerator.', required=True)
    flags.DEFINE_string('cases', '', "As 'model=cnn,lenet lanes=1,10; method=fedntd'.")
    reporting.define_positive('at_once', 1, 'Programs that are compiled side by side.')
    reporting.define_positive('limit', 1200, 'Seconds after which a case is given up.')
    flags.DEFINE_string('output', None, 'Files to write, without suffix: .json and .md.')
    reporting.run(main)
