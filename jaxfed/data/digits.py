"""The handwritten digits of scikit-learn, which need no download."""

from importlib import util
from pathlib import Path

import numpy as np

from jaxfed.types import Dataset

_SPLIT_SEED = 0  # part of the dataset's definition, not of an experiment
_TEST_SHARE = 5  # one in five examples of each class is a test example
_FILE = 'datasets/data/digits.csv.gz'  # in the folder of scikit-learn


def load_digits() -> Dataset:
    """Loads 1797 digits of 8 x 8 pixels with values 0 to 16; 4/5 of each class are training data.

    Returns:
      The dataset; the split is always the same.

    Reference:
      Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
      Repository, 1998 (its test part, as distributed by scikit-learn).
    """
    table = _read()
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int32)
    rng = np.random.default_rng(_SPLIT_SEED)
    test = np.zeros(labels.size, bool)
    for c in range(10):
        members = rng.permutation(np.flatnonzero(labels == c))
        test[members[: members.size // _TEST_SHARE]] = True
    return Dataset('digits', images[~test], labels[~test], images[test], labels[test], 10)


def _read() -> np.ndarray:
    """The pixels and the label of each digit, [1797, 65]."""
    # To import scikit-learn takes longer than to train the first rounds; to find it does not.
    spec = util.find_spec('sklearn')
    for folder in (spec and spec.submodule_search_locations) or ():
        if (file := Path(folder, _FILE)).is_file():
            return np.loadtxt(file, np.uint8, delimiter=',')
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    return np.column_stack([pixels, labels]).astype(np.uint8)
