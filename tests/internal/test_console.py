"""The console: the output in a terminal and in a file during a task."""

import errno
import io
import itertools
import logging
import re
import time

import pytest
from rich.console import Console

from jaxfed.internal import console, logger
from jaxfed.recording import display


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """A file as the output; returns a function that reads its lines."""
    path = tmp_path / 'out'
    monkeypatch.setattr(console, 'MINUTE', 1e6)  # a busy machine may pause for one minute
    with path.open('w', buffering=1) as file:
        monkeypatch.setattr(console, 'TERMINAL', Console(file=file, width=80, highlight=False))
        yield lambda: path.read_text().splitlines()


def wait_for(lines, pattern):
    deadline = time.monotonic() + 600
    while not any(re.fullmatch(pattern, line) for line in lines()):
        assert time.monotonic() < deadline, lines()
        time.sleep(0.01)


def test_a_file_has_the_status_at_once(lines):
    with console.status('compiling', quiet=False):
        assert lines() == ['compiling ...']
    assert re.fullmatch(r'compiling: \d+\.\d s', lines()[1])


def test_a_file_has_a_line_a_minute(lines, monkeypatch):
    monkeypatch.setattr(console, 'MINUTE', 0.02)
    with console.minute_lines(quiet=False) as show:
        show('compiling')
        wait_for(lines, r'compiling \(\d+ s\)')
        show('round 1', now=False)
        wait_for(lines, r'round 1')
        wait_for(lines, r'round 1 \(\d+ s\)')
    assert lines()[0] == 'compiling'


def test_only_a_repeated_line_has_the_elapsed_time(lines, monkeypatch):
    names = [f'round {n}' for n in range(50)]
    monkeypatch.setattr(console, 'MINUTE', 0)  # a new status comes while the last one is printed
    with console.minute_lines(quiet=False) as show:
        for name in names:
            show(name, now=False)
            wait_for(lines, rf'{name}( \(\d+ s\))?')
    by_status = itertools.groupby(lines(), lambda line: line.split(' (')[0])
    assert [next(group) for _, group in by_status] == names


def test_a_short_block_has_only_the_lines_that_are_due(lines):
    with console.minute_lines(quiet=False, timed=True) as show:
        show('one')
        show('two', now=False)
        show('three')
    assert [re.sub(r'\d+ s', 's', line) for line in lines()] == ['one (s)', 'three (s)']


class Full(io.StringIO):
    """A file on a disk that is full until `room` is True."""

    def __init__(self, error):
        super().__init__()
        self.error, self.room = error, False

    def flush(self):
        if not self.room:
            self.seek(0)
            self.truncate()
            raise self.error


@pytest.mark.parametrize('error', [OSError(errno.ENOSPC, 'full'), BrokenPipeError()])
def test_output_that_cannot_be_written_is_dropped(error, monkeypatch):
    file = Full(error)
    monkeypatch.setattr(console, 'TERMINAL', console.Terminal(file=file, width=80))
    console.say('one', quiet=False)
    with console.status('compiling', quiet=False):
        pass
    file.room = True
    console.say('two', quiet=False)
    assert file.getvalue() == ('' if isinstance(error, BrokenPipeError) else 'two\n')


def test_quiet_output(lines, monkeypatch):
    monkeypatch.setattr(console, 'MINUTE', 0)
    with (
        console.status('compiling', quiet=True),
        console.minute_lines(quiet=True) as show,
    ):
        show('one')
    assert lines() == []


def test_a_terminal_has_the_elapsed_time(tmp_path, monkeypatch):
    with (tmp_path / 'out').open('w') as file:
        terminal = Console(
            file=file, width=80, force_terminal=True, _environ={'TERM': 'xterm', 'NO_COLOR': '1'}
        )
        monkeypatch.setattr(console, 'TERMINAL', terminal)
        with console.status('compiling', quiet=False):
            pass
    shown = (tmp_path / 'out').read_text()
    assert re.search(r'compiling \d+:\d\d:\d\d', shown) and 'compiling ...' not in shown


def test_names_cannot_control_the_terminal(lines):
    escape = '\x1b]0;owned\x07\x1b[2J'
    console.say(f'run {escape}\nnext', quiet=False)
    with console.status(escape, quiet=False):
        pass
    display.show_sweep(escape, ['name'], [[escape]], '')
    text = '\n'.join(lines())
    assert text.count('owned') == 5 and text.startswith(r'run \x1b]0;owned\x07\x1b[2J')
    assert all(c.isprintable() or c == '\n' for c in text)


def test_log_messages_have_no_control_characters(caplog):
    with caplog.at_level(logging.INFO, 'jaxfed'):
        logger.LOGGER.info('Decoding %s, 100 %%\x9b', 'a\x1b]0;title\x07\nb')
        logger.LOGGER.warning('100 %\r')
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [r'Decoding a\x1b]0;title\x07\nb, 100 %\x9b', r'100 %\r']


def test_characters_that_the_encoding_lacks_are_escaped(tmp_path, monkeypatch):
    with (tmp_path / 'out').open('w', encoding='ascii') as file:
        monkeypatch.setattr('sys.stdout', file)
        console.escape_unknown_characters()
        Console(file=file, width=80).print('5.0 ± 0.1')
    assert (tmp_path / 'out').read_text() == '5.0 \\xb1 0.1\n'
