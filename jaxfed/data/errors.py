"""Errors of libraries, explained for users."""

import contextlib
from collections.abc import Iterator

Kinds = type[Exception] | tuple[type[Exception], ...]


@contextlib.contextmanager
def explain_errors(
    what: str,
    advice: str,
    *,
    catch: Kinds = Exception,
    keep: Kinds = (),
    raises: type[Exception] = ValueError,
) -> Iterator[None]:
    """Replaces an exception of the block by a one-line message: what failed, why, and a remedy."""
    try:
        yield
    except keep:
        raise
    except catch as error:
        name = type(error).__name__
        text = f'{name}: {error}' if isinstance(error, KeyError) else str(error)
        raise raises(f'{what} ({(text or name).splitlines()[0][:300]}): {advice}.') from error
