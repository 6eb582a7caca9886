"""Settings from a YAML or JSON file, as flags: --config=FILE."""

import itertools
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from absl import flags

from jaxfed.internal.messages import printable

# In the config.json of a run: mappings of settings, facts that are no settings, and those that
# belong to that run alone.
_MAPPINGS = ('hyperparameters', 'partition_settings')
_FACTS = ('method_parts', 'versions', 'device')
_OF_THE_RUN = ('workdir', 'resume')
# Name of a partition -> the settings that it does not read, though config.json has them.
Unread = Callable[[str], Collection[str]]


_TAG = 'tag:yaml.org,2002:'
_NUMBERS = {
    'int': r'[-+]?(0|[1-9][0-9]*)$',
    'float': r'[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$',
}


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that has a name twice, of which PyYAML takes the last.

    As in YAML 1.2, only true and false are booleans: `off` is a choice of --stream. Numbers are
    decimal; other texts, such as 12:30 and 010, mean what they mean on the command line.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [
            (tag, rule)
            for tag, rule in rules
            if not tag.endswith((':int', ':float')) and (first in 'tTfF' or tag != _TAG + 'bool')
        ]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise yaml.YAMLError(f'{twice[0]} is set twice')
        return super().construct_mapping(node, deep)


for _name, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), [*'-+.0123456789'])


def expand(
    arguments: Sequence[str], values: flags.FlagValues, unread: Unread = lambda partition: ()
) -> list[str]:
    """Replaces each --config=FILE by the flags that the file sets.

    Flags after it on the command line override the file, as with --flagfile.

    Args:
      arguments: the program's name and its flags.
      values: the defined flags.
      unread: the settings that are left out of the config.json of a run.

    Raises:
      ValueError: if a file cannot be read, or does not map names of flags to values.
      flags.UnrecognizedFlagError: if a file names no flag; its note is the file.
    """
    expanded, rest = [], iter(arguments)
    for argument in rest:
        name, equals, path = argument.partition('=')
        if name not in ('--config', '-config'):
            expanded.append(argument)
            continue
        if not (path := path if equals else next(rest, '')):
            raise ValueError('--config needs a file, as in --config=FILE.yaml.')
        expanded += _flags_of(path, values, expanded, unread)
    return expanded


def _flags_of(
    path: str, values: flags.FlagValues, earlier: Sequence[str], unread: Unread
) -> list[str]:
    """The flags that a file sets; of a run's config.json those that differ from the default.

    Args:
      path: of the file.
      values: the defined flags.
      earlier: the arguments before it.
      unread: as in `expand`.
    """
    source = f'--config={printable(path)}'
    try:
        content = yaml.load(Path(path).read_text(encoding='utf-8'), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise ValueError(f'{source} cannot be read ({printable(reason)[:300]}).') from error
    if not isinstance(content, Mapping):
        raise ValueError(
            f'{source} must map names of flags to values, as "method: fedlmd", or be the '
            'config.json of a run.'
        )
    chosen = dict(_settings(content))
    if all(name in content for name in _FACTS):
        # It has every setting, also those of other partitions.
        for name in (*_FACTS, *_OF_THE_RUN, *unread(str(content.get('partition')))):
            chosen.pop(name, None)
        chosen = {n: v for n, v in chosen.items() if n not in values or values[n].default != v}
        given = values.read_flags_from_files(earlier)
        names = [one.lstrip('-').partition('=')[0] for one in given if one.startswith('-')]
        known = _names_in(content)
        if late := [name for name in names if {name, name.removeprefix('no')} & known]:
            raise ValueError(
                f'{source} is of a run and has every setting: name it before --{late[0]}, which '
                'then overrides it.'
            )
    arguments = [f'--{name}={_text(source, name, value)}' for name, value in chosen.items()]
    for name in chosen:
        if name not in values and name.removeprefix('no') not in values:
            unknown = flags.UnrecognizedFlagError(name)
            unknown.add_note(source)
            raise unknown
    return arguments


def _names_in(content: Mapping[Any, Any]) -> set[Any]:
    """The names of the flags that the config.json of a run has a value for."""
    names, parts = set(content) - set(_OF_THE_RUN), content['method_parts']
    for part in parts if isinstance(parts, list) else []:
        values = part.get('hyperparameters') if isinstance(part, Mapping) else None
        for name in values if isinstance(values, Mapping) else []:
            names |= {name, f'{part.get("name")}.{name}'}
    return names


def _settings(content: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (name of the flag, its value); none for null."""
    # Of one level: aliases of YAML can nest mappings in themselves.
    nested = [content[n] for n in _MAPPINGS if isinstance(content.get(n), Mapping)]
    plain = {n: v for n, v in content.items() if not any(v is inner for inner in nested)}
    for name, value in itertools.chain(plain.items(), *(inner.items() for inner in nested)):
        if value is not None:
            yield printable(str(name)), value


def _text(source: str, name: Any, value: Any) -> str:
    """A value as on the command line; a list is joined by commas."""
    if isinstance(value, bool):
        return 'true' if value else 'false'
    # An entry is no list: ten lines of YAML can write a list of 10^9 entries by aliases.
    if isinstance(value, list) and value and not any(isinstance(entry, list) for entry in value):
        return ','.join(_text(source, name, entry) for entry in value)
    if not isinstance(value, str | int | float):
        raise ValueError(
            f'{source}: {printable(str(name))} must be a number, a text, true or false, got '
            f'{printable(reprlib.repr(value))[:100]}.'
        )
    return str(value)
