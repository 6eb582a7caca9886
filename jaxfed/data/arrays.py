"""Datasets from arrays, checked and converted to the shapes and dtypes of `Dataset`."""

from collections.abc import Mapping

import numpy as np

from jaxfed.types import Dataset, count_classes

ARRAYS = ('x_train', 'y_train', 'x_test', 'y_test')
LARGEST_LABEL = 1_000_000
_LARGEST_TOKEN = 10_000_000


def make_dataset(
    name: str,
    source: str,
    arrays: Mapping[str, np.ndarray],
    num_classes: int | None = None,
    vocabulary: int = 0,
) -> Dataset:
    """Makes a dataset from arrays, after checking them.

    Args:
      name: name of the dataset.
      source: flag or argument that passed the arrays, for messages.
      arrays: name -> array for `ARRAYS`, as in `load_npz`; `users` is optional.
      num_classes: number of classes; by default the largest training label plus one.
      vocabulary: number of token ids; by default the largest plus one, if the inputs are such.

    Raises:
      ValueError: if an array has another shape, dtype or range than `load_npz` describes.
    """
    made = {}
    for split in ('train', 'test'):
        x, y = f'x_{split}', f'y_{split}'
        made[x] = _checked_inputs(arrays[x], source, x)
        made[y] = _checked_labels(arrays[y], source, y)
        if len(made[x]) != len(made[y]):
            raise ValueError(
                f'{source} has {len(made[x])} examples in {x} but {len(made[y])} labels in {y}: '
                'store one label per example.'
            )
    train, test = made['x_train'], made['x_test']
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise ValueError(
            f'{source} has examples {train.shape[1:]} {train.dtype} in x_train but '
            f'{test.shape[1:]} {test.dtype} in x_test: make shapes and dtypes equal.'
        )
    if num_classes is None:
        num_classes = count_classes(made['y_train'], made['y_test'], source)
    largest = max(made['y_train'].max(), made['y_test'].max())
    if largest >= num_classes:
        raise ValueError(
            f'{source} has label {largest} with num_classes={num_classes}: labels must be from 0 '
            f'to {num_classes - 1}.'
        )
    users = arrays.get('users')
    if users is not None:
        made['users'] = _numbered_users(users, len(train), source)
    vocabulary = _count_tokens(made, vocabulary, source)
    return Dataset(name, num_classes=num_classes, **made, vocabulary=vocabulary)


def _checked_inputs(array: np.ndarray, source: str, key: str) -> np.ndarray:
    """Returns examples as [n, H, W, channels] uint8 or float32, or token ids as int32."""
    shape = array.shape
    whole = array.dtype.kind in 'iu' and array.dtype != np.uint8
    sequences = array.ndim == 2 or (array.ndim == 4 and shape[1] == shape[3] == 1)
    if whole and array.size and sequences:
        return _checked_tokens(array.reshape(len(array), 1, -1, 1), source, key)
    if array.ndim not in (2, 3, 4) or not array.size:
        raise ValueError(
            f'{source} has shape {shape} in {key}: pass images [n, H, W] or [n, H, W, channels], '
            'feature vectors [n, d], signals [n, 1, length, channels] or token ids [n, length], '
            'all sizes at least 1.'
        )
    # One channel is also the height of a signal [n, 1, W, channels], whose width differs.
    colour_first = array.ndim == 4 and shape[1] == 3 and min(shape[2:]) > 4
    grey_first = array.ndim == 4 and shape[1] == 1 and shape[2] == shape[3] > 4
    if colour_first or grey_first:
        of_signals = ' Signals with as many samples as channels need padding.' if grey_first else ''
        raise ValueError(
            f'{source} has shape {shape} in {key}, which looks like channels first: pass '
            f'[n, H, W, channels], as in {key}.transpose(0, 2, 3, 1).{of_signals}'
        )
    if array.dtype != np.uint8 and array.dtype.kind != 'f':
        raise ValueError(
            f"{source} has dtype {array.dtype} in {key}: use .astype('uint8') for pixels from 0 to "
            "255, else .astype('float32'); only token ids [n, length] are integers."
        )
    if array.dtype != np.uint8:
        with np.errstate(over='ignore'):
            array = array.astype(np.float32, copy=False)
        bad = np.count_nonzero(~np.isfinite(array))
        if bad:
            raise ValueError(
                f'{source} has {bad} values in {key} that are NaN, infinite or beyond float32: '
                'replace them.'
            )
    # A feature is a channel, so each is normalised by its mean and deviation.
    return array.reshape({2: (-1, 1, 1, shape[-1]), 3: (*shape, 1), 4: shape}[array.ndim])


def _checked_tokens(array: np.ndarray, source: str, key: str) -> np.ndarray:
    """Returns token ids [n, 1, length, 1] as int32."""
    if not 0 <= array.min() <= array.max() <= _LARGEST_TOKEN:
        raise ValueError(
            f'{source} has token ids from {array.min()} to {array.max()} in {key}: they must be '
            f"from 0 (padding) to {_LARGEST_TOKEN}; use .astype('float32') for rows of numbers."
        )
    return array.astype(np.int32, copy=False)


def _count_tokens(arrays: Mapping[str, np.ndarray], vocabulary: int, source: str) -> int:
    """Returns the number of token ids, 0 for other inputs."""
    inputs = arrays['x_train'], arrays['x_test']
    tokens = inputs[0].dtype == np.int32
    if not isinstance(vocabulary, int | np.integer) or not 0 <= vocabulary <= _LARGEST_TOKEN + 1:
        raise ValueError(
            f'{source} has vocabulary={vocabulary}: it must be an integer from 0 to '
            f'{_LARGEST_TOKEN + 1}.'
        )
    least = max(int(x.max()) for x in inputs) + 1 if tokens else 0
    if vocabulary and (not tokens or vocabulary < least):
        found = f'token ids up to {least - 1}' if tokens else f'inputs of {inputs[0].dtype}'
        raise ValueError(
            f'{source} has {found} with vocabulary={vocabulary}: it is the number of token ids, '
            'integers [n, length] below it; correct it or leave it out.'
        )
    return int(vocabulary) or least


def _checked_labels(array: np.ndarray, source: str, key: str) -> np.ndarray:
    """Returns labels as [n] int32."""
    if array.ndim != 1 or not array.size or array.dtype.kind not in 'iu':
        column = '.ravel()' if array.shape[1:] == (1,) else ''
        number = '.astype(int)' if array.dtype.kind in 'fb' else ''
        remedy = '.argmax(1)' if array.ndim == 2 and not column else column + number
        example = f', as {key}{remedy}' if remedy else ''
        if array.dtype.kind in 'USO':  # one numbering, as a part may lack a class
            example = (
                ', as names = np.unique(np.r_[y_train, y_test]); y_train = np.searchsorted(names, '
                'y_train); y_test = np.searchsorted(names, y_test)'
            )
        raise ValueError(
            f'{source} has shape {array.shape} and dtype {array.dtype} in {key}: labels must be '
            f'[n] integers, one per example{example}.'
        )
    if not 0 <= array.min() <= array.max() <= LARGEST_LABEL:
        labels = f'labels from {array.min()} to {array.max()}'
        raise ValueError(f'{source} has {labels} in {key}: number the classes from 0.')
    return array.astype(np.int32, copy=False)


def _numbered_users(users: np.ndarray, num_examples: int, source: str) -> np.ndarray:
    """Returns the users of the training examples, numbered from 0 in sorted order, [n] int32."""
    if users.shape != (num_examples,) or users.dtype.kind not in 'iuSU':
        raise ValueError(
            f'{source} has shape {users.shape} and dtype {users.dtype} in users: it must be one '
            f'integer or text for each of the {num_examples} training examples, as of .astype(str).'
        )
    return np.unique(users, return_inverse=True)[1].astype(np.int32)
