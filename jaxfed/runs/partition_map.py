"""Shows the partition of the data: python -m jaxfed.partition --alpha=0.1 --num_clients=20."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import app, flags
from rich.console import Console

from jaxfed import config, methods
from jaxfed.data.errors import explain_errors
from jaxfed.internal import command_line, console
from jaxfed.recording.entries import title_of
from jaxfed.recording.heatmap import draw_heatmap, print_heatmap
from jaxfed.runs import checks, config_flags, deal
from jaxfed.runs.listings import list_methods


def training_counts(settings: config.Config) -> np.ndarray:
    """Count the training examples of each class at each client.

    Args:
      settings: of the experiment; the method matters, because the partition does not deal the
        auxiliary examples of the server.

    Returns:
      [N, C] int32.

    Raises:
      ValueError: if method, data or partition is invalid.
    """
    # No client is sampled, so the default of --clients_per_round limits nothing.
    sampled = min(settings.clients_per_round, settings.num_clients)
    settings = dataclasses.replace(settings, clients_per_round=sampled)
    checks.check(settings)
    parts = methods.resolve(settings.method, settings.hyperparameters)
    method = methods.build(parts, switch_round=settings.switch_round)
    return deal.deal(settings, auxiliary_per_class=method.auxiliary).label_counts


def main(arguments: Sequence[str]) -> int:
    """Print the label counts of the clients, and draw them to --output.

    Args:
      arguments: the program's name, and nothing else.

    Returns:
      The exit status: 0, or 2 for bad input.
    """
    command_line.quiet_libraries()
    if flags.FLAGS.method == 'list':
        list_methods()
        return 0
    try:
        if len(arguments) > 1:
            raise ValueError(f'unexpected arguments {" ".join(arguments[1:])}.')
        settings = config_flags.from_flags()
        counts = training_counts(settings)
        print_heatmap(counts, Console(highlight=False))
        if flags.FLAGS.output:
            path = Path(flags.FLAGS.output)
            advice = 'name a file in an existing, writable folder'
            with explain_errors(f'--output={path} cannot be written', advice, catch=OSError):
                draw_heatmap(counts, path, title=title_of(settings))
    except (ValueError, OSError) as error:
        console.show_error(str(error))
        return 2
    return 0


if __name__ == '__main__':
    config_flags.define_flags(groups=('data and seed', 'partition', 'method'))
    flags.DEFINE_string('output', None, 'PNG file for the partition map')
    app.run(main, flags_parser=command_line.parse_program)
