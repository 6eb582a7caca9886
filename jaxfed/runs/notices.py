"""Warnings of settings without effect, and of classes and clients that do not train."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from jaxfed.data import reads_data_dir
from jaxfed.internal import console
from jaxfed.runs.deal import Dealt
from jaxfed.runs.experiment import Experiment, client_steps

MOST = 5  # shown sentences


def show_notices(experiments: Sequence[Experiment]) -> None:
    """Print each sentence once, with the number of experiments that it is about."""
    sentences = Counter(
        sentence for e in experiments for sentence in (*missing_classes(e.dealt), *ineffective(e))
    )
    for sentence, number in list(sentences.items())[:MOST]:
        some = f'{number} of {len(experiments)} experiments: ' * (number < len(experiments))
        console.show_warning(some + sentence)
    if (more := len(sentences) - MOST) > 0:
        console.show_warning(f'{console.counted(more, "more warning")} not shown.')


def missing_classes(dealt: Dealt) -> list[str]:
    """Sentences about classes without examples, which are no error."""
    sentences, dataset = [], dealt.dataset
    test_counts = np.bincount(dataset.y_test, minlength=dataset.num_classes)
    for lacking, counts, consequence in (
        ('that no client has', dealt.label_counts.sum(axis=0), 'cannot be learned'),
        ('without a test example', test_counts, 'have class accuracy 0 in the records'),
    ):
        missing = [str(c) for c in np.flatnonzero(counts == 0)]
        if missing:
            named = ', '.join(missing[:5]) + ' ...' * (len(missing) > 5)
            sentences.append(f'classes {lacking} {consequence}: {named}.')
    return sentences


def ineffective(experiment: Experiment) -> list[str]:
    """Sentences about settings without effect, and clients and methods that never train."""
    config, sentences = experiment.config, []
    batches = client_steps(experiment)
    batches = batches[batches > 0]
    if still := int((batches < config.accumulate_steps).sum()):
        sentences.append(
            f'--accumulate_steps={config.accumulate_steps} is more than the batches of {still} of '
            f'{len(batches)} clients in a round, which send no change.'
        )
    if config.switch_round is not None and config.switch_round >= config.rounds:
        sentences.append(
            f'--switch_round={config.switch_round} is not below --rounds={config.rounds}, so the '
            'second method does not train.'
        )
    if config.data_dir and not reads_data_dir(config.dataset):
        sentences.append(f'--data_dir={config.data_dir} is not read: --dataset={config.dataset}.')
    return sentences
