"""What the documentation site makes of links to files outside `docs` (a hook of MkDocs).

A page links to a test or a notebook by its relative path, which works where the repository is
browsed. The site does not contain these files: it shows their path instead. `CHANGELOG.md` and
`CONTRIBUTING.md` become pages of the site, so that they exist once.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Files of the repository that are pages of the site, by their name there.
PAGES = {"project/changelog.md": "CHANGELOG.md", "project/contributing.md": "CONTRIBUTING.md"}
_FENCED = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
_LINK = re.compile(r'(?<!!)\[([^\]]+)\]\(((?!\w+:)[^)#\s]+)(?:#[\w-]*)?(?:\s+"([^"]*)")?\)')


def on_files(files: Any, config: Any) -> Any:
    """Add the pages whose text is elsewhere in the repository."""
    from mkdocs.structure.files import File

    for page, name in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace each link that leads out of `docs` by its text and the path."""
    return relinked(markdown, page.file.src_uri)


def relinked(markdown: str, page: str) -> str:
    """Return the text of a page without links to files that the site does not contain."""
    source = PAGES.get(page, posixpath.join("docs", page))

    def replaced(link: re.Match[str]) -> str:
        text, path, title = link.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if target in PAGES.values():
            own = next(each for each, name in PAGES.items() if name == target)
            return f"[{text}]({posixpath.relpath(own, posixpath.dirname(page))})"
        if target.startswith("docs/"):
            own = posixpath.relpath(target, posixpath.dirname(posixpath.join("docs", page)))
            return link[0].replace(f"({path}", f"({own}", 1)
        shown = f"{target}: {title}" if title else target
        return f'<abbr title="{shown}">{text}</abbr>' if title else f"{text} (`{shown}`)"

    parts, end = [], 0
    for fenced in _FENCED.finditer(markdown):
        parts += [_LINK.sub(replaced, markdown[end : fenced.start()]), fenced[0]]
        end = fenced.end()
    return "".join([*parts, _LINK.sub(replaced, markdown[end:])])
