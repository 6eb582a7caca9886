"""Parts of the text of a message."""

import contextlib
import difflib
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

# The packages whose lines a user does not change.
LIBRARIES = {'jaxfed', 'jax', 'flax', 'optax', 'numpy', *sys.stdlib_module_names}


def suggestion(name: str, names: Iterable[str], prefix: str = '') -> str:
    """Return the end of a message: '; did you mean ...?', or '.' if no name is similar."""
    by_letters = {known.lower(): known for known in names}
    letters = name.lower()
    similar = [letters] if letters in by_letters else difflib.get_close_matches(letters, by_letters)
    shown = ' or '.join(prefix + by_letters[found] for found in similar)
    return f'; did you mean {shown}?' if shown else '.'


def first_line(error: BaseException, *, most: int = 200) -> str:
    """The first line of an error's message, or its type; messages of libraries fill pages."""
    return (str(error).splitlines() or [type(error).__name__])[0][:most]


def one_line(error: BaseException) -> str:
    """The first line of an exception's message, after its type unless that is ValueError."""
    plain = isinstance(error, ValueError) or not str(error)
    line = first_line(error, most=300)  # the first one of flax is long
    return line if plain else f'{type(error).__name__}: {line}'


def user_line(error: BaseException) -> str:
    """' (mine.py, line 12)', where an exception was raised in the code of a user, '' elsewhere."""
    steps = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get('__name__', '').partition('.')[0] not in LIBRARIES
    ]
    # The last line in the file of the user's function, which may call libraries not listed above.
    own = [line for name, line in steps if name == steps[0][0]]
    return f' ({Path(steps[0][0]).name}, line {own[-1]})' if own else ''


def located(place: str, error: BaseException, end: str = '.') -> ValueError:
    """An exception of a user's function in one line: the function, its file and line, the reason.

    Args:
      place: the function, as "METHODS['mine']".
      error: the exception.
      end: of the message, as from `suggestion`.
    """
    line = one_line(error).rstrip('.:')
    asks = line.endswith('?')  # newer versions of Python suggest a name, too
    return ValueError(f'{place}{user_line(error)}: {line}{"" if asks else end}')


@contextlib.contextmanager
def locate_errors(place: str) -> Iterator[None]:
    """Replaces an exception of a user's function by `located`; errors of jaxfed's own pass."""
    try:
        yield
    except Exception as error:
        # A call with other arguments than the function takes is a TypeError outside of it.
        if not user_line(error) and not isinstance(error, TypeError):
            raise
        raise located(place, error) from error


def printable(text: str) -> str:
    """Escapes the line breaks and control characters of a text."""
    return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
