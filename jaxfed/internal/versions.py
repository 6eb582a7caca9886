"""The versions of the software on which results depend."""

import contextlib
import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path

PACKAGES = ('jaxfed', 'jax', 'jaxlib', 'flax', 'optax', 'numpy')


def versions_of(packages: tuple[str, ...]) -> dict[str, str]:
    """Return package -> version for the packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


VERSION = versions_of(('jaxfed',)).get('jaxfed', 'unknown')


def with_commit(version: str, package: Path) -> str:
    """Return a package's version and, if it is in a Git checkout, the commit.

    Returns:
      Such as '0.1.0+64fb2ce87b53', with '.modified' if a file of the package differs from the
      commit or is not part of it; the version alone without a checkout or without Git.
    """
    # A folder of installed packages may be inside of a checkout of something else.
    if not (package.parent / '.git').exists():
        return version

    def git(*arguments: str) -> str:
        # Reading must not wait for, or write, the index of a checkout that others use.
        command = ['git', '--no-optional-locks', '-C', str(package.parent), *arguments]
        return subprocess.run(
            command, capture_output=True, check=True, text=True, timeout=10
        ).stdout.strip()

    try:
        commit = git('rev-parse', '--short=12', 'HEAD')
        changed = git('status', '--porcelain', '--', package.name)
    except (OSError, subprocess.SubprocessError):  # no Git, no commit yet, another owner
        return version
    return f'{version}+{commit}{".modified" if changed else ""}'


@functools.cache
def recorded_versions() -> dict[str, str]:
    """Return name -> version of Python and `PACKAGES`, as records have them."""
    found = {'python': platform.python_version(), **versions_of(PACKAGES)}
    return found | {'jaxfed': with_commit(VERSION, Path(__file__).parents[1])}
