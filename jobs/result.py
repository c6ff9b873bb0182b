"""What a program found, for other programs: `--json`, the same everywhere.

The one exception is `token`, whose argument would be taken for the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

STDOUT = "-"


def _in_a_folder(
    context: click.Context, parameter: click.Parameter, path: str | None
) -> str | None:
    """Asked before an hour's work, not behind it."""
    if path not in (None, STDOUT) and not (folder := Path(path).absolute().parent).is_dir():
        raise click.BadParameter(f"there is no folder {folder}")
    return path


json_option = click.option(
    "--json",
    "json_path",
    is_flag=False,
    flag_value=STDOUT,
    metavar="[FILE]",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    callback=_in_a_folder,
    help="Print the result as JSON instead; with FILE, write it there besides.",
)


def tell(result: Any, json_path: str | None, show: Callable[[], object]) -> None:
    """The result, as `show` shows it to people, or as JSON on stdout, where nothing else is then;
    or as both, if the JSON goes to a file."""
    text = json.dumps(result, indent=2)
    if json_path == STDOUT:
        click.echo(text)
        return
    show()
    if json_path:
        Path(json_path).write_text(f"{text}\n")
