"""The documents as tests read them: README.md, CONTRIBUTING.md and the pages below `docs`.

A section is found by its title, which only one of them has. Tests run its code as it stands there.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
# For what has to be in one of them, whichever it is.
DOCUMENTS = "\n".join(PAGES.values())
FENCED = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.M | re.S)


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


@cache
def titles() -> dict[str, list[str]]:
    """Each title, and the pages that have it."""
    found: dict[str, list[str]] = {}
    for name, text in PAGES.items():
        for title in re.findall(r"^#+ (.*)$", prose(text), re.M):
            found.setdefault(title, []).append(name)
    return found


def section(title: str) -> str:
    """The section of this title, of whichever page.

    Raises KeyError for a section that is not there, and ValueError if there are two.
    """
    [page] = titles()[title]
    return sections(PAGES[page])[title]


def code(title: str, language: str) -> list[str]:
    """The fenced blocks of a section, in order, without their margin.

    Raises KeyError for a section that is not there.
    """
    found = FENCED.findall(section(title))
    return [textwrap.dedent(block) for kind, block in found if kind == language]
