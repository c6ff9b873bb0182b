"""Log lines and text in which names cannot control the terminal.

Names of collections and tables are data of others. A name may contain escape sequences or line
ends, which would clear the screen or forge a log line.
"""

from __future__ import annotations

import logging
import re
import time
from types import TracebackType

# Control characters except tab and line feed, and marks that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""The text with control characters escaped, such as `\x1b`."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class _Plain(logging.Formatter):
    """Formats each message as one line, in the format of `log4j2.properties`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape_controls(super().formatMessage(record)).replace("\n", r"\n")

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        return escape_controls(super().formatException(ei))


def escape_default_logs() -> None:
    """Escape control characters in the log lines that Python prints by default.

    Python prints log lines by itself only where no logging handler is configured. A program that
    configures handlers is not affected.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PLAIN)


def format_line(name: str, text: str) -> str:
    """A line that a program prints, formatted like a log line of this logger at INFO."""
    return _PLAIN.format(logging.LogRecord(name, logging.INFO, "", 0, text, None, None))


_PLAIN = _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s")
