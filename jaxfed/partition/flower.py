"""Partitions from and to the partitioners of Flower, by the library flwr-datasets."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def from_flower(partitioner: Any, labels: np.ndarray, *, column: str = 'label') -> list[np.ndarray]:
    """Deals examples with a partitioner of Flower.

    Args:
      partitioner: of `flwr_datasets.partitioner`, without a dataset.
      labels: [n] integers, the class of each training example.
      column: the name of the labels for the partitioner, its `partition_by`.

    Returns:
      N int64 arrays, the examples of each client.
    """
    from datasets import Dataset

    place = '_place'
    partitioner.dataset = Dataset.from_dict({column: labels, place: np.arange(len(labels))})
    return [
        np.asarray(partitioner.load_partition(client)[place], np.int64)
        for client in range(partitioner.num_partitions)
    ]


def to_flower(parts: Sequence[np.ndarray]) -> Any:
    """Makes a partitioner of Flower whose partitions are the given examples.

    Args:
      parts: N index arrays, the examples of each client.

    Returns:
      A `flwr_datasets.partitioner.Partitioner`; assign the training data to its `dataset`.
    """
    from flwr_datasets.partitioner import Partitioner

    class IndexPartitioner(Partitioner):
        """Partitions of fixed examples."""

        def load_partition(self, partition_id: int) -> Any:
            return self.dataset.select(parts[partition_id])

        @property
        def num_partitions(self) -> int:
            return len(parts)

    return IndexPartitioner()
