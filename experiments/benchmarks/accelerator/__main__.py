"""Everything worth knowing about jaxfed on one device, the most important first.

The memory of FedLMD comes first, because the device reports the largest of the process. The other
parts are ordered by worth: runs of FedLMD, evaluation, a profile, the host's share, agreement with
a plain loop over clients, a whole round, determinism, local steps, sweeps and the memory of large
batches. On an H200 the parts before the local steps took 6 minutes, the local steps 4.5 and a case
of sweeps 2. After --minutes, 10 by default, no case starts; the page names those that are missing.
Both files are written after every case, so a command that is cut off loses one case. The same
command continues in the same folder, also if --minutes had passed; a case that ended the process
twice is left out. The exit status is 1 if a case failed. Use another folder after a change of the
code.

python -m experiments.benchmarks.accelerator --output=DIR --npz=FILE

FILE holds CIFAR-10 as arrays, as for --dataset=npz; without it the images are random. --parts=NAME
measures one part and may be repeated; --help lists the names. --cases=TEXT measures only cases
with TEXT in their names, as in --parts=steps --cases=PyTorch --cases='10 lanes, tf32'.
"""

import copy
import gc
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import app, flags

from experiments.benchmarks.accelerator import host
from experiments.benchmarks.accelerator import rounds as whole
from experiments.benchmarks.accelerator import steps as bare
from experiments.benchmarks.accelerator.steps import Cases
from experiments.benchmarks.accelerator.work import TOY, Clock, Row, Sizes, Tiny, Work, load_images
from experiments.benchmarks.measuring import reporting
from jaxfed.engine.devices import CUDA, describe_devices, find_devices, idle_accelerator
from jaxfed.internal.console import show_error, show_warning
from jaxfed.internal.files import read_json, write_atomic, write_json
from jaxfed.internal.signals import ending
from jaxfed.internal.versions import versions_of
from jaxfed.models import MODELS

Report = dict[str, Any]
DEFAULTS = (
    "jaxfed's defaults for accelerators rest on an H200 and on programs compiled ahead of time "
    '(BUILD_NOTES.md, "A GPU, measured" and after it); no TPU was measured.'
)
RANDOM = 'The images are random, so accuracies mean nothing.'
TRIES = 2  # of a case that ends the process, as a failed check of XLA does


class Part(NamedTuple):
    """A table of the page."""

    title: str
    text: str
    columns: Mapping[str, str]  # key of a row -> heading
    cases: Any  # Work -> cases


MEMORY = {
    'lanes': 'lanes', 'estimated_mib': 'estimated MiB', 'used_mib': 'used MiB', 'ratio': 'ratio',
    'compiling_mib': 'until compiled, MiB',
}  # fmt: skip
PARTS = {
    # The device reports the peak of the process, which all other programs raise.
    'memory': Part(
        'Memory',
        "jaxfed's estimate and the peak of the device's memory after a round, and before it: a "
        'compiler that times algorithms uses memory, too. A program that needs less than an '
        'earlier one of this process has no measurement.',
        MEMORY,
        whole.memory,
    ),
    'run': Part(
        'Runs of FedLMD',
        'Settings of `experiments/fedlmd/cifar10_lda0.05.flags`, but dealt with '
        '`--partition=dirichlet --sampling=uniform`, with evaluation after each round, '
        'records and checkpoints, by `--precision`. Goal: 200 rounds in 20 s after compilation on '
        'a GPU of the class of an H100. If the first measurement of memory came before, the '
        'programs in float32 were compiled already, and their `compile s` is too small.',
        {
            'rounds': 'rounds', 'after_s': 's after compilation', 'run_s': 's for 200 rounds',
            'in_rounds_s': 's in rounds', 'evaluation': 'share of evaluation',
            'compile_s': 'compile s', 'accuracy': 'accuracy',
        },
        whole.runs_of_fedlmd,
    ),
    'evaluation': Part(
        'Evaluation',
        'All test images, by the number that is evaluated at once.',
        {'images': 'images', 'ms': 'ms'},
        bare.evaluations,
    ),
    'profile': Part(
        'Where the time goes',
        "Operations of FedLMD's training program by the profiler. A kernel whose operation is "
        'unknown is listed by its own name, which several operations may share. Operations that '
        'run side by side are added up.',
        {'ms': 'ms a client-step', 'share': 'share'},
        host.profile,
    ),
    'host': Part(
        'Host',
        'The same rounds of FedLMD as users run them, their compiled programs back to back with '
        'all inputs on the device, and the steps of a round, each of which waits for its results; '
        'in turns of ten rounds. Medians. Goal: the host takes less than 5 %. On a CPU that other '
        'work uses, the difference may be smaller than its error, and negative; the processor time '
        'of the thread that calls the programs, with records and checkpoints, is less affected.',
        {'ms': 'ms a round', 'share': 'share'},
        host.host,
    ),
    'agreement': Part(
        'Agreement with a plain loop over clients',
        'Parameters after a round of equal clients with one batch each, in float32 by lowering of '
        'convolutions: norm of the difference relative to that of the changes in the same array. '
        f'Float32 agrees below {bare.TOLERANCE:g}. The last row shows what factors of fewer digits '
        'give on a GPU; a CPU has no tf32.',
        {'relative': 'largest relative difference', 'agrees': 'agrees'},
        bare.agreement,
    ),
    'round': Part(
        'A round beside one client at a time',
        'FedAvg in float32 without augmentation: one program of jaxfed, and a loop over clients '
        'and batches in plain JAX with the data on the device, in turns; median of their ratios.',
        {'round_s': 's a round', 'ms': 'ms a client-step', 'times': 'times as fast as the loop'},
        whole.whole_round,
    ),
    'determinism': Part(
        'Determinism',
        'The same program twice from the same state, and the parameters after two runs of FedLMD '
        'of a few rounds, each of which compiles all its programs. A compiler that times '
        'algorithms may remember its choices within a process, so compare the digest of the '
        'parameters with that of another command, too.',
        {'equal': 'equal in every bit', 'difference': 'largest difference', 'digest': 'digest'},
        host.determinism,
    ),
    'steps': Part(
        'Local step',
        'A client-step is one batch of one client; a lane is a client side by side with others. '
        'The share is that of a large matrix product of the same precision; all forms are counted '
        'with the operations of a direct convolution. PyTorch, if installed on a GPU, trains one '
        'client after another with its default choice of algorithms.',
        {'ms': 'ms a client-step', 'tflops': 'TFLOP/s', 'share': 'share', 'compile_s': 'compile s'},
        bare.local_steps,
    ),
    'sweeps': Part(
        'Experiments in one program',
        'Training rounds of FedLMD with different hyper-parameters and seeds in one program, in '
        'turns with rounds of a single experiment.',
        {
            'experiments': 'experiments', 'lanes': 'lanes', 'ms': 'ms a client-step',
            'alone_ms': 'alone, ms', 'times': 'times as fast', 'compile_s': 'compile s',
            'estimated_mib': 'estimated MiB', 'used_mib': 'used MiB',
        },
        whole.sweeps,
    ),
    'large_memory': Part(
        'Memory with large batches',
        'Estimate and peak of a run with large batches of many clients, as for a usual one.',
        MEMORY,
        whole.large_memory,
    ),
}  # fmt: skip


def select(parts: Mapping[str, Part], texts: Sequence[str], work: Work) -> dict[str, Part]:
    """The parts with those of their cases that have one of the texts in their names.

    Raises:
      UsageError: if no case has a text in its name.
    """
    names = [name for part in parts.values() for name in part.cases(work)]
    for text in texts:
        if not any(text in name for name in names):
            raise app.UsageError(f'--cases={text} is in no name of {"; ".join(names)}.')

    def cases(part: Part, work: Work) -> Cases:
        found = part.cases(work).items()
        return {name: case for name, case in found if any(text in name for text in texts)}

    chosen = {name: part._replace(cases=partial(cases, part)) for name, part in parts.items()}
    return {name: part for name, part in chosen.items() if part.cases(work)}


def describe(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or ['']
    return f'{type(error).__name__}: {lines[0]}'[:300]


def not_finite(rows: Sequence[Row]) -> str | None:
    """The first number of a case that is not finite, in words."""
    for row in rows:
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                return f'{key} is {value}'
    return None


def measure_case(measure: Any) -> dict[str, Any]:
    """The rows of a case, or its error in one line, and its seconds."""
    start = time.perf_counter()
    try:
        rows = measure()
        wrong = not_finite(rows)
        result = {'failed': wrong} if wrong else {'rows': rows}
    except Exception as error:
        result = {'failed': describe(error)}
    gc.collect()  # JAX's arrays in circles of references stay on the device otherwise
    return result | {'seconds': time.perf_counter() - start}


def run_parts(work: Work, parts: Mapping[str, Part], report: Report, folder: Path) -> None:
    """Measures all parts in their order, and writes the files after every case.

    Args:
      work: sizes and data.
      parts: by name.
      report: whose `parts` this function fills; cases that it has are not measured again.
      folder: of the files.
    """
    for name, part in parts.items():
        entry = report['parts'].setdefault(name, {'cases': {}})
        entry['skipped'], known = [], entry['cases']
        begun = entry.setdefault('begun', {})
        try:
            cases = part.cases(work)
        except Exception as error:
            entry['failed'] = describe(error)
            write(report, parts, folder)
            continue
        for case, measure in cases.items():
            if case in known:
                continue
            if work.clock.over():
                entry['skipped'].append(case)
                continue
            if begun.get(case) == TRIES:
                known[case] = {'failed': f'ended the process {TRIES} times', 'seconds': 0.0}
                continue
            begun[case] = begun.get(case, 0) + 1
            write(report, parts, folder)
            with reporting.console.status(f'{part.title}: {case}'):
                known[case] = measure_case(measure)
            del begun[case]
            text = f'{name}: {case}: {known[case]["seconds"]:.1f} s'
            reporting.console.print(text, known[case].get('failed', ''), markup=False)
            write(report, parts, folder)
        entry['cases'] = {case: known[case] for case in cases if case in known}
        write(report, parts, folder)


def cell(value: Any) -> str:
    """A value of a row as text."""
    if value is None:
        return '-'
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.0f}' if abs(value) >= 1000 else f'{value:.3g}'
    return str(value)


def table(columns: Mapping[str, str], cases: Mapping[str, Any]) -> list[str]:
    """The lines of a Markdown table; a failed case has its error in the second column."""
    lines = [('case', *columns.values()), ['---'] * (len(columns) + 1)]
    for case, measured in cases.items():
        if 'failed' in measured:
            error = measured['failed'].replace('|', '\\|')
            lines.append([case, error, *[''] * (len(columns) - 1)])
        for row in measured.get('rows', ()):
            name = row.get('case', case).replace('|', '\\|')
            lines.append([name, *(cell(row.get(key)) for key in columns)])
    return [f'| {" | ".join(line)} |' for line in lines]


def page(report: Report, parts: Mapping[str, Part]) -> str:
    """The report as Markdown."""
    machine = report['machine']
    lines = [f'# {machine["device"]}', '', reporting.caption(machine), '', f'`{report["command"]}`']
    lines += ['', DEFAULTS]
    lines += ['', RANDOM] if report['settings']['npz'] is None else []
    for number, (name, part) in enumerate(parts.items(), 1):
        lines += ['', f'## {number}. {part.title}', '', part.text]
        entry = report['parts'].get(name)
        if entry is None:
            lines += ['', 'Not measured yet.']
            continue
        if entry['cases']:
            lines += ['', *table(part.columns, entry['cases'])]
            spent = sum(case['seconds'] for case in entry['cases'].values())
            lines += ['', f'Measured in {spent:.0f} s.']
        if 'failed' in entry:
            lines += ['', f'Failed: {entry["failed"]}']
        if skipped := entry.get('skipped'):
            lines += ['', f'Not measured, the time was over: {"; ".join(skipped)}.']
    return '\n'.join(lines) + '\n'


def write(report: Report, parts: Mapping[str, Part], folder: Path) -> None:
    """Writes both files atomically."""
    write_json(folder / 'accelerator.json', report)
    write_atomic(folder / 'accelerator.md', page(report, parts))


def known_parts(folder: Path, report: Report) -> Report:
    """The cases that an earlier, interrupted command measured.

    Raises:
      UsageError: if the file is damaged, or of another machine or other settings and would be lost.
    """
    file = folder / 'accelerator.json'
    if not file.exists():
        return {}
    with reporting.usage_errors():
        before = read_json(file)
    reporting.check_unchanged(folder, report, before)
    return {
        name: {
            'cases': {case: done for case, done in part['cases'].items() if 'rows' in done},
            'begun': part.get('begun', {}),
        }
        for name, part in before.get('parts', {}).items()
    }


def has_failed(report: Report) -> bool:
    """Whether a part or a case failed."""
    measured = report['parts'].values()
    return any('failed' in one for part in measured for one in [part, *part['cases'].values()])


def leave(
    report: Report, parts: Mapping[str, Part], before: Report, folder: Path, reason: str
) -> None:
    """Writes that a signal, not the case that it met, ended the process."""
    for name, entry in report['parts'].items():
        entry['begun'] = before['parts'].get(name, {}).get('begun', {})
    write(report, parts, folder)
    show_error(f'{reason}; the same command continues.')


def describe_machine() -> dict[str, str | int]:
    """Hardware and versions."""
    device = jax.devices()[0]
    platform = ' '.join(str(device.client.platform_version).split())
    packages = ('jaxlib', *CUDA, 'libtpu', 'optax')
    return (
        reporting.machine()
        | {'backend': device.platform, 'platform': platform}
        | versions_of(packages)
    )


def main(args: flags.FlagValues) -> None:
    """Measures the parts within the time."""
    if not args.minutes >= 0:
        raise app.UsageError(f'--minutes={args.minutes} must be a number of at least 0.')
    clock = Clock(args.minutes)
    parts = {name: part for name, part in PARTS.items() if name in args.parts}
    folder, sizes = Path(args.output), TOY if args.toy else Sizes()
    with reporting.usage_errors():
        reporting.console.print(f'device: {describe_devices(find_devices())}')
        dataset = load_images(args.npz, sizes.images)
    if idle := idle_accelerator():
        show_warning(idle)
    if args.cases:
        parts = select(parts, args.cases, Work(sizes, dataset, folder, clock))
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise app.UsageError(f'--output={folder} must be a folder: {error.strerror}.') from None
    settings = reporting.settings(args, 'npz', 'toy')
    settings |= {'parts': list(parts), 'cases': args.cases, 'sizes': repr(sizes)}
    words = ['python', '-m', 'experiments.benchmarks.accelerator', *sys.argv[1:]]
    report: Report = {
        'command': shlex.join(words),
        'machine': describe_machine(),
        'settings': settings,
        'parts': {},
    }
    report['parts'] = known_parts(folder, report)
    write(report, parts, folder)
    if args.toy:
        MODELS['tiny'] = Tiny
        jax.config.update('jax_disable_most_optimizations', True)  # compiles in half the time
    with tempfile.TemporaryDirectory() as name:
        # Several parts compile the same programs.
        jax.config.update('jax_compilation_cache_dir', f'{name}/compiled')
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)
        work = Work(sizes, dataset, Path(name), clock)
        with ending(partial(leave, report, parts, copy.deepcopy(report), folder)):
            run_parts(work, parts, report, folder)
    reporting.console.print(f'Written to {folder}/accelerator.md.', soft_wrap=True)
    if has_failed(report):
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_string('output', None, 'Folder of the files.', required=True)
    flags.DEFINE_float('minutes', 10, 'Time after which no further case starts.')
    flags.DEFINE_string('npz', None, 'CIFAR-10 as arrays; random images without it.')
    flags.DEFINE_multi_enum(
        'parts', list(PARTS), list(PARTS), 'Part to measure; may be repeated. All by default.'
    )
    flags.DEFINE_multi_string(
        'cases', [], 'Measure only cases with this text in their names; may be repeated.'
    )
    flags.DEFINE_bool('toy', False, 'Small sizes, to try the command.')
    reporting.run(main)
