"""What is printed, printed as it is: names of collections and tables are data, not instructions."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

# Controls but for tab and line end, and what makes text run in the other direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Terminal(Console):
    """A console on which `[red]`, `:smile:` and escape sequences in a name are shown as such.

    To rich the first is markup, of which a part, `[/red]`, is an error that would end the program;
    to the terminal the last is a command.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text), **options)


def plain(text: str) -> str:
    r"""The text with controls written out, `\x1b`."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
