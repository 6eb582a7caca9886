"""Sweep a hyper-parameter and write a report: python -m experiments.examples.sweep_report."""

import subprocess
import sys
from pathlib import Path

import jaxfed

FOLDER = Path('runs/sweep_report')


def main(rounds: int = 20, seeds: int = 2) -> Path:
    """Train FedLMD with several weights beta and seeds, and compare them on one page."""
    configs = {
        f'beta{beta}_seed{seed}': jaxfed.Config(
            method='fedlmd',
            hyperparameters={'beta': beta},
            model='mlp',
            alpha=0.1,
            rounds=rounds,
            seed=seed,
            validation=0.1,  # a tenth of the training data replaces the test data
        )
        for beta in (0.1, 1.0, 10.0)
        for seed in range(seeds)
    }
    results = jaxfed.simulate_all(configs, FOLDER, quiet=False)
    for name, result in results.items():
        if isinstance(result, jaxfed.Result):
            print(f'{name:16} final accuracy {result.summary["final_accuracy"]:.1%}')
    page = FOLDER / 'report.html'
    folders = [str(FOLDER / name) for name in configs]
    command = [sys.executable, '-m', 'jaxfed.report', *folders, f'--output={page}']
    subprocess.run(command, check=True)
    print(f'open {page} in a browser')
    return page


if __name__ == '__main__':
    jaxfed.use_every_core()
    main()
