"""What is printed at length, printed as it is; see `cdc.logs`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from cdc.logs import plain


class Terminal(Console):
    """A console on which `[red]`, `:smile:` and escape sequences in a name are shown as such.

    To rich the first is markup, of which a part, `[/red]`, is an error that would end the program;
    to the terminal the last is a command.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text), **options)
