"""What is printed, printed as it is: names of collections and tables are data, not instructions."""

from __future__ import annotations

import logging
import re
import time
from types import TracebackType

# Controls but for tab and line end, and what makes text run in the other direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    r"""The text with controls written out, `\x1b`."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Plain(logging.Formatter):
    """A message is one line, whatever the names in it hold; in the form of `log4j2.properties`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:
        return plain(super().formatMessage(record)).replace("\n", r"\n")

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        return plain(super().formatException(ei))


def print_plainly() -> None:
    """Where nobody has said what becomes of log lines, Python prints them: from now on so that the
    terminal shows what is in them."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PLAIN)


def line(name: str, text: str) -> str:
    """What a program prints that others read in a log: as it would stand there, at INFO."""
    return _PLAIN.format(logging.LogRecord(name, logging.INFO, "", 0, text, None, None))


_PLAIN = _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s")
