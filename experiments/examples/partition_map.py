"""Look at a partition before training: python -m experiments.examples.partition_map."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from jaxfed.data import load_dataset
from jaxfed.partition import make_partition


def main(num_clients: int = 20) -> np.ndarray:
    """Deal the digits by three Dirichlet concentrations, and draw the label counts.

    Returns:
      [3, N, C] examples of each class at each client.
    """
    labels = load_dataset('digits').y_train
    figure = Figure(figsize=(10, 4), layout='constrained')
    all_counts = []
    for axes, alpha in zip(figure.subplots(1, 3, sharey=True), (0.05, 0.5, 10.0), strict=True):
        parts = make_partition('dirichlet', labels, num_clients=num_clients, seed=0, alpha=alpha)
        counts = np.stack([np.bincount(labels[part], minlength=10) for part in parts])
        image = axes.imshow(counts, cmap='Blues', vmin=0, aspect='auto')
        axes.set(title=f'Dirichlet alpha {alpha:g}', xlabel='class', xticks=range(10))
        axes.set_yticks(range(0, num_clients, 5))
        figure.colorbar(image, ax=axes, label='training examples')
        classes = (counts > 0).sum(axis=1).mean()
        sizes = counts.sum(axis=1)
        print(f'alpha {alpha:5g}: {classes:4.1f} classes a client, {sizes.min()} to {sizes.max()} '
              'examples')  # fmt: skip
        all_counts.append(counts)
    figure.axes[0].set_ylabel('client')
    path = Path('runs/partition_map.png')
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f'written: {path}')
    return np.stack(all_counts)


if __name__ == '__main__':
    main()
