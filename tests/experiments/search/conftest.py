"""A search in a new folder."""

import pytest

from experiments.search.__main__ import main

# Clients of one size have one program for all seeds.
SMALL = (
    '--dataset=npz', '--model=mlp', '--num_clients=4', '--clients_per_round=2', '--devices=1',
    '--partition=iid', '--local_epochs=2', '--auxiliary_per_class=2', '--augment=none',
)  # fmt: skip


@pytest.fixture
def command(cheap_runs, tmp_path, monkeypatch):
    """Runs a search in a new folder; returns its exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, npz='tiny.npz'):
        return main([*arguments, '--', *SMALL, f'--npz={npz}'])

    return run
