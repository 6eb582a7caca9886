"""The handwritten digits of scikit-learn, which need no download."""

import numpy as np

from jaxfed.types import Dataset

_SPLIT_SEED = 0  # part of the dataset's definition, not of an experiment
_TEST_SHARE = 5  # one in five examples of each class is a test example


def load_digits() -> Dataset:
    """Loads 1797 digits of 8 x 8 pixels with values 0 to 16; 4/5 of each class are training data.

    Returns:
      The dataset; the split is always the same.

    Reference:
      Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
      Repository, 1998 (its test part, as distributed by scikit-learn).
    """
    import sklearn.datasets

    bunch = sklearn.datasets.load_digits()
    images = bunch.images.astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int32)
    rng = np.random.default_rng(_SPLIT_SEED)
    test = np.zeros(labels.size, bool)
    for c in range(10):
        members = rng.permutation(np.flatnonzero(labels == c))
        test[members[: members.size // _TEST_SHARE]] = True
    return Dataset('digits', images[~test], labels[~test], images[test], labels[test], 10)
