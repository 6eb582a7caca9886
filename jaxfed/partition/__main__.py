"""Show how a partition deals a dataset: python -m jaxfed.partition --alpha=0.1 --num_clients=20."""

from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from rich.console import Console

from jaxfed import config, simulation
from jaxfed.partition.heatmap import draw_heatmap, print_heatmap
from jaxfed.recording import console


def main(arguments: Sequence[str]) -> int:
    """Print the client x class heat map, and draw it where --output says so.

    Args:
      arguments: what the flags left over; there may be nothing.

    Returns:
      The exit status: 0, or 2 for bad input.
    """
    try:
        if len(arguments) > 1:
            raise ValueError(f'unexpected arguments {" ".join(arguments[1:])}.')
        settings = config.from_flags()
        counts = simulation.deal(settings).label_counts
        print_heatmap(counts, Console(highlight=False))
        if flags.FLAGS.output:
            path = Path(flags.FLAGS.output)
            title = f'{settings.dataset}, {settings.partition}, {settings.num_clients} clients'
            draw_heatmap(counts, path, title=title)
    except (ValueError, OSError) as error:
        console.show_error(str(error))
        return 2
    return 0


if __name__ == '__main__':
    config.define_flags()
    flags.DEFINE_string('output', None, 'PNG file of the heat map')
    app.run(main)
