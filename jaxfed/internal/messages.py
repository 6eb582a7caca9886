"""Parts of the text of a message."""

import difflib
from collections.abc import Iterable


def suggestion(name: str, names: Iterable[str], prefix: str = '') -> str:
    """Return the end of a message: '; did you mean ...?', or '.' if no name is similar."""
    by_letters = {known.lower(): known for known in names}
    letters = name.lower()
    similar = [letters] if letters in by_letters else difflib.get_close_matches(letters, by_letters)
    shown = ' or '.join(prefix + by_letters[found] for found in similar)
    return f'; did you mean {shown}?' if shown else '.'


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type; messages of libraries fill pages."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def printable(text: str) -> str:
    """Escapes the line breaks and control characters of a text."""
    return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
