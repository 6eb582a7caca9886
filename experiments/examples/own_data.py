"""Train on your own arrays: python -m experiments.examples.own_data."""

from pathlib import Path

import numpy as np

import jaxfed


def make_images(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images [n, 8, 8, 1] whose class is the position of a bright row, and labels [n]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    images = rng.integers(0, 120, (n, 8, 8, 1)).astype(np.uint8)
    images[np.arange(n), 2 * labels] += 60
    return images, labels


def main(rounds: int = 20) -> jaxfed.Result:
    """Write the arrays to a file, deal them to ten clients, and train."""
    x_train, y_train = make_images(1000, seed=0)
    x_test, y_test = make_images(200, seed=1)
    path = Path('runs/own_data.npz')
    path.parent.mkdir(exist_ok=True)
    # Images have the shape [n, height, width, channels]; labels are 0, 1, 2, ...
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    config = jaxfed.Config(
        method='fedlmd',
        dataset='npz',
        npz=str(path),
        model='mlp',
        alpha=0.3,
        num_clients=10,
        clients_per_round=5,
        rounds=rounds,
    )
    result = jaxfed.simulate(config, quiet=False)
    print(f'final accuracy {result.summary["final_accuracy"]:.1%}, records in {result.workdir}')
    return result


if __name__ == '__main__':
    jaxfed.use_every_core()
    main()
