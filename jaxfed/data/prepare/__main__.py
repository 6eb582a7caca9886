"""Prepare a dataset: python -m jaxfed.data.prepare cinic10 --archive=CINIC-10.tar.gz."""

from collections.abc import Sequence

from absl import app, flags

from jaxfed.data.prepare import RECIPES, prepare
from jaxfed.internal import command_line, console, folders
from jaxfed.internal.signals import ending


def define_flags() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string('archive', None, 'the official archive, or the folder it was unpacked to')
    flags.DEFINE_string(
        'data_dir', None, 'directory of the datasets [$TFDS_DATA_DIR or ~/tensorflow_datasets]'
    )
    flags.DEFINE_bool('checksum', True, "compare the archive's checksum with the published one")
    flags.DEFINE_bool('counts', True, 'compare the numbers of examples with the published ones')
    flags.DEFINE_bool('overwrite', False, 'replace a dataset that is already prepared')


def leave(word: str) -> None:
    """Removes unfinished folders when a signal ends the process, 'interrupted' or 'terminated'."""
    folders.discard_unfinished()
    console.show_last_words(f'{word}; nothing was prepared, and existing data is unchanged.')


@ending(leave)
def main(arguments: Sequence[str]) -> int:
    """Prepares the dataset of the command line and returns the exit status."""
    values = flags.FLAGS
    command_line.quiet_libraries()
    try:
        if len(arguments) != 2:
            raise ValueError(
                f'the command takes one dataset of {", ".join(RECIPES)}, got '
                f'{" ".join(arguments[1:]) or "none"}.'
            )
        name = arguments[1]
        official = RECIPES[name].official if name in RECIPES else None
        if official and not values.checksum:
            official = official._replace(checksum=None)
        if official and not values.counts:
            official = official._replace(counts=None, users=None)
        folder, made = prepare(
            name,
            values.archive,
            values.data_dir,
            official=official,
            overwrite=values.overwrite,
            quiet=False,
        )
    except (ValueError, OSError, MemoryError) as error:
        too_large = f'--archive={values.archive} needs more memory than available ({error}).'
        console.show_error(too_large if isinstance(error, MemoryError) else str(error))
        return 2
    if made:
        text = f'{folder} is prepared: --dataset={name} --data_dir={folder.parent.parent}'
    else:
        text = f'{folder} is already prepared; --overwrite replaces it.'
    console.say(text)
    return 0


if __name__ == '__main__':
    define_flags()
    app.run(main, flags_parser=command_line.parse_program)
