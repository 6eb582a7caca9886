"""The first hour at the command line: help, a dry run, devices, progress."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from rich.console import Console

import jaxfed
from jaxfed import config, main
from jaxfed.engine import devices
from jaxfed.internal import command_line, console
from jaxfed.internal.backend import compiling_for
from jaxfed.internal.versions import recorded_versions
from jaxfed.recording.heatmap import print_heatmap
from jaxfed.recording.progress import run_progress
from jaxfed.runs import config_flags, dry_run, prepare
from jaxfed.runs.experiment import client_steps, make_experiment
from jaxfed.runs.rounds import train_and_evaluate
from tests.test_main import SMALL, command, defined_flags, make_npz  # noqa: F401

TINY = ('--dataset=npz', '--npz=tiny.npz', *SMALL)


def shown_by(flag, capsys):
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as ended:
        flags.FLAGS.unparse_flags()
        flags.FLAGS(['jaxfed', flag])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert not shown.err
    return shown.out


@pytest.mark.parametrize('flag', ['--help', '--helpshort', '-?', '-h'])
def test_help_is_short_and_has_every_setting(flag, capsys):
    text = shown_by(flag, capsys)
    lines = text.splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 80
    for field in dataclasses.fields(config.Config):
        at = re.search(rf'^  --{field.name} .*\S', text, re.M)
        assert at or field.name in ('hyperparameters', 'partition_settings'), field.name
    for group in config.GROUPS:
        assert f'\n{group}:\n' in text
    assert '[dirichlet]' in text
    assert 'extended_dirichlet' in text
    assert '[what --method needs]' in text
    assert '--helpfull shows all' in lines[-2]
    assert '--method=list' in lines[-3]
    assert 'fedlsd.alpha' not in text


def test_helpfull_has_every_flag(capsys):
    text = shown_by('--helpfull', capsys)
    for name in ('--fedlsd.alpha', '--batch_size', '--verbosity', '--[no]dry_run'):
        assert name in text


def test_version(capsys):
    assert shown_by('--version', capsys) == f'jaxfed {recorded_versions()["jaxfed"]}\n'


def test_help_of_a_program_has_its_own_flags(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['of_my_own.py'])
    with flagsaver.flagsaver():
        flag = flags.DEFINE_float(
            'strength_of_mine', 0.5, 'what I added', module_name='of_my_own.py'
        )
        try:
            text = shown_by('--help', capsys)
        finally:
            delattr(flags.FLAGS, flag.name)
    line = next(line for line in text.splitlines() if 'strength_of_mine' in line)
    assert re.fullmatch(r'  --strength_of_mine +what I added \[0\.5\]', line)


def test_groups_without_flags_and_long_texts():
    rows = [
        command_line.FlagHelp('a', 'b; c [what]', None, ('x', 'y')),
        command_line.FlagHelp('long', 'word ' * 40, 3),
    ]
    lines = command_line.short_help({'one': rows, 'none': []}, 'Title.\n\nMore.').splitlines()
    assert lines[:3] == ['Title.', 'one:', '  --a    x|y: b [what]']
    assert 'none:' not in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_dry_run_describes_the_run_and_writes_nothing(command, tmp_path, capsys):  # noqa: F811
    make_npz(tmp_path / 'tiny.npz')
    before = set(tmp_path.rglob('*'))
    flags_ = ('--method=fedlmd+fedprox', '--tau=2', '--dry_run', '--local_eval_every=2', *TINY)
    assert command(*flags_) == 0
    assert set(tmp_path.rglob('*')) == before
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    text = ' '.join(shown.split())
    settings = jaxfed.Config(
        dataset='npz', npz=str(tmp_path / 'tiny.npz'), model='mlp', rounds=3, num_clients=4,
        clients_per_round=2, alpha=1.0,
    )  # fmt: skip
    experiment = make_experiment(settings)
    steps = client_steps(experiment)
    assert f'{steps.min()} / {np.median(steps):g} / {steps.max()}' in text
    for line in (
        '120 examples at the clients, 30 test examples, 6x6x1 uint8, 3 classes',
        'dirichlet (alpha=1.0, min_size=10, balanced=False)',
        '2 of 4 a round',
        'fedlmd (beta=1.0, tau=2.0) + fedprox (mu=',
        'forward passes +1',
        'mlp, 48203 parameters',
        'convolutions none',
        'no work directory was made',
    ):
        assert line in text
    assert re.search(r'memory about \d+ MiB of [\d.]+ GiB on each', text)
    assert re.search(r'time about \d+ s with evaluation', text)


def test_dry_run_of_a_run_that_does_not_fit_into_memory(command, tmp_path, monkeypatch, capsys):  # noqa: F811
    make_npz(tmp_path / 'tiny.npz')
    before = set(tmp_path.rglob('*'))
    monkeypatch.setattr(prepare, 'memory', lambda mesh: 1.0)
    assert command('--dry_run', *TINY) == 2
    assert 'error: training needs about' in capsys.readouterr().err
    assert set(tmp_path.rglob('*')) == before


def test_dry_run_is_not_a_setting():
    with pytest.raises(ValueError, match='--dry_run=True is a flag of'):
        config_flags.parse(['--dry_run'])


def test_the_time_estimate_follows_from_one_round():
    settings = jaxfed.Config(rounds=10, eval_every=3, local_eval_every=4)
    timed = dry_run.Timed(training=2.0, steps=10, evaluation=1.0, local_evaluation=5.0)
    # 1000 steps of .2 s, 4 evaluations, 3 of local models.
    assert dry_run.estimate(settings, timed, 1000) == 219


@pytest.mark.slow
def test_the_time_estimate_is_that_of_a_round_that_trains(monkeypatch, tmp_path):
    make_npz(tmp_path / 'tiny.npz')
    passes = []

    def recorded(*arguments):
        state, entries = train_and_evaluate(*arguments)
        passes.append(entries[0])
        return state, entries

    monkeypatch.setattr(dry_run, 'train_and_evaluate', recorded)
    settings = jaxfed.Config(
        dataset='npz', npz=str(tmp_path / 'tiny.npz'), model='mlp', num_clients=4,
        clients_per_round=2, rounds=4, local_eval_every=2, alpha=1.0,
    )  # fmt: skip
    experiment = make_experiment(settings)
    timed = dry_run.time_round(experiment, prepare.prepare([experiment]))
    assert len(passes) == 2 and timed.steps > 0
    assert all(entry['train_loss'] > 0 and entry['local_accuracy'] for entry in passes)


@pytest.mark.slow
def test_dry_run_lists_the_used_convolutions():
    used = dry_run.convolutions(make_experiment(jaxfed.Config(model='cnn')))
    assert used == {
        '5x5, 1 to 32 and 2x2 max-pool on 8x8': 'blocks',
        '5x5, 32 to 64 and 2x2 max-pool on 4x4': 'fourier',
    }
    forced = dry_run.convolutions(make_experiment(jaxfed.Config(model='resnet8', conv='patches')))
    assert set(forced.values()) == {'patches'}
    used = dry_run.convolutions(make_experiment(jaxfed.Config(model='mobilenet', width=0.05)))
    assert 'depthwise' in used.values()


class Device:
    """A substitute for a device of JAX."""

    def __init__(self, platform, kind='', limit=None):
        self.platform, self.device_kind, self._limit = platform, kind, limit

    def memory_stats(self):
        return self._limit and {'bytes_limit': self._limit}


@pytest.mark.parametrize(
    'local_devices, words',
    [
        ([Device('cpu')] * 4, '4 cpu cores, each one a device'),
        ([Device('cpu')], '1 cpu device of 7 cores'),
        ([Device('gpu', 'NVIDIA H100', 60 << 30)] * 2, '2 x NVIDIA H100, 60 GiB each for JAX'),
        ([Device('tpu', 'TPU v4')], '1 x TPU v4'),
    ],
)
def test_devices_in_words(local_devices, words, monkeypatch):
    monkeypatch.setattr(devices, 'cores', lambda: 7)
    assert devices.describe_devices(local_devices) == words


@pytest.mark.parametrize(
    'gpu, tpu, installed, environment, message',
    [
        (False, False, None, {}, None),
        (True, False, None, {}, "NVIDIA GPU that JAX cannot use: pip install -e '.[cuda12]'"),
        (True, False, 'jax_cuda12_plugin', {}, 'cannot use, although jax_cuda12_plugin is'),
        (True, False, 'jax_cuda13_plugin', {}, 'cannot use, although jax_cuda13_plugin is'),
        (False, True, None, {}, "TPU that JAX cannot use: pip install -e '.[tpu]'"),
        (True, False, None, {'CUDA_VISIBLE_DEVICES': ''}, None),
        (True, False, None, {'platforms': 'cpu'}, None),
    ],
)
def test_an_idle_accelerator_warns(gpu, tpu, installed, environment, message, monkeypatch):
    monkeypatch.setattr(devices, 'has_nvidia_driver', lambda: gpu)
    monkeypatch.setattr(devices, 'has_tpu', lambda: tpu)
    monkeypatch.setattr(devices.importlib.util, 'find_spec', lambda name: name == installed or None)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    asked = environment.pop('platforms', None) if environment else None
    monkeypatch.setattr(devices, 'asked_platforms', lambda: asked)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    warning = devices.idle_accelerator()
    assert warning is None if message is None else message in warning
    monkeypatch.setattr(devices.jax, 'default_backend', lambda: 'gpu')
    assert devices.idle_accelerator() is None


def test_a_tpu_is_a_pci_device(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, 'PCI', tmp_path)
    assert not devices.has_tpu()
    for name, vendor, device in (('a', '0x10de', '0x0063'), ('b', '0x1ae0', '0x0042')):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'vendor').write_text(f'{vendor}\n')
        (tmp_path / name / 'device').write_text(f'{device}\n')
    assert not devices.has_tpu()
    (tmp_path / 'b' / 'device').write_text('0x0063\n')
    assert devices.has_tpu()


def test_the_warning_does_not_raise(command, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(main, 'idle_accelerator', lambda: 'this machine has a GPU')
    assert command('--workdir=/proc/jaxfed') == 2
    shown = capsys.readouterr()
    assert shown.err.startswith('warning: this machine has a GPU\nerror: --workdir=/proc/jaxfed')
    assert shown.out.startswith('device: ')


def test_the_arithmetic_is_shown(command, capsys):  # noqa: F811
    def first_line(*words):
        command('--workdir=/proc/jaxfed', *words)
        return capsys.readouterr().out.splitlines()[0]

    assert 'arithmetic' not in first_line()
    assert first_line('--precision=bfloat16').endswith('; arithmetic in bfloat16')
    with compiling_for('tpu'):
        assert first_line().endswith('; arithmetic in float32')


def test_a_missing_platform_is_one_line(command, monkeypatch, capsys):  # noqa: F811
    def fail():
        raise RuntimeError("Unable to initialize backend 'bla'")

    monkeypatch.setenv('JAX_PLATFORMS', 'bla')
    monkeypatch.setattr(devices.jax, 'devices', fail)
    assert command() == 2
    assert 'error: JAX finds no device with JAX_PLATFORMS=bla (Unable' in capsys.readouterr().err


def progress_of(seconds, rounds, monkeypatch, **settings):
    made = Console(highlight=False, width=80, record=True, **settings)
    monkeypatch.setattr(console, 'TERMINAL', made)
    with run_progress(rounds, quiet=False) as report:
        for i, round_seconds in enumerate(seconds, start=1):
            report({'round': i, 'test_accuracy': 0.5, 'train_loss': 1.0, 'seconds': round_seconds})
    return made.export_text().splitlines()


def test_time_left_is_that_of_recent_rounds(monkeypatch, tmp_path):
    with (tmp_path / 'out').open('w') as file:
        lines = progress_of([100.0] + [1.0] * 19, 40, monkeypatch, file=file)
    # The first round, slow once, counts until it is not among the last ten.
    assert [line.rpartition('  ')[2] for line in lines] == [
        '0:15:27 left', '0:07:08 left', '28 s left', '24 s left', '20 s left',
    ]  # fmt: skip


@pytest.mark.parametrize('term, lines', [('dumb', 10), ('xterm-256color', 1)])
def test_progress_on_terminals(term, lines, monkeypatch, tmp_path):
    with (tmp_path / 'out').open('w') as file:
        shown = progress_of(
            [4000.0] * 10, 10, monkeypatch, file=file, force_terminal=True,
            _environ={'TERM': term, 'NO_COLOR': '1'},
        )  # fmt: skip
    assert len(shown) == lines
    # A bar is drawn again and again on one line.
    assert re.fullmatch(
        r'round   10/10 .{,50} 0 s left', 'round ' + shown[-1].rpartition('round ')[2]
    )
    if term == 'dumb':
        assert '10:00:00 left' in shown[0]
        assert '\x1b' not in (tmp_path / 'out').read_text()


def test_times_in_words():
    assert [console.time_in_words(s) for s in (0.4, 119, 120, 3723, 100_000)] == [
        '0 s', '119 s', '0:02:00', '1:02:03', '27:46:40',
    ]  # fmt: skip


def test_a_heat_map_without_unicode(tmp_path):
    with (tmp_path / 'out').open('w', encoding='ascii') as file:
        print_heatmap(np.eye(3, dtype=int) * 5, Console(file=file, width=80))
        print_heatmap(np.eye(3, 30, dtype=int) * 5, Console(file=file, width=80), most=1)
    shown = (tmp_path / 'out').read_text()
    assert '... and 2 more clients.' in shown
    words = ' '.join(shown.split())
    assert 'distance of labels to those of all 0.67. Clients of one class' in words


def test_names_with_brackets_are_shown_unchanged(command, tmp_path, capsys):  # noqa: F811
    make_npz(tmp_path / 'tiny.npz')
    assert command('--workdir=[/b]:smile:', *TINY) == 0
    assert 'files: [/b]:smile:/' in capsys.readouterr().out


@pytest.mark.parametrize('name', ['../../x', '/etc/x', 'a\nb', 'x' * 300])
def test_a_run_stays_under_runs(name, tmp_path, monkeypatch):
    from jaxfed.recording import run_files

    monkeypatch.chdir(tmp_path)
    made = run_files.make_workdir(config.Config(dataset=name, method=name), [])
    assert made.resolve().parent == tmp_path / 'runs'
    assert json.loads((made / 'config.json').read_text())['dataset'] == name


def test_a_flag_file_that_is_not_text(tmp_path):
    path = tmp_path / 'binary.flags'
    path.write_bytes(b'\xb4\xff')
    with pytest.raises(ValueError, match=r'--flagfile must name a text file \(.*codec'):
        config_flags.parse([f'--flagfile={path}'])


@pytest.mark.parametrize(
    'flag, message',
    [
        ('--lr=.1', '--lr is not a flag; did you mean --learning_rate? --help shows the flags.'),
        ('--gpu=0', '--gpu is not a flag; did you mean --devices?'),
        ('--fraction=.1', '--fraction is not a flag; did you mean --clients_per_round?'),
        ('--model=resnet34', 'got resnet34; did you mean --model=resnet8 or --model=resnet50'),
        ('--model=CNN', 'got CNN; did you mean --model=cnn?'),
        ('--bta=1', '--bta is not a flag; did you mean --beta or --tau? --help shows the flags.'),
        (
            '--fedlmd.bta=1',
            '--fedlmd.bta is not a flag; did you mean --fedlmd.beta or --fedlmd.tau',
        ),
        ('--qqqq', '--qqqq is not a flag; --help shows the flags.'),
        ('--q\x1b[2J\x9b', r'--q\x1b[2J\x9b is not a flag; --help shows the flags.'),
        ('--rounds=many', '--rounds must be an integer, got many.'),
        ('--seed=a: b', '--seed must be an integer, got a: b.'),
        ('--alpha=0,1', '--alpha must be a number, got 0,1.'),
        ('--alpha=.1,.5', 'got .1,.5; to train with each, use --sweep="alpha=.1,.5".'),
        ('--rounds=1,2,x', '--rounds must be an integer, got 1,2,x.'),
        ('--seed=4,5', 'must be an integer, got 4,5; to train with 2 seeds, use --seeds=2.'),
        ('--model=mlp,cnn', 'got mlp,cnn; to train with each, use --sweep="model=mlp,cnn".'),
        ('--remat=maybe', '--remat must be True or False, got maybe.'),
        ('--norm=bach', 'must be one of batch, group, none, got bach; did you mean --norm=batch?'),
        ('--norm=', "--norm must be one of batch, group, none, got ''."),
        ('--rounds', 'Missing value for flag --rounds.'),
        ('--flagfile=/no/such', "Unable to open flagfile: [Errno 2] No such file or directory: '/"),
    ],
)
def test_invalid_flags_are_one_line(flag, message, capsys):
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as ended:
        flags.FLAGS.unparse_flags()
        command_line.parse_program(['jaxfed', flag])
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.err.startswith('error: ') and shown.err.count('\n') == 1
    assert message in shown.err and not shown.out
    with pytest.raises(ValueError) as refused:
        config_flags.parse([flag])
    assert f'error: {refused.value}\n' == shown.err


@pytest.mark.parametrize('terminal', [False, True])
def test_the_last_error_restores_the_cursor(terminal, monkeypatch, capsys, tmp_path):
    with (tmp_path / 'out').open('w') as file:
        made = Console(file=file, force_terminal=terminal, _environ={'TERM': 'xterm'})
        monkeypatch.setattr(console, 'TERMINAL', made)
        console.show_last_words('interrupted.')
    assert capsys.readouterr().err == 'error: interrupted.\n'
    assert (tmp_path / 'out').read_text() == '\x1b[1G\x1b[2K\x1b[?25h' * terminal


def test_help_may_be_cut_off():
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, '-m', 'jaxfed', '--help']
    with os.fdopen(write, 'w') as stdout:
        done = subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, '')
