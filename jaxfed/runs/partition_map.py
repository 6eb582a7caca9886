"""Shows the partition of the data: python -m jaxfed.partition --alpha=0.1 --num_clients=20."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import app, flags
from rich.console import Console

from jaxfed import config
from jaxfed.data.errors import explain_errors
from jaxfed.internal import command_line, console
from jaxfed.internal.files import atomic_path, write_atomic
from jaxfed.internal.include import check_included, include_first
from jaxfed.partition.file import SUFFIXES
from jaxfed.recording.entries import title_of
from jaxfed.recording.heatmap import draw_heatmap, print_heatmap
from jaxfed.recording.style import FORMATS
from jaxfed.runs import checks, config_flags, deal
from jaxfed.runs.experiment import method_of
from jaxfed.runs.listings import list_methods


def deal_examples(settings: config.Config) -> deal.Dealt:
    """Deal the training examples.

    Args:
      settings: of the experiment; the method matters, because the partition does not deal the
        auxiliary examples of the server.

    Returns:
      The dataset and who holds which of its training examples.

    Raises:
      ValueError: if method, data or partition is invalid.
    """
    # No client is sampled or evaluated, so what a run needs for that limits nothing.
    sampled = min(settings.clients_per_round, settings.num_clients)
    every = settings.local_eval_every or 1
    checks.check(dataclasses.replace(settings, clients_per_round=sampled, local_eval_every=every))
    return deal.deal(settings, auxiliary_per_class=method_of(settings).auxiliary)


def write_indices(path: Path, dealt: deal.Dealt) -> None:
    """Write who holds which training examples to a JSON or NPZ file, for --partition_file.

    Args:
      path: ends in .json or .npz.
      dealt: of settings without --personal_test.
    """
    number = len(dealt.dataset.y_train)
    if path.suffix == '.json':
        clients = ',\n  '.join(json.dumps(part.tolist()) for part in dealt.partition)
        text = f'{{"num_examples": {number}, "digest": "{dealt.digest}", "clients": [\n  '
        write_atomic(path, f'{text}{clients}\n]}}\n')
        return
    sizes = np.array([len(part) for part in dealt.partition])
    with atomic_path(path) as temporary, temporary.open('xb') as file:
        np.savez_compressed(
            file, indices=np.concatenate(dealt.partition), sizes=sizes, num_examples=number
        )


def main(arguments: Sequence[str]) -> int:
    """Print the label counts of the clients; draw them to --output, list them in --output_indices.

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
        check_included(flags.FLAGS.include)
        settings = config_flags.from_flags()
        output, indices = flags.FLAGS.output, flags.FLAGS.output_indices
        if indices and Path(indices).suffix not in SUFFIXES:
            raise ValueError(f'--output_indices={indices} must end in {" or ".join(SUFFIXES)}.')
        if output and Path(output).suffix.lower() not in FORMATS:
            raise ValueError(f'--output={output} must end in {" or ".join(FORMATS)}.')
        for flag, path in (('output', output), ('output_indices', indices)):
            if path and not Path(path).parent.is_dir():
                raise ValueError(f'--{flag}={path}: there is no such folder; create it first.')
        dealt = deal_examples(settings)
        print_heatmap(dealt.label_counts, Console(highlight=False))
        console.say(f'digest of the partition: {dealt.digest}')
        advice = 'name a file in an existing, writable folder'
        if output:
            with explain_errors(f'--output={output} cannot be written', advice, catch=OSError):
                draw_heatmap(dealt.label_counts, Path(output), title=title_of(settings))
        if indices:
            if settings.personal_test:
                dealt = deal_examples(dataclasses.replace(settings, personal_test=0.0))
            failure = f'--output_indices={indices} cannot be written'
            with explain_errors(failure, advice, catch=OSError):
                write_indices(Path(indices), dealt)
    except (ValueError, OSError) as error:
        console.show_error(str(error))
        return 2
    return 0


if __name__ == '__main__':
    try:
        include_first(sys.argv[1:])
        config_flags.define_flags(
            groups=('data and seed', 'partition', 'method'),
            commands={'include': config_flags.COMMAND_FLAGS['include']},
        )
    except ValueError as error:
        console.show_error(str(error))
        sys.exit(2)
    flags.DEFINE_string('output', None, 'file for the partition map: PNG, SVG or PDF')
    flags.DEFINE_string(
        'output_indices',
        None,
        'JSON or NPZ file for the examples of each client, as --partition_file',
    )
    app.run(main, flags_parser=config_flags.parse_program)
