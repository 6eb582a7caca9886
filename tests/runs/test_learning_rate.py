"""The learning rate by round."""

import math

import pytest

from jaxfed import Config
from jaxfed.runs import checks
from jaxfed.runs.experiment import make_experiment
from jaxfed.runs.learning_rate import learning_rate


def rates(**settings):
    config = Config(learning_rate=0.4, rounds=6, **settings)
    checks.check(config)
    return [learning_rate(config, round_) for round_ in range(1, 7)]


def test_schedules():
    assert rates() == [0.4] * 6
    assert rates(lr_decay=0.5) == [0.4 * 0.5**i for i in range(6)]
    assert rates(schedule='step', lr_decay=0.5, lr_step=2) == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]
    cosine = [0.2 * (1 + math.cos(math.pi * i / 6)) for i in range(6)]
    assert rates(schedule='cosine') == pytest.approx(cosine)
    warm = [0.4 / 3, 0.8 / 3, *(0.2 * (1 + math.cos(math.pi * i / 4)) for i in range(4))]
    assert rates(schedule='cosine', warmup_rounds=2) == pytest.approx(warm)


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'schedule': 'cosine', 'lr_decay': 0.9}, '--lr_decay=0.9 .* --schedule=exponential'),
        ({'warmup_rounds': 2}, '--warmup_rounds=2 has no effect .* --schedule=cosine'),
        ({'lr_step': 2}, '--lr_step=2 has no effect .* --schedule=step'),
        ({'schedule': 'step', 'lr_decay': 0.5}, '--schedule=step needs --lr_step'),
        ({'schedule': 'step', 'lr_step': 2}, '--schedule=step needs --lr_step'),
        ({'schedule': 'cosine', 'warmup_rounds': 6}, 'must be below --rounds=6'),
        ({'schedule': 'linear'}, '--schedule'),
        ({'optimizer': 'adan'}, '--optimizer'),
        ({'accumulate_steps': 0}, '--accumulate_steps'),
        ({'clip_norm': -1.0}, '--clip_norm'),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        rates(**settings)


@pytest.mark.parametrize('settings', [{'optimizer': 'adam'}, {'accumulate_steps': 2}])
@pytest.mark.parametrize('method', ['scaffold', 'fedlmd+fednova'])
def test_methods_that_count_steps_refuse_other_optimizers(method, settings):
    with pytest.raises(ValueError, match='reads the local steps as those of SGD'):
        make_experiment(Config(method=method, model='mlp', **settings))


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'optimizer': 'adam', 'momentum': 0.5}, '--momentum=0.5 has no effect'),
        ({'accumulate_steps': 1000}, '--accumulate_steps=1000 is more than the'),
        (
            {'method': 'fedrep', 'accumulate_steps': 2, 'local_epochs': 2},
            'may train other arrays in',
        ),
    ],
)
def test_settings_of_the_optimizer_without_effect(settings, message):
    with pytest.raises(ValueError, match=message):
        make_experiment(Config(model='mlp', **settings))
