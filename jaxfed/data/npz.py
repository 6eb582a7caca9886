"""A dataset from one .npz file of arrays."""

import os
import zipfile
from collections.abc import Sequence

import numpy as np

from jaxfed.data.arrays import ARRAYS, make_dataset
from jaxfed.data.errors import check_memory, explain_errors
from jaxfed.internal.messages import printable
from jaxfed.types import Dataset


def load_npz(path: str | os.PathLike[str]) -> Dataset:
    """Loads a dataset from `np.savez(path, x_train=, y_train=, x_test=, y_test=)`.

    `x_train` and `x_test` are images [n, H, W, channels] or [n, H, W], feature vectors [n, d] for
    `--model=mlp`, or signals [n, 1, length, channels] for `--model=cnn1d`. They are uint8 or finite
    floats; floats are converted to float32. A feature vector is stored as an image [1, 1, d], so
    each feature is normalised by its mean and deviation. Integers [n, length] that are not uint8
    are token ids for `--model=text`; 0 is padding, and the largest plus one is the vocabulary.

    `y_train` and `y_test` are integers [n] from 0. The number of classes is the largest training
    label plus one. Class 0 and at least half of the classes must have examples, so that labels from
    1 and stray labels are found.

    The optional array `users` (or `users_train`) [n], integers or text, is the owner of each
    training example, for `--partition=natural`. The users are numbered from 0 in sorted order.

    Args:
      path: path of the file.

    Returns:
      The dataset; its name is that of the file without the suffix.

    Raises:
      ValueError: if the file is missing or unreadable, or an array is not as above.
    """
    name = os.path.splitext(os.path.basename(path))[0]
    source = f'--npz={path}'
    return make_dataset(name, source, read_arrays(path, source))


def read_arrays(
    path: str | os.PathLike[str], source: str, needed: Sequence[str] = ARRAYS
) -> dict[str, np.ndarray]:
    """Returns the needed arrays of a file and `users` by name, unchecked.

    Args:
      path: path of the file.
      source: flag or argument that passed it, for messages.
      needed: names of the arrays.

    Raises:
      ValueError: if the file is missing or unreadable, lacks an array, has an entry that is none,
        or both `users` and `users_train`.
    """
    if not os.path.isfile(path):
        raise ValueError(f'{source} is not a file; pass the path of an .npz file.')
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f'{source} is not an .npz archive, or is truncated: write it again with '
            f'np.savez(path, {", ".join(f"{key}=..." for key in needed)}).'
        )
    with explain_errors(f'{source} cannot be read', 'check its permissions or write it again'):
        archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f'{source} is a single array, not an archive: write it with np.savez.')
    arrays = {}
    with archive:
        missing = [key for key in needed if key not in archive.files]
        if missing:
            raise ValueError(
                f'{source} has no {", ".join(missing)}, only '
                f'{printable(", ".join(archive.files)) or "nothing"}: it needs {", ".join(needed)}.'
            )
        # Users are optional.
        others = [key for key in ('users', 'users_train') if key in archive.files]
        if len(others) > 1:
            raise ValueError(f'{source} has users and users_train; keep one of them.')
        # NumPy reads no more than the sizes that the archive declares.
        entries = {f'{key}.npy' for key in (*needed, *others)} | {*needed, *others}
        with zipfile.ZipFile(path) as file:
            sizes = [i.file_size for i in file.infolist() if i.filename in entries]
        check_memory(source, sum(sizes))
        for key in (*needed, *others):
            with explain_errors(
                f'{source} has an array {key} that cannot be read',
                'save numbers or text that fit into memory, not objects (astype(str) makes text of '
                'names; images of unequal size make objects), or write it again if it is damaged',
            ):
                array = archive[key]
            if not isinstance(array, np.ndarray):
                raise ValueError(
                    f'{source} has an entry {key} that is not an array: write it with np.savez.'
                )
            arrays['users' if key in others else key] = array
    return arrays
