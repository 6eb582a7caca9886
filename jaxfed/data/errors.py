"""Errors of libraries, explained for users."""

import contextlib
from collections.abc import Iterator

from jaxfed.internal import machine

Kinds = type[Exception] | tuple[type[Exception], ...]


def check_memory(what: str, size: int) -> None:
    """Raises a ValueError if data of `size` bytes are larger than what this process may use."""
    if size > machine.memory():
        raise ValueError(
            f'{what} unpacks to {size / 2**30:.1f} GiB, but this process may use '
            f'{machine.memory() / 2**30:.1f} GiB of memory: use fewer or smaller examples.'
        )


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
