"""FEMNIST: handwritten digits and letters of about 3500 writers, as LEAF or TFF keep them."""

import contextlib
import functools
import hashlib
import json
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxfed.data.images import png
from jaxfed.data.prepare.archive import (
    check_checksum,
    check_one_copy,
    list_files,
    read_files,
    unpacked,
)
from jaxfed.data.prepare.recipe import Contents, Example, Official, Recipe, Track, check_counts
from jaxfed.internal.type_checks import printable

CLASSES = tuple('0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz')
_SIDE = 28  # pixels
_TFF_FILES = {'train': 'fed_emnist_train.h5', 'test': 'fed_emnist_test.h5'}
_MOST = 1_000_000  # examples of a writer, a thousand times what any has
_TEST_SHARE = 10  # one of so many examples of a writer, where the archive has no test part


def read_femnist(
    archive: pathlib.Path, official: Official, scratch: pathlib.Path, track: Track
) -> Contents:
    """Reads FEMNIST from LEAF's JSON files or from the HDF5 files of TensorFlow Federated.

    LEAF's files lie in folders `train` and `test`; where there are none, a tenth of each writer's
    examples in `all_data`, always the same, becomes the split 'test'. Both keep 1 for paper and 0
    for ink; here ink is bright on dark, 255 on 0, as in MNIST and EMNIST. `official` is what
    TensorFlow Federated publishes and is not applied to LEAF's files, whose number depends on the
    options that they were made with; those must agree with themselves.

    Args:
      archive: fed_emnist.tar.bz2, an archive of LEAF's data/femnist/data, or the folder of either.
      official: what to check.
      scratch: an existing folder for the unpacked HDF5 files.
      track: shows progress.

    Returns:
      What is stored, with the writers' names as users.

    Raises:
      ValueError: if the archive is damaged, is not as published, or contradicts itself.

    Reference:
      Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.
    """
    names = list_files(archive)
    tff = {n.split('/')[-1]: n for n in names if n.split('/')[-1] in _TFF_FILES.values()}
    for file in tff:
        check_one_copy(archive, file, (n for n in names if n.split('/')[-1] == file))
    if tff:
        splits = _read_tff(archive, tff, official, scratch, track)
    else:
        splits = _read_leaf(archive, _shards(archive, names), track)
    labels = {split: [example.label for example in found] for split, found in splits.items()}
    check_counts(archive, labels, list(CLASSES), Official())
    return Contents(list(CLASSES), (_SIDE, _SIDE, 1), splits)


def _shards(archive: pathlib.Path, names: list[str]) -> dict[str, str]:
    """Returns the split of each of LEAF's files, 'all' where there is no test part."""
    folders: dict[str, list[str]] = {'train': [], 'test': [], 'all_data': []}
    for name in names:
        folder = ('', *name.split('/'))[-2]
        if name.lower().endswith('.json') and folder in folders:
            folders[folder].append(name)
    used = ('train', 'test') if folders['train'] and folders['test'] else ('all_data',)
    for folder in used:
        places = (name.rpartition('/')[0] for name in folders[folder])
        check_one_copy(archive, f"LEAF's {folder}", places)
    if folders['train'] and folders['test']:
        return {name: split for split in used for name in folders[split]}
    if folders['train'] or folders['test'] or not folders['all_data']:
        raise ValueError(
            f"archive={archive} has neither {' and '.join(_TFF_FILES.values())} nor LEAF's files "
            'train/*.json and test/*.json, or all_data/*.json: give fed_emnist.tar.bz2, or '
            'data/femnist/data of LEAF after its preprocess.sh.'
        )
    return dict.fromkeys(folders['all_data'], 'all')


def _read_leaf(
    archive: pathlib.Path, shards: dict[str, str], track: Track
) -> dict[str, list[Example]]:
    """Returns the examples of LEAF's files."""
    splits: dict[str, list[Example]] = {'train': [], 'test': []}
    seen: dict[tuple[str, str], str] = {}
    for name, data in track(read_files(archive, shards), 'reading files', len(shards)):
        where = f'archive={archive}: {printable(name)}'
        for user, examples in _parse_shard(where, data):
            before = seen.setdefault((shards[name], user), name)
            if before != name:
                raise ValueError(
                    f'{where} has the writer {user!r}, who is in {before} as well: a writer is in '
                    'one file of a split.'
                )
            if shards[name] == 'all':
                test, train = _split(examples)
                splits['train'] += train
                splits['test'] += test
            else:
                splits[shards[name]] += examples
    return splits


def _parse_shard(where: str, data: bytes) -> Iterator[tuple[str, list[Example]]]:
    """Yields the writers in one of LEAF's files and what they wrote."""
    with _as_written(where, 'LEAF'):
        # 256 numbers occur millions of times: each is kept once.
        parsed = json.loads(data, parse_float=functools.lru_cache(1 << 16)(float))
        users, counts, user_data = (parsed[k] for k in ('users', 'num_samples', 'user_data'))
        twice = [user for user, times in Counter(users).items() if times > 1]
        if twice:
            raise ValueError(f'the writer {twice[0]!r} is twice in users')
        missing = [f'{user!r} is missing in one of them' for user in {*users} ^ {*user_data}]
        if missing or len(counts) != len(users):
            numbers = (
                f'{len(users)} writers in users, {len(counts)} in num_samples and '
                f'{len(user_data)} in user_data, not the same'
            )
            raise ValueError('; '.join([numbers, *missing[:1]]))
    for user, count in zip(users, counts, strict=True):
        with _as_written(f'{where}: the writer {user!r}', 'LEAF'):
            x, y = user_data[user]['x'], user_data[user]['y']
            if not len(x) == len(y) == count:
                raise ValueError(f'{len(x)} images and {len(y)} labels, {count!r} in num_samples')
            examples = _examples(user, x, y)
        yield user, examples


def _split(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Returns the test and training part of a writer's examples, none or at least 1 to test."""
    by_hash = sorted(examples, key=lambda e: hashlib.sha256(e.key.encode()).digest())
    count = max(len(examples) // _TEST_SHARE, 1) if len(examples) > 1 else 0
    return by_hash[:count], by_hash[count:]


def _read_tff(
    archive: pathlib.Path,
    names: dict[str, str],
    official: Official,
    scratch: pathlib.Path,
    track: Track,
) -> dict[str, list[Example]]:
    """Returns the examples of TensorFlow Federated's files."""
    try:
        import h5py
    except ImportError as error:
        raise ValueError(
            f"archive={archive} has HDF5 files, which take h5py: pip install 'jaxfed[femnist]'."
        ) from error
    missing = [file for file in _TFF_FILES.values() if file not in names]
    if missing:
        raise ValueError(f'archive={archive} has no {missing[0]}: download it again.')
    check_checksum(archive, official.checksum)
    splits: dict[str, list[Example]] = {}
    with contextlib.ExitStack() as stack:
        paths = stack.enter_context(unpacked(archive, list(names.values()), scratch))
        files = {}
        for split, file in _TFF_FILES.items():
            with _as_written(f'archive={archive}: {file}', 'TensorFlow Federated'):
                opened = stack.enter_context(h5py.File(paths[names[file]], 'r'))
                files[split] = dict(opened['examples'])
        labels: dict[str, list[int]] = {}
        for split, users in files.items():
            where = f'archive={archive}: {_TFF_FILES[split]}'
            labels[split] = []
            for user in users:
                with _as_written(f'{where}: the writer {user!r}', 'TensorFlow Federated'):
                    labels[split] += _read(users[user], 'label', _MOST).tolist()
            if official.users not in (None, len(users)):
                raise ValueError(
                    f'{where} has {len(users)} writers, officially {official.users}: download it '
                    'again, or prepare what it has with --nocounts.'
                )
        check_counts(archive, labels, list(CLASSES), official)
        for split, users in files.items():
            where = f'archive={archive}: {_TFF_FILES[split]}'
            splits[split] = []
            for user in track(users, f'reading {split} writers', len(users)):
                with _as_written(f'{where}: the writer {user!r}', 'TensorFlow Federated'):
                    y = _read(users[user], 'label', _MOST)
                    x = _read(users[user], 'pixels', len(y) * _SIDE**2)
                    splits[split] += _examples(user, x, y)
    return splits


def _read(group: Any, name: str, most: int) -> np.ndarray:
    """Returns a writer's array, which says its size before there is memory for it."""
    if group[name].size > most:
        raise ValueError(f'{group[name].size} numbers in {name}, more than {most}')
    array = group[name][:]
    return array.reshape(-1) if name == 'label' else array


@contextlib.contextmanager
def _as_written(where: str, by: str) -> Iterator[None]:
    """Turns whatever a file's contents raise into one ValueError."""
    try:
        yield
    except MemoryError:
        raise  # which is nothing the file could help
    except Exception as error:  # of json, h5py, numpy and the checks here, by what is wrong
        own = type(error) is ValueError
        reason = str(error) if own else f'{type(error).__name__}: {error}'
        raise ValueError(
            f'{where} is not as {by} writes it ({reason}): make or download it again.'
        ) from error


def _examples(user: str, pixels: Any, labels: Any) -> list[Example]:
    """Returns what a writer wrote as it is stored, ink bright on dark.

    Args:
      user: the writer.
      pixels: n times 28 x 28 numbers, 1 for paper, 0 for ink.
      labels: [n] integers in 0..61.

    Returns:
      The examples.

    Raises:
      ValueError: if the arguments are anything else.
    """
    user.encode()  # a lone surrogate, which JSON can spell, cannot be stored
    paper, y = np.asarray(pixels), np.asarray(labels)
    # One by one: of 3 and true numpy makes integers.
    if y.ndim != 1 or any(np.asarray(label).dtype.kind not in 'iuf' for label in labels):
        raise ValueError('labels that are no list of numbers')
    if paper.dtype.kind not in 'iuf':
        raise ValueError('pixels that are no numbers')
    if len(paper) != len(y) or paper.size != len(y) * _SIDE**2:
        raise ValueError(f'{len(y)} labels, but pixels {paper.shape}, not {_SIDE**2} for each')
    paper = paper.reshape(len(y), _SIDE, _SIDE).astype(np.float32)
    if not ((paper >= 0) & (paper <= 1)).all():
        raise ValueError('pixels outside of 0..1')
    if not np.isin(y, np.arange(len(CLASSES))).all():
        raise ValueError(f'labels outside of 0..{len(CLASSES) - 1}')
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
