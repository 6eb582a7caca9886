"""Settings parsed from flags, and validation data."""

import dataclasses

import numpy as np
import pytest
from absl import flags

from jaxfed import Config, methods
from jaxfed.metrics.measures import MEASURES
from jaxfed.runs import checks, config_flags
from jaxfed.runs.deal import deal
from jaxfed.runs.experiment import make_experiment, method_of


def test_parse_reads_flags_and_does_not_change_those_of_the_program(tmp_path):
    file = tmp_path / 'some.flags'
    file.write_text('# a comment\n--alpha=0.5\n--method=fedlmd\n')
    before = set(flags.FLAGS)
    got = config_flags.parse([f'--flagfile={file}', '--fedlmd.beta=2', '--rounds=7', '--alpha=0.3'])
    want = Config(method='fedlmd', alpha=0.3, rounds=7, hyperparameters={'fedlmd.beta': 2.0})
    assert got == want
    assert config_flags.parse([]) == Config()
    assert set(flags.FLAGS) == before


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--nonsense=1'], 'nonsense'),
        (['--rounds=many'], 'rounds'),
        (['fedlmd'], 'unexpected arguments fedlmd'),
        (['--flagfile=/not/there.flags'], '/not/there.flags'),
        (['--partition=iid', '--alpha=1'], '--alpha=1.0 belongs to'),
        (['--model=transformer'], '--model must be one of'),
    ],
)
def test_parse_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        config_flags.parse(arguments)


def test_validation_replaces_the_test_data():
    plain = deal(Config())
    dealt = deal(Config(validation=0.2), auxiliary_per_class=5)
    images, labels = plain.dataset.x_train, plain.dataset.y_train
    held = dealt.dataset.x_test
    assert len(held) == round(0.2 * len(images))
    used = np.concatenate([*dealt.partition, dealt.auxiliary])
    assert len(used) == len(set(used)) == len(images) - len(held)
    # Exactly the examples that no client trains on, with their labels.
    rest = np.setdiff1d(np.arange(len(images)), used)

    def in_order(x, y):
        rows = np.column_stack([x.reshape(len(x), -1), y])
        return rows[np.lexsort(rows.T)]

    np.testing.assert_array_equal(
        in_order(held, dealt.dataset.y_test), in_order(images[rest], labels[rest])
    )
    shares = np.bincount(dealt.dataset.y_test) / np.bincount(labels)
    assert np.abs(shares - 0.2).max() < 0.01


def test_validation_depends_on_the_seed_and_needs_an_example():
    first, again = deal(Config(validation=0.1)), deal(Config(validation=0.1))
    np.testing.assert_array_equal(first.dataset.x_test, again.dataset.x_test)
    other = deal(Config(validation=0.1, seed=1))
    assert not np.array_equal(first.dataset.x_test, other.dataset.x_test)
    with pytest.raises(ValueError, match=r'--validation=1e-05 holds out none of'):
        deal(Config(validation=1e-5))
    with pytest.raises(ValueError, match=r'--validation must be .*, got 1.0'):
        checks.check(Config(validation=1.0))


@pytest.mark.parametrize(
    'method, hyperparameters, message',
    [
        (
            'krum',
            {'byzantine': 0.45},
            r'--byzantine must be such that 2 floor\(byzantine \* 5\) \+ 2 is below',
        ),
        ('krum', {'selected': 6}, '--selected must be at most the 5 clients'),
        ('trimmed_mean', {'trim': 0.1}, '--trim must be 0, or enough to remove one of the 5'),
    ],
)
def test_hyperparameters_that_do_not_fit_the_cohort(method, hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        make_experiment(Config(method=method, model='mlp', hyperparameters=hyperparameters))


@pytest.mark.parametrize('method', ['fedper', 'ditto', 'apfl+fedlmd'])
def test_measures_relative_to_the_start_of_clients_that_keep_parameters(method):
    config = Config(method=method, model='mlp', local_eval_every=1, measure='all')
    names = make_experiment(config).measures.names
    assert [name for name in MEASURES if name not in names] == [
        'drift', 'divergence', 'alignment', 'gradient_diversity', 'teacher_kl',
    ]  # fmt: skip
    with pytest.raises(
        ValueError,
        match=r'--measure: drift, teacher_kl compare .* keep parameters; leave them out',
    ):
        make_experiment(dataclasses.replace(config, measure='forgetting,drift,teacher_kl'))
    plain = dataclasses.replace(config, method='fedlmd')
    assert make_experiment(plain).measures.names == tuple(MEASURES)


def test_no_hyperparameter_but_alpha_shares_its_name_with_another_flag():
    names = {
        name
        for method in methods.METHODS
        for name in methods.hyperparameters(method)
        if config_flags.flag_of(method, name) != name
    }
    assert names == {'alpha'}


def test_a_short_flag_takes_the_choices_of_all_methods():
    for method, form in (('fedavgm', 'ema'), ('fedssd', 'squared')):
        read = config_flags.parse([f'--method={method}', f'--form={form}'])
        assert read.hyperparameters == {'form': form}
        method_of(read)
    with pytest.raises(ValueError, match='form must be one of linear, squared, got ema'):
        method_of(config_flags.parse(['--method=fedssd', '--form=ema']))
