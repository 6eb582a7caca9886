"""Write a Flower project: python -m jaxfed.flower init DIR --method=fedlmd --num_clients=5."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxfed.internal import console
from jaxfed.internal.command_line import Parser
from jaxfed.internal.include import include

USAGE = (
    'usage: python -m jaxfed.flower init DIR [--include=FILE.py] [--method=NAME and other flags of '
    'jaxfed]'
)


def main(arguments: Sequence[str]) -> int:
    """Write the project.

    Args:
      arguments: the arguments without the program's name.

    Returns:
      The exit status: 0, or 2 for invalid input or a folder that cannot be written.
    """
    if {*arguments} & {'-h', '--help', '--helpfull'}:
        print(f'{__doc__}\n\n{USAGE}')
        return 0
    if len(arguments) < 2 or arguments[0] != 'init' or arguments[1].startswith('-'):
        console.show_error(USAGE)
        return 2
    folder, parser = Path(arguments[1]), Parser(add_help=False, allow_abbrev=False)
    parser.add_argument('--include', action='append', default=[])
    try:
        from jaxfed.flower.project import write_project

        given, flags = parser.parse_known_args(arguments[2:])
        names = ','.join(given.include)
        include(names)
        files = list(dict.fromkeys(Path(name).resolve() for name in names.split(',') if name))
        config = write_project(folder, flags, files)
    except ImportError as error:
        console.show_error(f"jaxfed.flower needs Flower: pip install -e '.[flower]' ({error}).")
        return 2
    except (ValueError, OSError) as error:
        console.show_error(' '.join(str(error).split()))
        return 2
    nodes = f"--federation-config 'num-supernodes={config.num_clients}'"
    command = f'flwr run {shlex.quote(str(folder))} --stream {nodes}'
    console.say(f'{folder}: simulate it with\n  {command}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
