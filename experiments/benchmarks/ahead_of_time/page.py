"""The tables of compiled programs, for the terminal and as a page of Markdown."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.benchmarks.ahead_of_time.targets import TARGETS, Target
from experiments.benchmarks.measuring import compiled, reporting
from jaxfed.internal import console
from jaxfed.runs.memory import size_in_words

COLUMNS = (
    'program', 's', 'CPU s', 'MiB', 'GFLOP', 'GB', 'to least', 'ms, FLOP', 'ms, GB',
    'collectives',
)  # fmt: skip
LEGEND = (
    '`step` is one local step of all lanes. A loop counts as one turn. GFLOP '
    'are those of matrix products and convolutions; for a TPU, except in `step`, those of all '
    'operations, as XLA counts them. `-`: not counted.'
)


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


def show(report: Mapping[str, Any]) -> None:
    """Print a table for each case."""
    target = TARGETS[report['target']]
    for case in report['cases']:
        if 'failed' in case:
            text = f'{title_of(case)}: {case["failed"]}'
            reporting.console.print(text, markup=False, soft_wrap=True)
            continue
        cells = [row[:-1] for row in rows(target, case)]
        reporting.console.print(
            reporting.make_table(title_of(case), COLUMNS[:-1], cells, caption=notes_of(case))
        )
    where = f'{report["target"]}, {console.counted(report["devices"], "device")}'
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
    where = f'{report["target"]}, {console.counted(report["devices"], "device")}'
    caption = reporting.caption(report['machine'])
    path.write_text(f'# Programs compiled for {where}\n\n{caption}\n\n{LEGEND}\n\n{table}\n')
