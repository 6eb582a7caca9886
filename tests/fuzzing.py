"""Invalid input for `test_fuzz`, by the part of jaxfed that reads it.

Each target makes a strategy of inputs and a check of one input. The check passes if jaxfed accepts
the input, or refuses it by a ValueError or OSError in one line that names it; it fails otherwise.
"""

import bz2
import contextlib
import dataclasses
import gzip
import io
import json
import lzma
import shutil
import stat
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
from absl import flags
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import jaxfed
from jaxfed import config, methods
from jaxfed.data import load_npz
from jaxfed.data.prepare import RECIPES, Official
from jaxfed.internal import files
from jaxfed.internal.messages import printable
from jaxfed.partition import make_partition
from jaxfed.recording import log, run_files
from jaxfed.recording.checkpoints import FOLDER, open_checkpoints, restore
from jaxfed.recording.checkpoints import save as save_checkpoint
from jaxfed.report import grouping, tables
from jaxfed.report.reading import read_run
from jaxfed.runs import checks, config_flags, load, model_file, tensors
from jaxfed.runs.experiment import make_network
from jaxfed.sweeps import claims, halving, sweep, training
from jaxfed.sweeps import outcomes as results
from tests.data import archives
from tests.recorded_runs import entry, make_run, make_state


class Target(NamedTuple):
    """A part of jaxfed that reads input."""

    make: Callable[[Path], tuple[st.SearchStrategy[Any], Callable[[Any], None]]]
    examples: int  # in the short form; also its share of --fuzz_inputs


outcomes: Counter[str] = Counter()


@contextlib.contextmanager
def accepted_or_refused(*names: str):
    """Checks that errors are for the user: one line, of a type that commands print, with a name."""
    try:
        yield
        outcomes['accepted'] += 1
    except (ValueError, OSError) as error:
        assert len(str(error).splitlines()) == 1, repr(error)
        assert not names or any(name in str(error) for name in names), repr(error)
        # Python's subclasses, such as UnicodeDecodeError, are not meant for the user.
        raised = type(error) is ValueError or type(error).__module__.startswith('jaxfed')
        assert raised or isinstance(error, OSError), repr(error)
        outcomes['refused'] += 1


# Values of any kind.

NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([10**400, -(10**20), 2**31, 2**63, 0]),
    st.floats(),
    st.sampled_from(['nan', '-inf', '1e400', '1e-400', '0x10', '१२', '²', '1_000']),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    NUMBERS.map(str),
    st.sampled_from(
        ['list', 'fedlmd+fedprox', 'fedlmd,fedavg', '+', ',', '../../x', '/', 'a\0b', '\ud800']
    ),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -1, 10**9])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
# (place, bytes removed, bytes inserted) a few times, and where the rest is cut off.
DAMAGE = st.tuples(
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(0, 8), st.binary(max_size=8)),
        min_size=1, max_size=4,
    ),
    st.none() | st.integers(0, 1 << 20),
)  # fmt: skip


def damaged(whole: bytes, damage: Any) -> bytes:
    """Content with some bytes changed, inserted, removed or cut off."""
    held, (edits, cut) = bytearray(whole), damage
    for place, removed, added in edits:
        at = place % (len(held) + 1)
        held[at : at + removed] = added
    return bytes(held[: cut and cut % (len(held) + 1)])


def with_value(held: dict[str, Any], path: list[int], value: Any) -> Any:
    """A JSON object in which the value at a path of numbers is replaced."""
    if not path or not isinstance(held, dict | list) or not held:
        return value
    keys = sorted(held) if isinstance(held, dict) else range(len(held))
    key = keys[path[0] % len(keys)]
    made = dict(held) if isinstance(held, dict) else list(held)
    made[key] = with_value(held[key], path[1:], value)
    return made


PATH = st.lists(st.integers(0, 1000), min_size=1, max_size=4)


# Flags and settings.


def make_flags(folder: Path):
    """Flags of the command line."""
    known = flags.FlagValues()
    config_flags.define_flags(known)
    names = sorted(known)

    def check(values):
        with accepted_or_refused(*(f'--{printable(name.split("=")[0])}' for name in values)):
            made = config_flags.parse([f'--{name}={value}' for name, value in values.items()])
            checks.check(made)
            methods.build(
                methods.resolve(made.method, made.hyperparameters), switch_round=made.switch_round
            )

    misspelt = st.tuples(st.sampled_from(names), st.text(max_size=2)).map(''.join)
    values = st.sampled_from(['1', '0.5', 'true']) | TEXTS
    return st.dictionaries(st.sampled_from(names) | misspelt, values, min_size=1, max_size=3), check


def make_flagfile(folder: Path):
    """A file of flags."""
    path = folder / 'given.flags'
    lines = ['--alpha=0.3', '--method=fedlmd', '# text', f'--flagfile={path}', '--nosuch', '--']

    def check(content):
        path.write_bytes(content)
        with (
            accepted_or_refused(),
            contextlib.redirect_stderr(io.StringIO()),
        ):  # where absl warns of circles
            checks.check(config_flags.parse([f'--flagfile={path}']))

    text = st.lists(st.sampled_from(lines) | TEXTS, max_size=4).map('\n'.join)
    content = text.map(lambda text: text.encode(errors='replace')) | st.binary(max_size=60)
    return content, check


def make_settings(folder: Path):
    """Settings from Python."""
    names = [field.name for field in dataclasses.fields(config.Config)]

    def check(values):
        with accepted_or_refused(*values):
            checks.check(config.Config(**values))

    return st.dictionaries(st.sampled_from(names), NUMBERS | TEXTS | JSON, max_size=3), check


# Datasets.


def npz_of(**changes) -> bytes:
    """A whole dataset."""
    arrays = {
        'x_train': np.arange(96, dtype=np.uint8).reshape(6, 4, 4, 1),
        'y_train': np.arange(6) % 3,
        'x_test': np.arange(48, dtype=np.uint8).reshape(3, 4, 4, 1),
        'y_test': np.arange(3),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, **changes})
    return buffer.getvalue()


def packed(whole: bytes) -> bytes:
    """The same, compressed."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED) as made,
        zipfile.ZipFile(io.BytesIO(whole)) as held,
    ):
        for name in held.namelist():
            made.writestr(name, held.read(name))
    return buffer.getvalue()


def make_npz(folder: Path):
    """A file of arrays."""
    path = folder / 'given.npz'

    def check(content):
        path.write_bytes(content)
        with accepted_or_refused(path.name):
            dataset = load_npz(path)
            assert len(dataset.x_train) == len(dataset.y_train)

    whole = npz_of()
    of_whole = st.builds(damaged, st.sampled_from([whole, packed(whole)]), DAMAGE)
    return of_whole | st.binary(max_size=200), check


def make_partition_file(folder: Path):
    """A file of the examples of each client."""
    clients = [[4, 0], [], [7, 2, 5]]
    lists = {'clients': clients, 'num_examples': 8}
    indices = [{'train': client} for client in clients]
    forms = [clients, lists, {'data_indices': indices}, {'data_indices': {'0': indices[0]}}]
    buffer = io.BytesIO()
    np.savez(buffer, indices=np.concatenate(clients).astype(int), sizes=[2, 0, 3], num_examples=8)

    def check(given):
        suffix, content = given
        path = folder / f'given.{suffix}'
        path.write_bytes(content)
        with accepted_or_refused(path.name):
            parts = make_partition(
                'file', np.arange(8), num_clients=3, seed=0, partition_file=str(path)
            )
            held = np.concatenate(parts)
            assert len(set(held)) == len(held) and set(held) <= set(range(8))

    whole = buffer.getvalue()
    arrays = st.builds(damaged, st.sampled_from([whole, packed(whole)]), DAMAGE)
    values = st.builds(with_value, st.sampled_from(forms), PATH, JSON).map(json.dumps)
    texts = st.builds(damaged, values.map(str.encode), DAMAGE) | values.map(str.encode)
    return st.tuples(st.just('npz'), arrays) | st.tuples(st.just('json'), texts), check


PICTURES = [archives.encoded(archives.plain(32, 7), kind) for kind in ('png', 'jpeg')]
OFFICIAL = {
    'cinic10': archives.cinic_files(per_class=1),
    'tiny_imagenet': archives.tiny_files(),
    'femnist': archives.in_json(archives.leaf_files()),
}
KINDS = [
    tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE,
    tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE,
    tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE,
]  # fmt: skip
PACKINGS = {
    'tar': bytes,
    'tar.gz': gzip.compress,
    'tar.bz2': bz2.compress,
    'tar.xz': lzma.compress,
    'tar.gz.gz': lambda data: gzip.compress(gzip.compress(data)),
    'zip': None,
}


class Member(NamedTuple):
    """A file of an archive."""

    name: str
    content: bytes
    kind: bytes = tarfile.REGTYPE
    link: str = ''
    size: int | None = None  # the declared one, if it differs


class Made(NamedTuple):
    """An archive."""

    recipe: str
    packing: str
    members: list[Member]  # added to those of the official one
    left_out: int | None  # number of an official one
    damage: Any


def members_of(folder: Path):
    """Members as an attacker would make them, and valid ones."""
    inside = [name for files in OFFICIAL.values() for name in list(files)[:8]]
    names = st.one_of(
        st.sampled_from(inside),
        st.sampled_from([
            '../escaped', 'train/../../escaped', str(folder / 'escaped'), '..', '.', '/', '', '//x',
            '..\\escaped', 'C:\\escaped', 'c:escaped', 'train/cat/\x1b[2J\n.png', 'x' * 300,
            'train/cat/./9.png', 'train//cat/9.png', './train/cat/9.png', 'TRAIN/cat/9.png',
            'train/cat/9.png/x.png', '__MACOSX/train/cat/0.png', 'wnids.txt', 'unpacked-0',
            'data/train/9.json', 'data/test/9.json', 'val/val_annotations.txt',
        ]),
        st.text(st.characters(exclude_categories=['Cs']), max_size=12),
        st.tuples(st.sampled_from(['train', 'valid', 'test', 'val']), st.text(
            st.characters(exclude_categories=['Cs']), max_size=4)).map('/cat/'.join),
    )  # fmt: skip
    shard = archives.leaf_with()
    content = st.one_of(
        st.sampled_from(PICTURES),
        st.builds(damaged, st.sampled_from(PICTURES), DAMAGE),
        st.builds(with_value, st.just(shard), PATH, JSON).map(lambda v: json.dumps(v).encode()),
        st.sampled_from([bytes(1 << 20), b'n01\nn02\n', b'a\tb\tc\n', b'[' * 5000, b'']),
        st.binary(max_size=40),
    )
    links = st.sampled_from(['/etc/passwd', '..', '.', '../escaped', 'train', 'train/cat/0.png'])
    sizes = st.none() | st.sampled_from([0, 1, 10**6, 2**32 - 2, 2**33, 2**62]) | st.integers(0, 99)
    return st.builds(Member, names, content, st.sampled_from(KINDS), links, sizes)


def tar_of(files: list[Member]) -> bytes:
    """A .tar file, also of members that tarfile itself would not write."""
    blocks = []
    for member in files:
        info = tarfile.TarInfo(member.name)
        info.type, info.linkname = member.kind, member.link
        info.size = len(member.content) if member.size is None else member.size
        blocks.append(info.tobuf(tarfile.GNU_FORMAT, 'utf-8', 'surrogateescape'))
        blocks.append(member.content + bytes(-len(member.content) % tarfile.BLOCKSIZE))
    return b''.join(blocks) + bytes(2 * tarfile.BLOCKSIZE)


def zip_of(files: list[Member]) -> bytes:
    """A .zip file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED) as made:
        warnings.simplefilter('ignore')  # of two members of one name
        for member in files:
            info = zipfile.ZipInfo(member.name)
            link = member.kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)
            info.external_attr = (stat.S_IFLNK if link else stat.S_IFREG) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(info, member.link.encode() if link else member.content)
        for info, member in zip(made.infolist(), files):
            if member.size is not None:  # for the directory at the end of the file
                info.file_size = member.size
    return buffer.getvalue()


def content_of(made: Made) -> bytes:
    """The bytes of an archive."""
    official = [Member(name, data) for name, data in OFFICIAL[made.recipe].items()]
    if made.left_out is not None:
        del official[made.left_out % len(official)]
    files = [*official, *made.members]
    pack = PACKINGS[made.packing]
    whole = pack(tar_of(files)) if pack else zip_of(files)
    return whole if made.damage is None else damaged(whole, made.damage)


def make_archive(folder: Path):
    """An archive for `jaxfed.data.prepare`; HDF5 files are not damaged, see BUILD_NOTES."""
    path = folder / 'given.archive'

    def check(made):
        path.write_bytes(content_of(made))
        before = set(folder.rglob('*'))
        with accepted_or_refused(str(path)):
            found = RECIPES[made.recipe].read(path, Official(), lambda items, *_: items)
            for examples in found.splits.values():
                assert all(0 <= e.label < len(found.classes) and e.image for e in examples)
        assert set(folder.rglob('*')) == before  # nothing is unpacked, also not outside the folder

    damage = st.none() | DAMAGE
    made = st.builds(
        Made,
        st.sampled_from(sorted(OFFICIAL)),
        st.sampled_from(sorted(PACKINGS)),
        st.lists(members_of(folder), max_size=3),
        st.none() | st.integers(0, 100),
        damage,
    )
    return made, check


# Files of runs.


def make_model_bytes(folder: Path):
    """A damaged model.safetensors."""
    path, arrays = write_model(folder)
    whole = path.read_bytes()

    def check(damage):
        path.write_bytes(damaged(whole, damage))
        with accepted_or_refused(str(path)):
            got = model_file.read_model(path)[1]
            assert got.keys() == arrays.keys()
            for name, array in arrays.items():
                np.testing.assert_array_equal(got[name], array)

    return DAMAGE, check


def make_model_metadata(folder: Path):
    """A whole model.safetensors that describes an impossible network."""
    path, arrays = write_model(folder)
    held = model_file.read_model(path)[0]._asdict()
    used = np.zeros((1, *held['input_shape']), np.uint8)

    def check(change):
        changed = with_value(held, *change)
        tensors.write_described(path, changed, arrays)
        with accepted_or_refused(str(path)):
            jaxfed.load(folder)

    assert jaxfed.load(folder).apply(used).shape == (1, held['num_classes'])
    return st.tuples(PATH, JSON), check


def write_model(folder: Path):
    """A work directory that is finished, with a small network."""
    made = config.Config(model='mlp')
    files.write_json(folder / run_files.CONFIG, run_files.describe_config(made, []))
    files.write_json(folder / run_files.SUMMARY, {'final_accuracy': 0.5})
    network = make_network(made, (4, 4, 1), 3)
    arrays = model_file.named(jax.device_get(network.init(jax.random.key(0))), ())
    options = {name: getattr(made, name) for name in model_file.NETWORK_SETTINGS}
    described = model_file.ModelMetadata(
        None, 'fedavg', [{'name': 'fedavg', 'hyperparameters': {}, 'phase': 0}], None, False,
        options, [4, 4, 1], 3, [100.0], [50.0],
    )._asdict()  # fmt: skip
    path = folder / run_files.MODEL
    tensors.write_described(path, described, arrays)
    return path, arrays


def make_checkpoint(folder: Path):
    """Checkpoints with damaged or missing files."""
    whole, workdir = folder / 'whole', folder / 'run'
    with open_checkpoints(whole, keep=2) as store:
        for round_ in (2, 5):
            save_checkpoint(store, round_, make_state(round_))
    files = sorted(p for p in (whole / FOLDER).rglob('*') if p.is_file())

    def check(edits):
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.copytree(whole, workdir)
        for number, damage in edits:
            path = workdir / files[number % len(files)].relative_to(whole)
            if damage is None:
                path.unlink(missing_ok=True)
            elif path.exists():
                path.write_bytes(damaged(path.read_bytes(), damage))
        with accepted_or_refused(str(workdir)), open_checkpoints(workdir, keep=2) as store:
            saved = restore(store, make_state(0))
            # A missing checkpoint is not damage; a restored state is bit-identical to a saved one.
            assert saved is None or saved.round in (2, 5)
            outcomes['refused'] += saved is None or saved.round == 2  # the last checkpoint
            if saved is not None:
                chex.assert_trees_all_equal(saved.state, make_state(saved.round))

    edits = st.tuples(st.integers(0, 1000), st.none() | DAMAGE)
    return st.lists(edits, min_size=1, max_size=20), check


FILES = ('config.json', 'metrics.jsonl', 'summary.json', 'partition.json')


def make_workdir(folder: Path):
    """A work directory with a damaged file, for a run that resumes and for a report."""
    whole, workdir = folder / 'whole', folder / 'run'
    lines = [entry(1, 0.4), entry(2, 0.5, update_norm=2.0)]
    lines[-1]['confusion'] = (np.eye(4, dtype=int) * 9 + 1).tolist()
    make_run(whole, lines)
    parts = methods.resolve('fedavg', {})
    made = config.Config(rounds=3, workdir=str(workdir))

    def check(changes):
        name, damage, change, finished = changes
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.copytree(whole, workdir)
        path = workdir / name
        if damage is not None:
            path.write_bytes(damaged(path.read_bytes(), damage))
        else:
            held = (
                [json.loads(line) for line in path.read_text().splitlines()]
                if (name == 'metrics.jsonl')
                else [json.loads(path.read_text())]
            )
            held[-1] = with_value(held[-1], *change)
            path.write_text('\n'.join(map(json.dumps, held)) + '\n')
        if not finished:
            (workdir / 'summary.json').unlink()
        # A report reads it.
        with accepted_or_refused(str(workdir)):
            groups = grouping.group([read_run(workdir)])
            tables.results(groups, 0.5), tables.costs(groups), grouping.equal(groups)
        # Training resumes there.
        with accepted_or_refused(str(workdir)):
            run_files.check_workdir(workdir, made, parts)
        with accepted_or_refused(str(workdir)):
            run_files.check_unfinished(workdir, np.zeros((20, 4), int), {})
        with accepted_or_refused(str(workdir)):
            load.read_config(workdir / run_files.CONFIG)
        with accepted_or_refused(str(workdir)):
            assert [entry['round'] for entry in log.rewind(workdir, 2)] == [1, 2]

    change = st.tuples(PATH, JSON)
    changes = st.tuples(st.sampled_from(FILES), st.none() | DAMAGE, change, st.booleans())
    return changes, check


def make_sweep_folder(folder: Path):
    """A damaged folder of a sweep, of which two experiments were interrupted in one program."""
    whole, place = folder / 'whole', folder / 'run'
    members = sweep.expand(config.Config(rounds=3), [(('alpha', a),) for a in (0.1, 0.3)], 2, place)
    names = [Path(str(member.config.workdir)).name for member in members]
    for member, name in zip(members, names):
        make_run(whole / name, **dataclasses.asdict(member.config) | {'workdir': str(whole / name)})
        accuracies = {'final_accuracy': 0.5, 'best_accuracy': 0.6, 'personal_accuracy': None}
        summary = {**accuracies, 'rounds': 3, 'failed': False}
        files.write_json(whole / name / run_files.SUMMARY, summary)
    for name in names[2:]:
        (whole / name / run_files.SUMMARY).unlink()
    files.write_json(whole / halving.SETTINGS_FILE, {'halving': '1'})
    shared = whole / training.SHARED / 'program'
    (shared / FOLDER / '2').mkdir(parents=True)
    files.write_json(shared / training.MEMBERS, {'members': names[2:]})
    paths = [whole / halving.SETTINGS_FILE, shared / training.MEMBERS]
    paths += [whole / names[0] / run_files.SUMMARY, whole / names[3] / run_files.CONFIG]
    paths += [shared / run_files.SUMMARIES]
    files.write_json(paths[-1], {f'../../{name}': summary for name in names[2:]})

    def check(changes):
        number, damage, change = changes
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(whole, place)
        path = place / paths[number].relative_to(whole)
        if number < len(paths) - 1:
            (place / paths[-1].relative_to(whole)).unlink()
        if damage is not None:
            path.write_bytes(damaged(path.read_bytes(), damage))
        else:
            path.write_text(json.dumps(with_value(json.loads(path.read_text()), *change)))
        with accepted_or_refused(str(place)):
            claims.finish_programs(place)
            done, unfinished, groups = sweep._plan(members, place, rungs=(1,), most=0)
            numbers = len(done), len(unfinished)
            assert number == len(paths) - 1 or (*numbers, groups) == (2, 2, [[0, 1]])
        with accepted_or_refused(str(place)):
            results.write_table(place / run_files.TABLE, results.summarise(members))

    change = st.tuples(PATH, JSON)
    return st.tuples(st.integers(0, len(paths) - 1), st.none() | DAMAGE, change), check


TARGETS = {
    'flags': Target(make_flags, 150),
    'flag files': Target(make_flagfile, 100),
    'settings': Target(make_settings, 150),
    'npz': Target(make_npz, 400),
    'partition files': Target(make_partition_file, 200),
    'archives': Target(make_archive, 200),
    'model.safetensors, damaged': Target(make_model_bytes, 150),
    'model.safetensors, untrue': Target(make_model_metadata, 50),
    'checkpoints': Target(make_checkpoint, 25),
    'work directories': Target(make_workdir, 150),
    'sweep folders': Target(make_sweep_folder, 100),
}

_BATCH = 1000  # inputs; hypothesis keeps all inputs of a run in memory


def run(name: str, folder: Path, inputs: int | None = None, first_seed: int = 0) -> Counter[str]:
    """Checks the inputs of a target.

    Args:
      name: of the target.
      folder: for its files.
      inputs: the number of all targets, which share them; None for the same few in every run.
      first_seed: of the first batch of `inputs`.

    Returns:
      Numbers of inputs 'accepted' and 'refused'.
    """
    target = TARGETS[name]
    strategy, check = target.make(folder)
    common = settings(deadline=None, suppress_health_check=list(HealthCheck))
    outcomes.clear()
    if inputs is None:
        short = settings(common, max_examples=target.examples, derandomize=True)
        short(given(strategy)(check))()
        return outcomes
    share = max(inputs * target.examples // sum(other.examples for other in TARGETS.values()), 1)
    for batch, start in enumerate(range(0, share, _BATCH)):
        random = settings(common, max_examples=min(_BATCH, share - start), database=None)
        seed(first_seed + batch)(random(given(strategy)(check)))()
    return outcomes
