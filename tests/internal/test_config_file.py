"""Settings from YAML files and from the config.json of a run."""

import dataclasses
import json
import subprocess
import sys

import pytest
from absl import flags

import jaxfed
from jaxfed import methods
from jaxfed.internal.config_file import expand
from jaxfed.recording import run_files
from jaxfed.runs import config_flags

TEXT = """
method: fedlmd+fedprox   # two parts
fedlmd.beta: 0.5
learning_rate: 1e-3
partition: sharding
shards_per_client: 3
augment: [crop, flip]
csv: true
workdir: null
"""


def test_a_yaml_file(tmp_path):
    (tmp_path / 'mine.yaml').write_text(TEXT)
    config = config_flags.parse([f'--config={tmp_path / "mine.yaml"}'])
    assert config == jaxfed.Config(
        method='fedlmd+fedprox', hyperparameters={'fedlmd.beta': 0.5}, learning_rate=1e-3,
        partition='sharding', shards_per_client=3, augment='crop,flip', csv=True,
    )  # fmt: skip


def test_later_flags_count(tmp_path):
    path = tmp_path / 'mine.yaml'
    path.write_text('rounds: 7\nseed: 3\n')
    config = config_flags.parse(['--seed=1', '--config', str(path), '--rounds=9'])
    assert (config.rounds, config.seed) == (9, 3)


def test_only_true_and_false_are_booleans(tmp_path):
    path = tmp_path / 'a.yaml'
    path.write_text('stream: off\nbalanced: true\ncsv: False\n')
    config = config_flags.parse([f'--config={path}'])
    assert (config.stream, config.balanced, config.csv) == ('off', True, False)


def test_numbers_mean_what_they_mean_on_the_command_line(tmp_path):
    path = tmp_path / 'a.yaml'
    path.write_text('seed: 010\nrounds: 1_0\nlearning_rate: .5\nlr_decay: 1e-1\nalpha: 3\n')
    config = config_flags.parse([f'--config={path}'])
    assert (config.seed, config.rounds, config.learning_rate) == (10, 10, 0.5)
    assert (config.lr_decay, config.alpha) == (0.1, 3.0)
    for text in ('rounds: 12:30', 'learning_rate: 1:30', 'rounds: 1.0'):
        path.write_text(text)
        with pytest.raises(ValueError, match=f'{text.partition(":")[0]} must be a'):
            config_flags.parse([f'--config={path}'])


def test_files_of_flags_count_as_earlier_and_name_no_files(tmp_path):
    made = jaxfed.Config(workdir=str(tmp_path / 'run'))
    run_files.make_workdir(made, methods.resolve('fedavg', {}))
    recorded, file = f'--config={tmp_path / "run" / "config.json"}', tmp_path / 'a.flags'
    file.write_text('--learning_rate=0.05\n')
    with pytest.raises(ValueError, match='name it before --learning_rate, which'):
        config_flags.parse([f'--flagfile={file}', recorded])
    assert config_flags.parse([recorded, f'--flagfile={file}']).learning_rate == 0.05
    for text, message in (
        (recorded, '--config is for the command line of python -m jaxfed, not for a file'),
        ('--alpha 0.3', '--alpha 0.3 needs an equals sign: --alpha=0.3'),
    ):
        file.write_text(f'{text}\n')
        with pytest.raises(ValueError, match=message):
            config_flags.parse([f'--flagfile={file}'])
    with pytest.raises(ValueError, match='--config needs a file'):
        config_flags.parse(['--config'])


def test_the_config_of_a_run(tmp_path):
    made = jaxfed.Config(
        method='fedlmd', hyperparameters={'beta': 0.25}, partition='label_quantity', seed=4,
        workdir=str(tmp_path / 'run'), csv=True, lr_decay=0.5,
    )  # fmt: skip
    run_files.make_workdir(made, methods.resolve('fedlmd', {'beta': 0.25}))
    recorded = tmp_path / 'run' / 'config.json'
    assert {'versions', 'device'} <= json.loads(recorded.read_text()).keys()
    read = config_flags.parse([f'--config={recorded}'])
    assert read == dataclasses.replace(made, workdir=None)
    first = config_flags.parse([f'--workdir={tmp_path}', '--mu=3', f'--config={recorded}'])
    first.hyperparameters.pop('mu')  # not of this method
    assert first == dataclasses.replace(read, workdir=str(tmp_path))
    for earlier in ('--rounds=9', '--noremat', '--tau=3', '--fedlmd.beta=3', '--init_seed=3'):
        with pytest.raises(ValueError, match=f'name it before {earlier.partition("=")[0]}, which'):
            config_flags.parse([earlier, f'--config={recorded}'])
    assert config_flags.parse([f'--config={recorded}', '--rounds=9']).rounds == 9


def test_settings_that_the_partition_of_a_run_does_not_read_are_left_out(tmp_path):
    made = jaxfed.Config(partition='iid', alpha=0.5, min_size=3, workdir=str(tmp_path / 'run'))
    run_files.make_workdir(made, methods.resolve('fedavg', {}))
    recorded = f'--config={tmp_path / "run" / "config.json"}'
    assert config_flags.parse([recorded]) == jaxfed.Config(partition='iid')
    other = config_flags.parse([recorded, '--partition=dirichlet'])
    assert other == jaxfed.Config(partition='dirichlet')


# 2^60 numbers, if every alias is written out.
BOMB = ''.join(f'a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n' for i in range(1, 60))


@pytest.mark.parametrize(
    'text, message',
    [
        (None, 'cannot be read .*No such file'),
        ('a: [1', 'cannot be read .*expected'),
        ('- 1\n- 2', 'must map names of flags to values, as "method: fedlmd"'),
        ('', 'must map names of flags'),
        ('rounds: {a: 1}', 'rounds must be a number, a text, true or false, got .*a.: 1'),
        ('rounds: []', 'rounds must be a number'),
        ('when: 2020-01-01', 'when must be a number'),
        ('runds: 3', r'--config=.*mine\.yaml: --runds is not a flag; did you mean --rounds'),
        ('rounds: many', '--rounds must be an integer, got many'),
        ('method: !!python/object/apply:os.system [ls]', 'cannot be read .*could not determine'),
        ('"a\\nb": 3', r'--a\\nb is not a flag'),
        ('a0: &a0 [1, 1]\n' + BOMB, 'a1 must be a number, a text, true or false, got '),
        ('hyperparameters: &a {hyperparameters: *a, lr: 3}', 'hyperparameters must be a number'),
        ('rounds: &a [*a]', 'rounds must be a number'),
        ('rounds: 3\nrounds: 4', r'cannot be read \(rounds is set twice\)'),
    ],
)
def test_files_that_set_no_flags(text, message, tmp_path):
    path = tmp_path / 'mine.yaml'
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        config_flags.parse([f'--config={path}'])
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('other', ['a.flags', 'b.flags'])
def test_flag_files_that_include_themselves_are_read_once(other, tmp_path, capsys):
    (tmp_path / 'a.flags').write_text(f'--flagfile={tmp_path / other}\n--rounds=3\n')
    (tmp_path / 'b.flags').write_text(f'--flagfile={tmp_path / "a.flags"}\n--seed=4\n')
    read = config_flags.parse([f'--flagfile={tmp_path / "a.flags"}'])
    assert (read.rounds, read.seed) == (3, 4 if other == 'b.flags' else 0)
    assert 'circular' in capsys.readouterr().err.lower()


def test_other_arguments_stay():
    assert expand(['jaxfed', '--rounds=3', '--configs=x', 'rest'], flags.FLAGS) == [
        'jaxfed', '--rounds=3', '--configs=x', 'rest',
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command_line_reports_a_wrong_file(tmp_path):
    done = subprocess.run(
        [sys.executable, '-m', 'jaxfed', '--config=none.yaml'],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count('\n') == 1
    assert done.stderr.startswith('error: --config=none.yaml cannot be read')
