"""The figure of accuracy and loss by round."""

from pathlib import Path
from typing import Any

from jaxfed.recording.style import COLOURS, style, write


def draw_accuracy(
    metrics: list[dict[str, Any]], path: Path, *, title: str, evaluated_on: str = 'test'
) -> None:
    """Draw accuracy, average local accuracy and training loss by round to a PNG file."""
    from matplotlib.figure import Figure

    def accuracies(field: str) -> tuple[list[int], list[float]]:
        """Rounds with a value, and the values in percent."""
        entries = [entry for entry in metrics if entry.get(field) is not None]
        return [entry['round'] for entry in entries], [100 * entry[field] for entry in entries]

    rounds = [entry['round'] for entry in metrics]
    losses = [float('nan') if (loss := e['train_loss']) is None else loss for e in metrics]
    blue, red, green = COLOURS[:3]
    with style():
        figure = Figure(figsize=(7, 4), layout='constrained')
        axes = figure.add_subplot(xlabel='round', ylabel=f'{evaluated_on} accuracy (%)')
        axes.set_title(title, parse_math=False)  # names may contain $
        axes.plot(*accuracies('test_accuracy'), color=blue, label=f'{evaluated_on} accuracy')
        if (local := accuracies('local_accuracy'))[0]:
            axes.plot(*local, color=green, marker='.', label='average local accuracy')
        axes.set_ylim(0, 100)
        right = axes.twinx()
        right.set_ylabel('training loss')
        right.plot(rounds, losses, color=red, linestyle='--', label='training loss')
        if not any(loss < 0 for loss in losses):  # a method's own penalty may be negative
            right.set_ylim(bottom=0)
        right.grid(False)
        right.spines['right'].set_visible(True)
        figure.legend(loc='outside lower center', ncols=3)
        write(figure, path)
