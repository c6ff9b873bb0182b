"""Mistakes in the options of a user: one error reports all of them, with their lines in a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from cdc.errors import BadOption

P = ParamSpec("P")
T = TypeVar("T")
_SECTION = re.compile(r"\s*\[+([^\]]+)\]+")
_OPTION = re.compile(r"\s*([\w.\"' -]+?)\s*=")


class Mistakes:
    """The errors about options, collected until `require_none`.

    Options are named as in `BadOption.option`.
    """

    def __init__(self) -> None:
        self._errors: list[BadOption] = []

    def add(self, error: BadOption, option: str) -> None:
        """Collect an error, and name the option that it is about."""
        error.option = option
        self._errors.append(error)

    def check(
        self, option: str, parse: Callable[P, T], *arguments: P.args, **more: P.kwargs
    ) -> T | Any:
        """Return what `parse` returns; None if it raises BadOption, which is collected."""
        try:
            return parse(*arguments, **more)
        except BadOption as error:
            for each in error.errors or (error,):
                each.option = ".".join(name for name in (option, each.option) if name)
                self._errors.append(each)
            return None

    def require_none(self) -> None:
        """Raise the error that was collected, or one error for all of them."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise BadOption.join(self._errors)


def locate(error: BadOption, path: str, elsewhere: Collection[str]) -> BadOption:
    """Return the error with the place of the wrong option in a TOML file.

    An error stays as it is if the file does not contain the option exactly once, or if the option
    is one of those that were set elsewhere, which replace those of the file.
    """
    lines: dict[str, list[int]] = {}
    for line, name in _list_options(path):
        if name not in elsewhere:
            lines.setdefault(name, []).append(line)

    def place(one: BadOption) -> BadOption:
        match lines.get(one.option, []):
            case [line]:
                section = one.option.partition(".")[0]
                placed = BadOption(f"{path}, line {line}, [{section}]: {one.message}", one.remedy)
                placed.option = one.option
                return placed
        return one

    return BadOption.join([place(each) for each in error.errors]) if error.errors else place(error)


def _list_options(path: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a TOML file that set an option, and its name after that of its section."""
    section = ""
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if found := _SECTION.match(line):
            section = found[1]
        elif found := _OPTION.match(line):
            name = f"{section}.{found[1]}"
            yield number, re.sub(r"[\s\"']", "", name).lower()
