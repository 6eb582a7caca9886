"""FEMNIST: handwritten digits and letters of about 3500 writers, from LEAF or TFF files."""

import contextlib
import functools
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data.errors import explain_errors
from jaxfed.data.images import png
from jaxfed.data.prepare.archive import check_checksum, check_one_copy, list_files, read_files
from jaxfed.data.prepare.recipe import Contents, Example, Official, Recipe, Track, check_counts
from jaxfed.internal.messages import printable

CLASSES = tuple('0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz')
_SIDE = 28  # pixels
_TFF_FILES = {'train': 'fed_emnist_train.h5', 'test': 'fed_emnist_test.h5'}
_MOST = 1_000_000  # examples of a writer, a thousand times the largest number
_TEST_SHARE = 10  # one in ten examples of a writer, if the archive has no test part


def read_femnist(archive: Path, official: Official, track: Track) -> Contents:
    """Reads FEMNIST from LEAF's JSON files or from the HDF5 files of TensorFlow Federated.

    LEAF stores the splits in the folders `train` and `test`. Without them, a fixed tenth of each
    writer's examples in `all_data` becomes the split 'test'. Both sources store paper as 1 and ink
    as 0; the dataset stores ink as 255 and paper as 0, like MNIST and EMNIST. `official` applies to
    the files of TensorFlow Federated only: the number of LEAF's examples depends on the options of
    its preprocessing.

    Args:
      archive: fed_emnist.tar.bz2, an archive of LEAF's data/femnist/data, or the folder of either.
      official: the published numbers.
      track: shows progress.

    Returns:
      The stored part of the dataset; the users are the names of the writers.

    Raises:
      ValueError: if the archive is damaged, not as published, or inconsistent.

    Reference:
      Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.
    """
    names = list_files(archive)
    tff = [name for name in names if name.split('/')[-1] in _TFF_FILES.values()]
    if tff:
        splits = _read_tff(archive, tff, official, track)
    else:
        splits = _read_leaf(archive, _shards(archive, names), track)
    labels = {split: [example.label for example in found] for split, found in splits.items()}
    check_counts(archive, labels, CLASSES, official if tff else Official())
    return Contents(CLASSES, (_SIDE, _SIDE, 1), splits)


def _shards(archive: Path, names: list[str]) -> dict[str, str]:
    """Returns the split of each file of LEAF, 'all' if there is no test part."""
    folders: dict[str, list[str]] = {'train': [], 'test': [], 'all_data': []}
    for name in names:
        folder = ('', *name.split('/'))[-2]
        if name.lower().endswith('.json') and folder in folders:
            folders[folder].append(name)
    whole = not (folders['train'] or folders['test'])
    if not (folders['all_data'] if whole else folders['train'] and folders['test']):
        raise ValueError(
            f"--archive={archive} has neither {' and '.join(_TFF_FILES.values())} nor LEAF's files "
            'train/*.json and test/*.json, or all_data/*.json: pass fed_emnist.tar.bz2, or '
            'data/femnist/data of LEAF after its preprocess.sh.'
        )
    splits = {'all_data': 'all'} if whole else {'train': 'train', 'test': 'test'}
    for folder in splits:
        places = (name.rpartition('/')[0] for name in folders[folder])
        check_one_copy(archive, f"LEAF's {folder}", places)
    return {name: split for folder, split in splits.items() for name in folders[folder]}


def _read_leaf(archive: Path, shards: dict[str, str], track: Track) -> dict[str, list[Example]]:
    """Returns the examples of LEAF's files."""
    splits: dict[str, list[Example]] = {'train': [], 'test': []}
    file_of: dict[tuple[str, str], str] = {}  # (split, writer) -> file
    for name, data in track(read_files(archive, shards), 'reading files', len(shards)):
        where, split = f'--archive={archive}: {printable(name)}', shards[name]
        for user, examples in _parse_shard(where, data):
            if file_of.setdefault((split, user), name) != name:
                raise ValueError(
                    f'{where} has the writer {user!r}, who is also in {file_of[split, user]}.'
                )
            if split == 'all':
                test, train = _split(examples)
                splits['train'] += train
                splits['test'] += test
            else:
                splits[split] += examples
    return splits


def _parse_shard(where: str, data: bytes) -> Iterator[tuple[str, list[Example]]]:
    """Yields the writers in one of LEAF's files and their examples."""
    with _as_written(where, 'LEAF'):
        # 256 different numbers occur millions of times; the cache stores each once.
        parsed = json.loads(data, parse_float=functools.lru_cache(1 << 16)(float))
        users, counts, user_data = (parsed[k] for k in ('users', 'num_samples', 'user_data'))
        twice = [user for user, times in Counter(users).items() if times > 1]
        if twice:
            raise ValueError(f'the writer {twice[0]!r} is twice in users')
        missing = [f'; {user!r} is missing' for user in {*users} ^ {*user_data}]
        if missing or len(counts) != len(users):
            raise ValueError(
                f'{len(users)} writers in users, {len(counts)} in num_samples, '
                f'{len(user_data)} in user_data{"".join(missing[:1])}'
            )
    for user, count in zip(users, counts, strict=True):
        with _as_written(f'{where}: the writer {user!r}', 'LEAF'):
            x, y = user_data[user]['x'], user_data[user]['y']
            if not len(x) == len(y) == count:
                raise ValueError(f'{len(x)} images and {len(y)} labels, {count!r} in num_samples')
            examples = _examples(user, x, y)
        yield user, examples


def _split(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Returns the test and training examples of a writer; a single example is for training."""
    by_hash = sorted(examples, key=lambda e: hashlib.sha256(e.key.encode()).digest())
    count = max(len(examples) // _TEST_SHARE, 1) if len(examples) > 1 else 0
    return by_hash[:count], by_hash[count:]


def _read_tff(
    archive: Path, names: list[str], official: Official, track: Track
) -> dict[str, list[Example]]:
    """Returns the examples of TensorFlow Federated's files."""
    try:
        import h5py
    except ImportError as error:
        raise ValueError(
            f"--archive={archive} has HDF5 files, which need h5py: pip install -e '.[femnist]'."
        ) from error
    for file in _TFF_FILES.values():
        found = [name for name in names if name.split('/')[-1] == file]
        check_one_copy(archive, file, found)
        if not found:
            raise ValueError(f'--archive={archive} has no {file}: download it again.')
    check_checksum(archive, official.checksum)
    contents = {name.split('/')[-1]: data for name, data in read_files(archive, names)}
    splits: dict[str, list[Example]] = {}
    for split, file in _TFF_FILES.items():
        where, splits[split] = f'--archive={archive}: {file}', []
        with _as_written(where, 'TensorFlow Federated'):
            users = dict(h5py.File(io.BytesIO(contents[file]), 'r')['examples'])
        if official.users not in (None, len(users)):
            raise ValueError(
                f'{where} has {len(users)} writers, officially {official.users}: download it '
                'again, or skip this check with --nocounts.'
            )
        for user in track(users, f'reading {split} writers', len(users)):
            with _as_written(f'{where}: the writer {user!r}', 'TensorFlow Federated'):
                y = _read(users[user], 'label', _MOST).reshape(-1)
                x = _read(users[user], 'pixels', len(y) * _SIDE**2)
                splits[split] += _examples(user, x, y)
    return splits


def _read(group: Any, name: str, most: int) -> np.ndarray:
    """Returns an array of a writer; checks its size before it takes memory."""
    if group[name].size > most:
        raise ValueError(f'{group[name].size} numbers in {name}, more than {most}')
    return group[name][:]


def _as_written(where: str, by: str) -> contextlib.AbstractContextManager[None]:
    """Converts every exception that the content of a file causes to a ValueError."""
    what = f'{where} is not in the format of {by}'
    return explain_errors(what, 'make or download it again', keep=MemoryError)


def _examples(user: str, pixels: Any, labels: Any) -> list[Example]:
    """Returns the stored examples of a writer, with bright ink on a dark background.

    Args:
      user: name of the writer.
      pixels: n times 28 x 28 numbers, 1 for paper, 0 for ink.
      labels: [n] integers in 0..61.

    Raises:
      ValueError: if pixels or labels are not as above.
    """
    user.encode()  # raises for a lone surrogate, which JSON allows and TFDS cannot store
    paper, y = np.asarray(pixels), np.asarray(labels)
    # One by one, because NumPy converts the list [3, true] to integers.
    if y.ndim != 1 or any(np.asarray(label).dtype.kind not in 'iuf' for label in labels):
        raise ValueError('the labels are not a list of numbers')
    if paper.dtype.kind not in 'iuf':
        raise ValueError('the pixels are not numbers')
    if len(paper) != len(y) or paper.size != len(y) * _SIDE**2:
        raise ValueError(f'{len(y)} labels, but pixels {paper.shape}, not {_SIDE**2} for each')
    paper = paper.reshape(len(y), _SIDE, _SIDE).astype(np.float32)
    if not ((paper >= 0) & (paper <= 1)).all():
        raise ValueError('pixels outside 0..1')
    if not np.isin(y, np.arange(len(CLASSES))).all():
        raise ValueError(f'labels outside 0..{len(CLASSES) - 1}')
    ink = np.rint(255 * (1 - paper)).astype(np.uint8)
    return [
        Example(f'{user}/{number}', png(image), int(label), user)
        for number, (image, label) in enumerate(zip(ink, y, strict=True))
    ]


FEMNIST = Recipe(
    read=read_femnist,
    official=Official(
        checksum='sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0',
        counts={'train': 671_585, 'test': 77_483},
        users=3400,
    ),
    description='Handwritten digits and letters with their writers, 28 x 28 pixels, 62 classes; '
    'ink is bright on dark.',
    homepage='https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2',
    citation='Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097, 2018.',
)
