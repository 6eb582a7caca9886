"""Pictures of a run."""

from pathlib import Path
from typing import Any


def draw_accuracy(metrics: list[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draw test accuracy and training loss by round as a PNG.

    Args:
      metrics: one entry a round, as in metrics.jsonl.
      path: of the PNG.
      title: of the picture.
    """
    from matplotlib.figure import Figure

    from jaxfed.recording.style import COLOURS, style

    rounds = [entry['round'] for entry in metrics]
    tested = [entry for entry in metrics if entry['test_accuracy'] is not None]
    accuracy = [100 * entry['test_accuracy'] for entry in tested]
    local = [entry for entry in metrics if entry.get('local_accuracy') is not None]
    losses = [float('nan') if (loss := e['train_loss']) is None else loss for e in metrics]
    blue, red, green = COLOURS[:3]
    with style():
        figure = Figure(figsize=(7, 4), layout='constrained')
        axes = figure.add_subplot(title=title, xlabel='round', ylabel='test accuracy (%)')
        axes.plot([e['round'] for e in tested], accuracy, color=blue, label='test accuracy')
        if local:
            mean = [100 * entry['local_accuracy'] for entry in local]
            label = 'average local accuracy'
            axes.plot([e['round'] for e in local], mean, color=green, marker='.', label=label)
        axes.set_ylim(0, 100)
        right = axes.twinx()
        right.set_ylabel('training loss')
        right.plot(rounds, losses, color=red, linestyle='--', label='training loss')
        right.set_ylim(bottom=0)
        right.grid(False)
        right.spines['right'].set_visible(True)
        figure.legend(loc='outside lower center', ncols=3)
        figure.savefig(path, dpi=150)
