"""A console that prints names without markup or control characters; see `cdc.logs`."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from cdc.logs import escape_controls

_WIDEST = 10_000


class Terminal(Console):
    """A console that prints `[red]`, `:smile:` and escape sequences in a name literally.

    Otherwise rich reads `[red]` as markup, and a single `[/red]` is an error that ends the program.
    A terminal executes escape sequences. Output to a file or a pipe is never wrapped, whatever
    width the environment sets: nobody can search for a name that is split into lines.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        if not self.file.isatty() and "width" not in options:
            self.size = ConsoleDimensions(_WIDEST, self.height)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_controls(text), **options)
