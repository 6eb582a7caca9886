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

A target needs its compiler, but no driver: pip install -e '.[tpu]' or '.[cuda12]'.
"""

import dataclasses
import importlib.util
import itertools
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from absl import app, flags

from experiments.benchmarks.ahead_of_time.compiling import compile_case
from experiments.benchmarks.ahead_of_time.page import name_of, show, write_page
from experiments.benchmarks.ahead_of_time.targets import (
    TARGETS,
    Target,
    compile_elsewhere,
)
from experiments.benchmarks.measuring import reporting
from jaxfed.config import DEFAULTS, SETTINGS, Config
from jaxfed.internal.files import read_json, write_json
from jaxfed.runs import checks, config_flags
from jaxfed.runs.experiment import build_method

BASE = {'partition': 'iid', 'num_clients': 100}  # equal clients, which all train side by side
WITHOUT_EFFECT = ('dataset', 'data_dir', 'npz', 'path', 'workdir')  # settings


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
    others = (*omitted, 'cases', 'output', 'flagfile', 'in_process')
    chosen = [values[name] for name in values if values[name].present or name in BASE]
    return [flag.serialize() for flag in chosen if flag.name not in others]


def config_of(words: Sequence[str], case: Mapping[str, str], devices: int = 1) -> Config:
    """The settings of a case on top of those of the command; every lane of a device has a client.

    Raises:
      UsageError: if they are invalid.
    """
    with reporting.usage_errors():
        of_case = [f'--{name}={value}' for name, value in case.items()]
        config = config_flags.parse([*words, *of_case])
        for name in WITHOUT_EFFECT:
            if getattr(config, name) != DEFAULTS[name]:
                raise ValueError(
                    f'--{name} has no effect: images have the shape of CIFAR-10, and nothing is '
                    'run; leave it out.'
                )
        cohort = max(config.lanes * devices, config.clients_per_round)
        config = dataclasses.replace(config, clients_per_round=cohort, devices='all')
        checks.check(config)
        build_method(config)
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
    with reporting.usage_errors():
        before = read_json(file)
    reporting.check_unchanged(output, report, before)
    found = before['cases']
    others = [name_of(case) for case in found if case['settings'] not in cases]
    if others:
        raise app.UsageError(
            f'--output={output}: {file} has cases that --cases does not name, such as '
            f"'{others[0]}'; name them, too, or choose another --output."
        )
    return {json.dumps(case['settings']): case for case in found if 'failed' not in case}


def compile_apart(case: Mapping[str, str], limit: int) -> dict[str, Any]:
    """The measures of a case, from a process that ends after `limit` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'case'
        words = words_of(flags.FLAGS, 'limit')
        words += [f'--{name}={value}' for name, value in case.items()]
        words = ['-m', 'experiments.benchmarks.ahead_of_time', *words, '--in_process']
        try:
            done = subprocess.run(
                [sys.executable, *words, f'--output={file}'], timeout=limit, capture_output=True,
                text=True,
            )  # fmt: skip
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


def main(args: flags.FlagValues) -> None:
    """Compile every case, print the table and write the files after each case."""
    target = TARGETS[args.target]
    cases, devices = parse_cases(args.cases), devices_of(target, args.devices)
    settings = words_of(args, 'target', 'at_once', 'limit')
    configs = [config_of(settings, case, devices) for case in cases]
    if importlib.util.find_spec(target.package) is None:
        extra = {'tpu': 'tpu', 'gpu': 'cuda12'}[target.platform]
        raise app.UsageError(
            f"--target={args.target} needs its compiler: pip install -e '.[{extra}]'."
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
            if args.in_process:
                measured = compile_case(target, configs[0], devices=devices, at_once=args.at_once)
            else:
                measured = done.get(json.dumps(case)) or compile_apart(case, args.limit)
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
    flags.DEFINE_bool('in_process', False, 'Compile in this process, as each case does.')
    reporting.run(main)
