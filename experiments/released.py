"""Train with the partition and the schedule of clients of FedNTD's released code.

python -m experiments.released --flagfile=experiments/fedlmd/cifar10_lda0.05.flags --data_dir=DIR \\
    --partition=released --sampling=released --augment=crop,flip,cutout

FedLMD's code builds on FedNTD's. Both draw one partition, independent of the seed of the run, and
sample the clients of a round by its number only. So this program can draw again the number of
examples of every client and class, and the clients of each round, to test their effect on results.
The examples of a class that a client gets differ, because libraries order a dataset differently.
"""

import numpy as np

from jaxfed import main
from jaxfed.engine.cohorts import SAMPLINGS
from jaxfed.partition import PARTITIONS

PARTITION_SEED = 19940817  # a constant of the code
DRAWS = 100_000  # alpha 0.05 takes 19 126


def released_partition(
    labels: np.ndarray, *, num_clients: int, seed: object, alpha: float, min_size: int = 10
) -> list[np.ndarray]:
    """Deals as `dirichlet` with --balanced does, with the random numbers of the released code.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      seed: without effect.
      alpha: concentration.
      min_size: least number of examples of a client.

    Returns:
      N sorted int64 arrays, the examples of each client.

    Raises:
      ValueError: if no draw gives every client as many examples.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, released code.
    """
    rng = np.random.RandomState(PARTITION_SEED)
    by_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for _ in range(DRAWS):
        sizes, dealt = np.zeros(num_clients, np.int64), []
        for examples in by_class:
            shuffled = rng.permutation(examples)
            share = rng.dirichlet(np.full(num_clients, alpha)) * (sizes < labels.size / num_clients)
            # Rounded down after the sum, as in the released code; rounding changes the partition.
            edges = (np.cumsum(share / share.sum()) * shuffled.size).astype(int)[:-1]
            sizes += np.diff(edges, prepend=0, append=shuffled.size)
            dealt.append((shuffled, edges))
        if sizes.min() >= min_size:
            parts = zip(*(np.split(*one) for one in dealt), strict=True)
            return [np.sort(np.concatenate(part)) for part in parts]
    raise ValueError(
        f'--min_size={min_size}: --alpha={alpha} left some client with fewer examples in {DRAWS} '
        'draws; lower it.'
    )


def released_schedule(round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """Samples as the released code does, by the number of the round.

    Args:
      round_: 1 for the first.
      size: [N] examples of each client.
      number: of clients to sample.
      seed: without effect.

    Returns:
      [number] client ids.
    """
    return np.random.RandomState(round_ - 1).choice(len(size), number, replace=False)


if __name__ == '__main__':
    PARTITIONS['released'] = released_partition
    SAMPLINGS['released'] = released_schedule
    main.run()
