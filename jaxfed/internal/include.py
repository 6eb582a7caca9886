"""Python files of a user that register methods, networks, partitions or measures: --include."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxfed.internal.messages import located

# --help shows it up to the semicolon.
HELP = 'Python files that register own methods and networks; also measures; joined by commas'
_included: dict[Path, str] = {}  # resolved path -> name


def include(names: str | None) -> None:
    """Runs the files that --include names, each once and as a module of its name.

    Raises:
      ValueError: if a file is missing, fails, or has the name of another module.
    """
    for name in filter(None, (names or '').split(',')):
        path = Path(name).resolve()
        if path in _included:
            continue
        if path.suffix != '.py' or not path.stem.isidentifier() or not path.is_file():
            missing = '' if path.exists() else '; there is no such file'
            raise ValueError(f'--include={name} must name a Python file, as mine.py{missing}.')
        found = importlib.util.find_spec(path.stem)  # the file itself, if its folder is searched
        if found is not None and found.origin != str(path):
            raise ValueError(f'--include={name}: a module {path.stem} exists; rename the file.')
        _run(path)
        _included[path] = name


def check_included(names: str | None) -> None:
    """Raises a ValueError for a file that did not run before the flags were defined."""
    every = filter(None, (names or '').split(','))
    if late := [name for name in every if Path(name).resolve() not in _included]:
        raise ValueError(
            f'--include={late[0]} must be on the command line, not in a file of flags or settings.'
        )


def include_again() -> list[str]:
    """The flag with which another command includes the files of this process; [] for none."""
    return [f'--include={",".join(_included.values())}'] if _included else []


def include_first(arguments: Sequence[str]) -> None:
    """Runs the files of --include before other flags are defined, which depend on them."""
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition('=')
        if argument == '--':
            return
        if name in ('--include', '-include'):
            include(value if equals else next(rest, ''))


def _run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent))  # for what it imports from its own folder
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise located(f'--include={path}', error) from error
