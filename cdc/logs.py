"""Log lines and text in which names cannot control the terminal.

Names of collections and tables are data of others. A name may contain escape sequences or line
ends, which would clear the screen or forge a log line.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from contextlib import suppress
from types import TracebackType

_STDERR = 2
LEVELS = ("debug", "info", "warning", "error")
# The Python processes that Spark starts inherit this variable.
LEVEL_VARIABLE = "MONGODB_CDC_LOG_LEVEL"
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
    configures handlers is not affected. The lines of this project are printed from the level on
    that LEVEL_VARIABLE names, if it names one.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PLAIN)
    if (level := os.environ.get(LEVEL_VARIABLE)) in LEVELS:
        show_from(level)


def show_from(level: str) -> None:
    """Print the log lines of this project from one of LEVELS on.

    Other libraries continue to log from WARNING on.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("cdc").setLevel(number)
    if logging.lastResort is not None:
        logging.lastResort.setLevel(number)


def format_line(name: str, text: str) -> str:
    """A line that a signal handler prints, formatted like one of this logger at INFO.

    Takes no lock: the interrupted code may own those of `logging`.
    """
    return _PLAIN.format(logging.LogRecord(name, logging.INFO, "", 0, text, None, None))


def print_output(output: bytes) -> None:
    """Print output of another process to stderr, above a live panel if there is one.

    A panel of rich replaces `sys.stderr`, and prints what is written to it above itself. It would
    draw over what is written to the file directly.
    """
    with suppress(OSError):  # the terminal is gone; the process must not wait for it
        if hasattr(sys.stderr, "rich_proxied_file"):
            sys.stderr.write(output.decode(errors="replace"))
        else:
            os.write(_STDERR, output)


_PLAIN = _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s")
