"""The logger of jaxfed."""

import logging

from jaxfed.internal.messages import printable


def _escape(record: logging.LogRecord) -> bool:
    """Escape control characters: messages contain names from files."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


# One logger for all modules: a logger's filter does not apply to the loggers below it.
LOGGER = logging.getLogger('jaxfed')
LOGGER.addFilter(_escape)
