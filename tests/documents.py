"""The README as tests read it: its sections, and the code in them, which tests run as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)


def prose(text: str) -> str:
    """Without what stands between fences, where a `#` is a comment."""
    return FENCED.sub("", text)


def sections(text: str) -> dict[str, str]:
    """By heading: what stands below it, up to the next one of any level."""
    # What is fenced keeps its length, and has no headings.
    hidden = FENCED.sub(lambda block: "`" * len(block[0]), text)
    headings = list(re.finditer(r"^#+ (.*)$", hidden, re.M))
    ends = [each.start() for each in headings[1:]] + [len(text)]
    return {
        each[1]: text[each.end() : end].lstrip("\n")
        for each, end in zip(headings, ends, strict=True)
    }


def code(title: str, language: str) -> list[str]:
    """The fenced blocks of a section of the README, in order, without their margin.

    Raises KeyError for a section that is not there.
    """
    found = FENCED.findall(sections(README)[title])
    return [textwrap.dedent(block) for kind, block in found if kind == language]
