"""The values that pass between the rooms of jaxfed; each array field has its shape.

Letters: `B` examples in a batch, `C` classes, `F` features, `N` clients, `S` clients sampled a
round, `n` training examples. A method computes for one client; the engine maps it over the stacked
clients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
PyTree = Any


def example_inputs(batch: int, input_shape: tuple[int, ...], vocabulary: int = 0) -> Any:
    """Shape and dtype of the network's inputs: float32, or int32 if there is a vocabulary."""
    return jax.ShapeDtypeStruct((batch, *input_shape), jnp.int32 if vocabulary else jnp.float32)


class Batch(NamedTuple):
    """Examples of one client, ready for the network."""

    x: Array  # [B, H, W, channels] float32, normalised and augmented; token ids int32
    y: Array  # [B] int32 in 0..C-1
    mask: Array  # [B] bool, False for the padding of a short batch


class Outputs(NamedTuple):
    """The outputs of a network for a batch."""

    logits: Array  # [B, C]
    features: Array  # [B, F], the input of the last layer; the logits of a network without features
    stats: PyTree = ()  # in training the new batch statistics, of a network that has them


class Model(NamedTuple):
    """A network as a pair of pure functions; parameters are a tree of arrays.

    Methods with a classifier of their own need a nested dict with a 'classifier'.

    A network with batch statistics has their initial values in `stats`, and its `apply` takes two
    more arguments: (params, x, stats) evaluates, (params, x, stats, mask [B]) trains. A network
    with `random`, such as one with dropout, takes a key in training: (params, x, stats, mask, key).
    One that is `masked` takes the mask, too.
    """

    init: Callable[[Array], PyTree]  # random key -> params
    apply: Callable[..., Outputs]  # (params, x [B, H, W, channels]) -> Outputs
    stats: PyTree = ()  # running means and variances; not trained, not seen by methods
    random: bool = False  # whether training draws random numbers
    masked: bool = False  # whether training needs the mask of the real examples

    def evaluate(self, params: PyTree, x: Array, stats: PyTree) -> Outputs:
        """Logits and features of x [B, H, W, channels] with fixed statistics."""
        return self.apply(params, x, stats) if self.stats else self.apply(params, x)

    def train(
        self, params: PyTree, x: Array, stats: PyTree, mask: Array, key: Array | None = None
    ) -> Outputs:
        """Outputs of x [B, H, W, channels] with the batch's statistics, and new running ones.

        Args:
          params: the parameters.
          x: [B, H, W, channels] images.
          stats: running batch statistics, () for a network without.
          mask: [B] bool, False for the padding of a short batch, which the statistics ignore.
          key: random key of this step; required if the network is `random`.

        Returns:
          Logits, features and new running statistics.

        Raises:
          ValueError: if `apply` returns no new statistics.
        """
        if not (self.stats or self.random or self.masked):
            return self.apply(params, x)
        outputs = self.apply(params, x, stats, mask, *([key] if self.random else []))
        if self.stats and not outputs.stats:
            raise ValueError(
                'the network has batch statistics, so apply(params, x, stats, mask) must return '
                "new ones in Outputs.stats; a method's `adapt` must pass them on."
            )
        return outputs


class ClientInfo(NamedTuple):
    """The label counts, the size and the number of a client."""

    label_counts: Array  # [C] int32, examples of each class
    size: Array  # [] int32, examples in all
    id: Array  # [] int32, 0..N-1


class Cohort(NamedTuple):
    """The clients sampled in a round and the local epochs that each completes."""

    clients: Any  # array [S] int32 ids
    epochs: Any  # array [S] int32, local epochs; 0 if the client's update is lost


class Dataset(NamedTuple):
    """A labelled classification dataset in host memory.

    `simulate(config, dataset=...)` also takes the shapes and dtypes of `load_npz`, and converts
    them to those below.
    """

    name: str
    # [n, H, W, channels] uint8 or float32, in any units; vectors [n, 1, 1, d], signals
    # [n, 1, length, channels], token ids [n, 1, length, 1] int32
    x_train: np.ndarray
    y_train: np.ndarray  # [n] int32 in 0..C-1
    x_test: np.ndarray  # [m, H, W, channels], as x_train
    y_test: np.ndarray  # [m] int32
    num_classes: int
    users: np.ndarray | None = None  # [n] int32, the user of each training example, if known
    vocabulary: int = 0  # number of token ids; 0 for other inputs

    @classmethod
    def from_arrays(
        cls,
        x_train: Any,
        y_train: Any,
        x_test: Any,
        y_test: Any,
        *,
        name: str = 'arrays',
        num_classes: int | None = None,
        users: Any = None,
        vocabulary: int = 0,
    ) -> Self:
        """Makes a dataset of arrays or lists; `simulate` checks them.

        Args:
          x_train: images [n, H, W, channels] or [n, H, W], feature vectors [n, d], signals
            [n, 1, length, channels], or token ids, integers [n, length] that are not uint8.
          y_train: [n] integers from 0.
          x_test: as x_train.
          y_test: [m] integers.
          name: letters, digits and any of "_.+-".
          num_classes: C; by default the largest training label plus one.
          users: [n] integers or text, the owner of each training example.
          vocabulary: number of token ids; by default the largest plus one.

        Returns:
          The dataset.

        Raises:
          ValueError: if examples have unequal shapes, labels are no integers from 0, or, without
            num_classes, do not number the classes from 0.
        """
        try:
            inputs = np.asarray(x_train), np.asarray(x_test)
        except ValueError as error:
            raise ValueError(
                'x_train and x_test must have examples of one shape; fill texts of unequal length '
                'with 0.'
            ) from error
        labels, test_labels = np.asarray(y_train), np.asarray(y_test)
        if num_classes is None:
            _check_integers(labels, test_labels)
            source, remedy = 'Dataset.from_arrays', ', or pass num_classes'
            num_classes = count_classes(labels, test_labels, source, remedy=remedy)
        owners = None if users is None else np.asarray(users)
        return cls(name, inputs[0], labels, inputs[1], test_labels, num_classes, owners, vocabulary)


def _check_integers(labels: np.ndarray, test_labels: np.ndarray) -> None:
    for name, array in (('y_train', labels), ('y_test', test_labels)):
        if not array.size or not np.issubdtype(array.dtype, np.integer):
            found = f'{array.dtype} of shape {list(array.shape)}'
        elif array.min() < 0:
            found = f'{array.min()}'
        else:
            continue
        raise ValueError(f'{name} must have integers from 0, one for each example, got {found}.')


def count_classes(
    labels: np.ndarray, test_labels: np.ndarray, source: str, *, remedy: str = ''
) -> int:
    """The number of classes, after checking that the labels number them from 0.

    Args:
      labels: [n] integers of the training examples.
      test_labels: [m] integers.
      source: flag or argument that passed them, for messages.
      remedy: what else than other labels helps, the end of messages.

    Returns:
      The largest training label plus one.

    Raises:
      ValueError: if a test label is above all training labels, no label is 0, or most labels up to
        the largest are missing.
    """
    num_classes = int(labels.max()) + 1
    used = np.union1d(labels, test_labels)
    if used[-1] >= num_classes:
        raise ValueError(
            f'{source} has label {used[-1]} in y_test but labels only up to {num_classes - 1} in '
            f'y_train: remove test examples of classes that are not trained{remedy}.'
        )
    if used[0] > 0:
        raise ValueError(
            f'{source} has labels from {used[0]} to {used[-1]}: number the classes from 0, as in '
            f'y - {used[0]}{remedy}.'
        )
    if 2 * used.size < num_classes:
        raise ValueError(
            f'{source} has the largest label {num_classes - 1}, but only {used.size} different '
            f'labels: number the classes 0..{used.size - 1}, or correct the label if it is '
            f'wrong{remedy}.'
        )
    return num_classes
