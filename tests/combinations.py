"""Random combinations of method, partition, options and network, against the plain loop.

An input is a group of experiments: what all have in common, and for each its own settings. Those
that are not refused train in shared programs, and each must equal the plain loop over it alone.
"""

import collections
import tempfile
import time
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import jaxfed
from jaxfed import methods
from jaxfed.partition import PARTITIONS
from jaxfed.runs import feed
from tests import extremes, plain

GROUPS = 10  # that hypothesis draws from a seed


def one_of(*values):
    return st.sampled_from(values)


METHOD = st.lists(st.sampled_from(list(methods.METHODS)), min_size=1, max_size=3).map('+'.join)
COMMON = st.fixed_dictionaries(
    {
        'method': METHOD,
        'model': one_of(*['tiny'] * 3, *['tiny_normal'] * 2, *['mlp'] * 2, 'lenet'),
        'num_clients': st.integers(3, 6),
        'rounds': one_of(2, 3),
        'local_epochs': one_of(1, 2),
        'batch_size': one_of(2, 3, 5, 50),
        'aggregation': one_of('size', 'uniform'),
        'optimizer': one_of('sgd', 'sgd', 'sgd', 'nesterov', 'adam'),
        'clip_norm': one_of(0.0, 0.0, 0.5),
        'accumulate_steps': one_of(1, 1, 1, 2),
        'clients_per_round': one_of(2, 3, 4),
        'lanes': one_of(1, 2),
        'devices': one_of('1', '2'),
        'stream': one_of(*['off'] * 7, 'on'),
        'feature_shift': one_of('none', 'none', 'none', 'brightness'),
        'personal_test': one_of(0.0, 0.0, 0.3),
        'local_eval_every': one_of(0, 2),
    }
)
OWN = st.fixed_dictionaries(
    {
        'seed': st.integers(0, 999),
        'partition': st.sampled_from([name for name in PARTITIONS if name not in ('file',)]),
        'alpha': one_of(0.1, 1.0, 10.0),
        'min_size': one_of(1, 3),
        'learning_rate': one_of(1e-3, 0.01, 0.03, 0.1),
        'lr_decay': one_of(1.0, 0.9),
        'momentum': one_of(0.0, 0.5, 0.9),
        'weight_decay': one_of(0.0, 1e-5, 1e-2),
        'dropout': one_of(0.0, 0.0, 0.3, 0.7),
        'stragglers': one_of(0.0, 0.0, 0.5),
        'over_selection': one_of(0.0, 0.0, 0.5),
        'imbalance': one_of(1.0, 1.0, 5.0),
        'label_noise': one_of(0.0, 0.0, 0.4),
        'validation': one_of(0.0, 0.0, 0.2),
        'sampling': one_of('uniform', 'size', 'round_robin'),
    }
)


def groups(members):
    """Groups of experiments: (common settings, own settings of each)."""
    return st.tuples(COMMON, st.lists(OWN, min_size=members, max_size=members)).map(adapted)


def adapted(group):
    """A group with settings that are valid together."""
    common, members = group
    clients = min(common['clients_per_round'], common['num_clients'])
    lanes = min(common['lanes'], clients // int(common['devices']))
    changed = {'clients_per_round': clients, 'lanes': lanes, 'checkpoint_every': 0}
    if common['personal_test']:  # needs local evaluation
        changed['local_eval_every'] = 2
    for name in common['method'].split('+'):
        changed |= extremes.NEEDED.get(name, {})
        if methods.METHODS[name]().auxiliary:
            changed['auxiliary_per_class'] = 2
    if common['optimizer'] == 'adam':  # momentum has no effect
        members = [{**own, 'momentum': jaxfed.Config.momentum} for own in members]
    if common['stream'] == 'on':  # compiles a program for each member
        members = members[:2]
    return common | changed, members


def dataset(model):
    """Random images of 4 classes and 8 users, as small as the network accepts."""
    shape = (16, 16, 1) if model == 'lenet' else (4, 4, 1)
    return extremes.dataset(40, shape, classes=4, users=np.arange(40) % 8)


def check(group) -> list[plain.Outcome]:
    """The outcome of each experiment of a group."""
    common, members = group
    data, outcomes, accepted, experiments = dataset(common['model']), [], {}, {}
    for number, own in enumerate(members):
        config = jaxfed.Config(**common, **own)
        try:
            experiments[f'{number}'] = plain.experiment_of(config, data)
            accepted[f'{number}'] = config
        except ValueError as error:
            outcomes.append(plain.Outcome('refused', plain.one_line(error)))
    if accepted:
        # A wave of a streamed run has the largest client only.
        waves = mock.patch.object(feed, 'memory', lambda mesh: 1.0)
        with tempfile.TemporaryDirectory() as folder, waves:
            try:
                results = jaxfed.simulate_all(
                    accepted, f'{folder}/all', dataset=data, quiet=True, compilation_cache=False
                )
            except ValueError as error:  # of a rule that is checked while a hook is traced
                refused = plain.Outcome('refused', plain.one_line(error))
                return outcomes + [refused] * len(accepted)
        first = next(iter(experiments.values()))
        for name, experiment in experiments.items():
            # The plain loops share their programs, too.
            same = experiment._replace(model=first.model, method=first.method)
            outcomes.append(plain.compare_experiment(same, results[name]))
    return outcomes


def run(count, first_seed, *, members, until=np.inf, found=None, failed=None, checked=None):
    """Checks random groups until `count` experiments are done or the time is over.

    Args:
      count: experiments.
      first_seed: of the first groups; the later ones count up from it.
      members: experiments of a group; of streamed ones 2 at most.
      until: of `time.perf_counter`.
      found: a counter of outcomes to add to.
      failed: called with (group, error) if a group fails; by default the error is raised.
      checked: called with (group, outcomes) of the others.

    Returns:
      (the counter of outcomes, the largest deviation of equal ones, the seed of the next groups).
    """
    found, largest = collections.Counter() if found is None else found, 0.0

    def check_next(group):
        nonlocal largest, simplest
        if simplest:
            simplest = False
            return
        if found.total() >= count or time.perf_counter() > until:
            return
        try:
            outcomes = check(group)
        except Exception as error:
            if failed is None:
                raise
            failed(group, error)
            found['failed'] += len(group[1])
            return
        if checked:
            checked(group, outcomes)
        found.update(outcome.kind for outcome in outcomes)
        equal = [outcome.deviation for outcome in outcomes if outcome.kind == 'equal']
        largest = max([largest, *equal])

    # Shrinking would compile hundreds of programs.
    generate = settings(
        max_examples=GROUPS + 1, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    while found.total() < count and time.perf_counter() < until:
        simplest = True  # the first group of every seed, always the same
        seed(first_seed)(generate(given(groups(members))(check_next)))()
        first_seed += 1
    return found, largest, first_seed
