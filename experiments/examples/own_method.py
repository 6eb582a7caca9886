"""Compare your own method with two others over seeds: python -m experiments.examples.own_method."""

from typing import Any

import jax
import numpy as np

import jaxfed
from jaxfed.methods import METHODS

COMPARED = ('fedavg', 'fedlmd', 'confidence')


def confidence(*, strength: float = 0.1) -> jaxfed.Method:
    """Penalise confident predictions: strength * sum over classes of p log p."""

    def penalty(view: Any) -> jax.Array:
        log_p = jax.nn.log_softmax(view.outputs.logits)
        # `view.mean` averages over the real examples of a batch that may be padded.
        return strength * view.mean((jax.numpy.exp(log_p) * log_p).sum(axis=-1))

    return jaxfed.Method(penalty=penalty)


def main(rounds: int = 20, seeds: int = 3) -> dict[str, np.ndarray]:
    """Train every method with every seed, and print mean and standard deviation."""
    METHODS['confidence'] = confidence
    configs = {
        f'{method}_seed{seed}': jaxfed.Config(
            method=method, model='mlp', alpha=0.1, rounds=rounds, seed=seed
        )
        for method in COMPARED
        for seed in range(seeds)
    }
    # The seeds of a method share one compiled program. A second call resumes or reads the runs.
    runs = jaxfed.simulate_all(configs, 'runs/own_method', quiet=False)
    accuracies = {}
    for method in COMPARED:
        results = [runs[f'{method}_seed{seed}'] for seed in range(seeds)]
        finals = [r.summary['final_accuracy'] for r in results if isinstance(r, jaxfed.Result)]
        accuracies[method] = np.array(finals)
        deviation = np.std(finals, ddof=1) if len(finals) > 1 else 0
        print(f'{method:12} final accuracy {np.mean(finals):.1%} ± {deviation:.1%}')
    return accuracies


if __name__ == '__main__':
    jaxfed.use_every_core()
    main()
