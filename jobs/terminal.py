"""A console that shows names as they are; see `cdc.logs`."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from cdc.logs import plain

_WIDEST = 10_000


class Terminal(Console):
    """A console on which `[red]`, `:smile:` and escape sequences in a name are shown as such.

    To rich the first is markup, of which a part, `[/red]`, is an error that would end the program;
    to the terminal the last is a command. What goes to a file or a pipe is as wide as it is,
    whatever the environment says of a terminal: a name cut into lines is found there by nobody.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        if not self.file.isatty() and "width" not in options:
            self.size = ConsoleDimensions(_WIDEST, self.height)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text), **options)
