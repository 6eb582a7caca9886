"""Files of a work directory: config.json, metrics.jsonl, partition.json, summary.json."""

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxfed.config import FIELDS, Config, settings_that_affect
from jaxfed.internal.files import check_writable, json_text, read_json, write_atomic, write_json
from jaxfed.internal.locks import LOCK, exclusive_lock
from jaxfed.internal.logger import LOGGER
from jaxfed.internal.machine import processor
from jaxfed.internal.messages import printable
from jaxfed.internal.versions import recorded_versions
from jaxfed.methods import Part
from jaxfed.metrics.selection import parse_measures
from jaxfed.recording.checkpoints import FOLDER
from jaxfed.recording.own_code import own_code

CONFIG, METRICS, SUMMARY = 'config.json', 'metrics.jsonl', 'summary.json'
SUMMARIES = 'summaries.json'  # of the experiments of a program, while each summary.json is written
MODEL = 'model.safetensors'
CLIENTS = 'clients.safetensors'  # with --save_clients
PARTITION = 'partition.json'
PARTITION_MAP = 'partition.png'
RUNS = 'runs'  # the default parent of work directories
CURVE = 'accuracy.png'
CLAIMS = '.claim.lock'  # in a folder of several runs
TABLE = 'sweep.csv'  # in the folder of a sweep
OF_PARTITION = 'partition.'  # precedes a setting of the partition in `flat_settings`


def check_workdir(path: Path, config: Config, parts: list[Part]) -> bool:
    """Check that a directory can hold a new run, or an unfinished one with these settings.

    Returns:
      Whether it holds an unfinished run with these settings.

    Raises:
      ValueError: if it holds a sweep, another run or a finished one, or a file that the run would
        replace, is not a directory or is not writable, or has a name with which checkpoints cannot
        be read; or if --resume is set and there is no run.
    """
    pattern = r'\[[^/]+\]' + r'|\\' * (os.sep == '/')
    if re.search(pattern, str(path.absolute())):
        raise ValueError(
            f'--workdir={path}: orbax cannot read checkpoints in {path.absolute()}, because of the '
            'brackets or the backslash; name another directory.'
        )
    if (path / CLAIMS).exists():
        raise ValueError(f'--workdir={path} holds a sweep; name another directory for a run.')
    files = [name for name in (CONFIG, METRICS, SUMMARY, MODEL, CLIENTS) if (path / name).exists()]
    files += [FOLDER] * any((path / FOLDER).glob('*'))
    if files and (CONFIG not in files or SUMMARY in files or config.resume is False):
        what = 'a finished run' if SUMMARY in files else 'a run'
        what += '' if CONFIG in files else f' without {CONFIG}'
        raise ValueError(
            f'--workdir={path} already holds {what} ({", ".join(files)}); name another directory, '
            'or move this one away.'
        )
    drawn = (PARTITION, PARTITION_MAP, CURVE)
    if not files and (found := [name for name in drawn if (path / name).exists()]):
        raise ValueError(
            f'--workdir={path} contains {found[0]}, which the run would replace; name another '
            'directory, or move the file.'
        )
    other = differing(path, config, parts) if files else {}
    moved = other.keys() & {'npz', 'path'}
    if moved and (path / PARTITION).exists() and 'data_digest' in read_json(path / PARTITION):
        # The data are compared by their digest, so their file may have moved.
        other = {name: values for name, values in other.items() if name not in moved}
    if other:
        words = in_words(other, '{} there, {} here')
        shown = ', '.join(words[:8] + ['...'] * (len(words) > 8))
        raise ValueError(
            f'--workdir={path} holds an unfinished run with other settings ({shown}); '
            'repeat its settings to continue it, or name another directory.'
        )
    if config.resume and not files:
        raise ValueError(f'--resume: --workdir={path} contains no run; omit one of them.')
    check_writable(path, '--workdir')
    return bool(files)


def make_workdir(config: Config, parts: list[Part]) -> Path:
    """Make the work directory of a run, by default under runs/, with config.json in it."""
    workdir = new_folder(config)
    if check_workdir(workdir, config, parts):
        return workdir
    text = json_text(describe_config(config, parts))  # may fail, so before the first write
    try:
        workdir.mkdir(parents=True, exist_ok=bool(config.workdir))
        # If several runs start at once, only the one with the lock continues.
        with exclusive_lock(workdir):
            if check_workdir(workdir, config, parts):
                raise ValueError(f'--workdir={workdir} already holds a run that has just started.')
            write_atomic(workdir / CONFIG, text)
    except OSError as error:
        if isinstance(error, FileExistsError) and workdir.is_dir():
            return make_workdir(config, parts)  # a run of the same second took the default name
        raise ValueError(f'--workdir={workdir} cannot be used: {error}.') from error
    return workdir


def new_folder(config: Config, suffix: str = '') -> Path:
    """Return the work directory of the settings, by default a new name under runs/."""
    if config.workdir:
        return Path(config.workdir)
    stamp = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
    # Settings from Python may hold characters that lead out of the directory or are invalid.
    name = re.sub(r'[^\w.+,-]+', '_', f'{config.dataset}-{config.method}')[:100]
    base = Path(RUNS) / f'{name}{suffix}-{stamp}'
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f'{base.name}-{count}')
    return folder


def discard_workdir(workdir: Path) -> None:
    """Remove a work directory whose run has no rounds; keep it if it has other files."""
    if (workdir / METRICS).exists() or any((workdir / FOLDER).glob('[0-9]*')):
        return
    (workdir / LOCK).unlink(missing_ok=True)
    shutil.rmtree(workdir / FOLDER, ignore_errors=True)  # empty so far
    for name in (CONFIG, PARTITION, PARTITION_MAP):
        (workdir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # if another file is in it
        workdir.rmdir()
        if workdir.parent == Path(RUNS):
            workdir.parent.rmdir()


def write_partition(
    path: Path, counts: np.ndarray, digests: Mapping[str, str], test_counts: np.ndarray
) -> None:
    """Write partition.json.

    Args:
      path: of the file.
      counts: [N, C] the training examples by client and class.
      digests: name -> digest of the partition and of the data.
      test_counts: [C] the test examples by class.
    """
    rows = ',\n  '.join(map(json.dumps, counts.tolist()))
    head = ''.join(f'"{name}": "{digest}",\n ' for name, digest in digests.items())
    tested = f'"test_counts": {json.dumps(test_counts.tolist())},\n '
    write_atomic(path, f'{{{head}{tested}"label_counts": [\n  {rows}\n]}}\n')


def describe_config(config: Config, parts: list[Part]) -> dict[str, Any]:
    """Return config.json: every setting, the method's parts, versions and the device."""
    device = jax.devices()[0]
    return {
        **_every_setting(config, parts),
        'versions': _versions(config, parts),
        'device': {
            'platform': device.platform,
            'kind': device.device_kind,
            'count': jax.device_count(),
            'cpu_cores': os.cpu_count(),
            'processor': processor(),
        },
    }


def _versions(config: Config, parts: list[Part]) -> dict[str, str]:
    return recorded_versions() | own_code(config, parts)


def warn_of_other_code(workdir: Path, config: Config, parts: list[Part]) -> None:
    """Warn if a run continues with other packages or files of the user, or on another device."""
    described = read_json(workdir / CONFIG)
    then, device = described.get('versions'), described.get('device')
    if not (isinstance(then, dict) and isinstance(device, dict)):  # of an earlier version
        return
    then |= {'device': device.get('kind')}
    now = _versions(config, parts) | {'device': jax.devices()[0].device_kind}
    changed = [name for name in then | now if then.get(name) != now.get(name)]
    if changed:
        words = ', '.join(f'{n} {then.get(n, "none")} instead of {now.get(n)}' for n in changed)
        LOGGER.warning(
            '--workdir=%s was begun with other code or on another device (%s); its finished rounds '
            'keep what was computed there.',
            workdir,
            words,
        )


def _every_setting(config: Config, parts: list[Part]) -> dict[str, Any]:
    return {**dataclasses.asdict(config), 'method_parts': [part._asdict() for part in parts]}


def with_defaults(recorded: dict[str, Any]) -> dict[str, Any]:
    """Add to config.json the defaults of settings that an older version did not record."""
    defaults: dict[str, Any] = json.loads(json_text(_every_setting(Config(), [])))
    return defaults | recorded


def differing(
    workdir: Path,
    config: Config,
    parts: list[Part],
    *,
    measures: Literal['equal', 'included', 'any'] = 'equal',
) -> dict[str, tuple[Any, Any]]:
    """Return setting -> (recorded value, value now) for settings that differ from a recorded run.

    Args:
      workdir: holds a run.
      config: the settings.
      parts: the method's parts with all their hyper-parameters.
      measures: whether the run must have the same measures, at least these, or any.

    Raises:
      ValueError: if its config.json cannot be read.
    """
    old = flat_settings(with_defaults(read_json(workdir / CONFIG)), workdir / CONFIG)
    # Not `describe_config`, which starts JAX: a grid reads its runs before it chooses the devices.
    now = flat_settings(json.loads(json_text(_every_setting(config, parts))))
    skipped = {'versions', 'device', *settings_that_affect('machine')}
    if measures == 'any' or (measures == 'included' and _includes(old['measure'], now['measure'])):
        skipped.add('measure')
    return {
        name: (old.get(name), now.get(name))
        for name in now | old
        if name not in skipped and old.get(name) != now.get(name)
    }


def in_words(differing: Mapping[str, tuple[Any, Any]], words: str) -> list[str]:
    """Settings that differ, each in one line such as '--alpha=0.3 there, 0.5 here'.

    Args:
      differing: from `differing`.
      words: between the values, such as '{} there, {} here'.
    """
    pairs = {name: words.format(*values) for name, values in differing.items()}
    if 'method' in pairs:  # then its parts and their hyper-parameters differ, too
        pairs = {n: text for n, text in pairs.items() if n in FIELDS or n.startswith(OF_PARTITION)}
    return [printable(f'--{n.removeprefix(OF_PARTITION)}={text}') for n, text in pairs.items()]


def _includes(recorded: Any, wanted: str) -> bool:
    """Whether the measures of a run include others; False if they cannot be read."""
    try:
        return set(parse_measures(recorded)) >= set(parse_measures(wanted))
    except (ValueError, AttributeError):
        return False


def flat_settings(described: dict[str, Any], path: str | Path = CONFIG) -> dict[str, Any]:
    """Return all settings in one dictionary, with names such as 'fedlmd.beta'."""
    flat = dict(described)
    # The parts have all hyper-parameters, also the defaults.
    flat.pop('hyperparameters', None)
    try:
        parts = flat.pop('method_parts', [])
        # A method from Python has no parts.
        flat['parts'] = [(part['name'], part.get('phase', 0)) for part in parts]
        for part in parts:
            values = part['hyperparameters']
            flat |= {f'{part["name"]}.{name}': value for name, value in values.items()}
        partition = flat.pop('partition_settings', {})
        flat |= {f'{OF_PARTITION}{name}': value for name, value in partition.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f'{path} does not describe a run: {error!r}.') from error
    return flat


def read_summary(path: Path) -> dict[str, Any]:
    """Read summary.json; raise a ValueError that names the file if it is not that of a run."""
    return check_summary(read_json(path), path)


def check_summary(summary: Any, path: Path) -> dict[str, Any]:
    """Return a summary that was read from a file; raise a ValueError if it is not that of a run."""
    accuracies = 'final_accuracy', 'best_accuracy', 'personal_accuracy'
    names = (*accuracies, 'rounds', 'failed')
    if isinstance(summary, dict) and all(name in summary for name in names):
        *numbers, rounds, failed = (summary[name] for name in names)
        if (
            type(rounds) is int
            and type(failed) is bool
            and all(
                number is None or (type(number) in (int, float) and 0 <= number <= 1)
                for number in numbers
            )
        ):
            return summary
    raise ValueError(
        f'{path} is not the summary of a run: it is damaged; use a copy of it, or move '
        f'{path.parent} away.'
    )


def write_summaries(summaries: Mapping[Path, dict[str, Any] | None], folder: Path) -> None:
    """Finish the runs of a program: write summary.json into each work directory.

    A run with a summary is finished, and unfinished ones need the checkpoints of all. If the
    process ends between two summaries, a later one writes the others from `SUMMARIES`.

    Args:
      summaries: work directory -> summary, or None for a run that is not finished.
      folder: of the program's checkpoints.
    """
    if len(summaries) > 1:
        names = {os.path.relpath(workdir, folder): summaries[workdir] for workdir in summaries}
        write_json(folder / SUMMARIES, names)
    for workdir, summary in summaries.items():
        if summary is not None:
            write_json(workdir / SUMMARY, summary)


def check_unfinished(workdir: Path, counts: np.ndarray, digests: Mapping[str, str]) -> None:
    """Raise a ValueError if the run is finished, or its partition.json has other values."""
    if (workdir / SUMMARY).exists():
        raise ValueError(f'--workdir={workdir} already holds a finished run; name another one.')
    path = workdir / PARTITION
    recorded = read_json(path) if path.exists() else None
    now = {'label_counts': counts.tolist(), **digests}
    if recorded is not None and any(recorded.get(name, now[name]) != now[name] for name in now):
        raise ValueError(
            f'{path} describes other data, or another file of --init_from, than there are now; a '
            'run continues only with the same. Name another --workdir.'
        )
