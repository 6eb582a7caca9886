"""Label skew from shards: each client gets a few shards of one class each."""

import numpy as np

from jaxfed.partition.checks import Seed, check_least, checked_labels, generator


def sharding(
    labels: np.ndarray, *, num_clients: int, shards_per_client: int, seed: Seed
) -> list[np.ndarray]:
    """Cuts the classes into N * s shards and deals s of them to each client.

    Each class gets one shard; each further shard goes to the class with the largest shards, which
    minimises the largest shard. The shards of a class differ by at most one example. All clients
    have the same size if the classes are equally large and divide evenly (CIFAR-10 with 100 clients
    and s = 2); otherwise the sizes depend on the deal.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      shards_per_client: shards s of each client, an upper bound on its number of classes.
      seed: random seed of the shuffles and the deal.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example has one client.

    Raises:
      ValueError: if there are fewer shards than classes or more shards than examples.

    Reference:
      McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
      AISTATS 2017, section 3; by class as in FedNTD (Lee et al., NeurIPS 2022) and FedLMD.
    """
    labels = checked_labels(labels, num_clients)
    classes, class_sizes = np.unique(labels, return_counts=True)
    check_least('shards_per_client', shards_per_client)
    num_shards = num_clients * shards_per_client
    if num_shards < classes.size:
        raise ValueError(
            f'--num_clients={num_clients} with --shards_per_client={shards_per_client} makes '
            f'{num_shards} shards for {classes.size} classes, one class each: raise '
            f'--shards_per_client to at least {-(-classes.size // num_clients)}.'
        )
    if num_shards > labels.size:
        raise ValueError(
            f'--num_clients={num_clients} with --shards_per_client={shards_per_client} makes '
            f'{num_shards} shards for {labels.size} examples: lower --shards_per_client or '
            '--num_clients.'
        )
    rng = generator(seed)
    shards_of_class = np.ones(classes.size, np.int64)
    for _ in range(num_shards - classes.size):
        shards_of_class[np.argmax(class_sizes / shards_of_class)] += 1
    shards: list[np.ndarray] = []
    for label, pieces in zip(classes, shards_of_class, strict=True):
        shards += np.array_split(rng.permutation(np.flatnonzero(labels == label)), pieces)
    dealt = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    return [np.sort(np.concatenate([shards[s] for s in row])) for row in dealt]
