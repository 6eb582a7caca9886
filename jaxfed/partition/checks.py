"""Checks that every partition makes of its input."""

import numpy as np

Seed = int | np.random.SeedSequence


def checked_labels(labels: np.ndarray, num_clients: int) -> np.ndarray:
    """Returns the labels as an int64 vector after checking that the clients can share them.

    Args:
      labels: [n] integers, not negative, the class of each training example.
      num_clients: number of clients N, 1 to n.

    Returns:
      [n] int64.

    Raises:
      ValueError: if the labels are not such a vector or there are more clients than examples.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f'labels has shape {labels.shape} and dtype {labels.dtype}: pass one integer an '
            'example, [n].'
        )
    if num_clients < 1:
        raise ValueError(f'num_clients={num_clients}: there must be at least 1 client.')
    if num_clients > labels.size:
        raise ValueError(
            f'num_clients={num_clients} is more than the {labels.size} training examples: choose '
            f'--num_clients from 1 to {labels.size}.'
        )
    if labels.min() < 0:
        raise ValueError(f'labels holds {labels.min()}: classes are numbered from 0.')
    return labels.astype(np.int64)


def check_concentration(name: str, alpha: float) -> None:
    """Checks a Dirichlet concentration.

    Args:
      name: of the flag that gives it.
      alpha: the concentration.

    Raises:
      ValueError: if it is not positive and finite.
    """
    # The limits keep 1 / alpha and num_clients * alpha finite.
    if not 1e-100 < alpha < 1e100:
        raise ValueError(
            f'{name}={alpha} must be a positive, finite number: choose --{name} from about 0.05 '
            '(very skewed) to 100 (hardly skewed).'
        )


def check_min_size(min_size: int, num_clients: int, num_examples: int) -> None:
    """Checks that every client can hold the smallest size.

    Args:
      min_size: examples that every client must hold at least.
      num_clients: number of clients N.
      num_examples: number of examples n to deal.

    Raises:
      ValueError: if min_size is below 1 or `N * min_size` above n.
    """
    if min_size < 1:
        raise ValueError(f'min_size={min_size}: every client needs at least 1 example.')
    if min_size * num_clients > num_examples:
        raise ValueError(
            f'min_size={min_size} examples for each of num_clients={num_clients} are more than '
            f'the {num_examples} there are: lower --min_size to at most '
            f'{num_examples // num_clients} or lower --num_clients.'
        )


def check_labels_per_client(labels_per_client: int, num_clients: int, num_classes: int) -> None:
    """Checks that clients with k classes each can hold all classes.

    Args:
      labels_per_client: classes k of each client.
      num_clients: number of clients N.
      num_classes: number of classes C.

    Raises:
      ValueError: if k is not in 1..C or `N * k < C`.
    """
    if not 1 <= labels_per_client <= num_classes:
        raise ValueError(
            f'labels_per_client={labels_per_client} with {num_classes} classes: choose '
            f'--labels_per_client from 1 to {num_classes}.'
        )
    if num_clients * labels_per_client < num_classes:
        raise ValueError(
            f'num_clients={num_clients} with labels_per_client={labels_per_client} cannot hold '
            f'all {num_classes} classes: raise --labels_per_client to at least '
            f'{-(-num_classes // num_clients)}.'
        )


def check_holders(holds: np.ndarray, classes: np.ndarray, class_sizes: np.ndarray) -> None:
    """Checks that there is an example of each class for each of its holders.

    Args:
      holds: [N, C] bool, who holds which class.
      classes: [C] integers, the classes.
      class_sizes: [C] integers, examples of each class.

    Raises:
      ValueError: if a class has fewer examples than holders.
    """
    holders = holds.sum(axis=0)
    c = np.argmax(holders - class_sizes)
    if holders[c] > class_sizes[c]:
        raise ValueError(
            f'class {classes[c]} has {class_sizes[c]} examples for the {holders[c]} of '
            f'num_clients={len(holds)} that hold it with labels_per_client='
            f'{holds[0].sum()}: lower --num_clients or --labels_per_client.'
        )


def generator(seed: Seed) -> np.random.Generator:
    """Returns the random generator of a seed.

    Args:
      seed: integer, not negative, or a SeedSequence.

    Returns:
      A NumPy generator that depends on the seed only.

    Raises:
      ValueError: if the seed is negative.
    """
    if isinstance(seed, int | np.integer) and seed < 0:
        raise ValueError(f'seed={seed}: a seed is an integer from 0 on.')
    return np.random.default_rng(seed)
