"""Where the tables of a namespace live: a base path, a template, and how names become folders.

Names are not to be trusted: a collection may be called `../../etc`, `a/b`, `100%` or be 200 bytes
of Cyrillic. Each name becomes one path component by percent-encoding, so distinct namespaces never
share a folder, no name leaves the base path, and an ordinary name (letters, digits, dot, dash,
underscore) stays as it is.

Case is kept, so a file system that ignores case can let `users` and `Users` meet. The table's own
properties name its namespace, and the second of the two is refused when it is opened.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from cdc.errors import BadOption
from cdc.model.selection import Namespace

# File systems end at 255 bytes per component; the template may put a prefix and a suffix around.
_LONGEST = 200
_FIELD = re.compile(r"\{([^{}]*)\}")
_GLOB = re.compile(r"([\\*?\[\]{}])")


def quote(name: str) -> str:
    """One path component for a name: ASCII, at most 200 characters, never `.`, `..` or hidden.

    Injective; the empty name is `~`. What percent-encodes to more than 200 characters is cut and
    ends in `~` and 128 bits of its SHA-256 (`~` occurs in nothing else). Non-ASCII letters are
    encoded too: some file systems normalise Unicode, and two names would become one.
    """
    quoted = urllib.parse.quote(name, safe="").replace("~", "%7E")
    quoted = re.sub(r"^[._]|\.$", lambda found: f"%{ord(found[0]):02X}", quoted) or "~"
    if len(quoted) <= _LONGEST:
        return quoted
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{quoted[: _LONGEST - len(digest) - 1]}~{digest}"


@dataclass(frozen=True, slots=True)
class Route:
    """`base` and `template` of one kind of table, e.g. `s3a://lake/crm` and `{db}/{coll}/mirror`.

    A template holds `{db}` and `{coll}` and at most one of them per path component (with both in
    one, `a` + `b.c` and `a.b` + `c` would meet). It is relative and holds no `.` or `..` component.
    Raises BadOption.
    """

    base: str
    template: str

    def __post_init__(self) -> None:
        parts = self.template.split("/")
        fields = [_FIELD.findall(part) for part in parts]
        literals = [_FIELD.sub("", part) for part in parts]
        if (
            {name for names in fields for name in names} != {"db", "coll"}
            or any(len(names) > 1 for names in fields)
            or any(part in ("", ".", "..") for part in parts)
            or any("{" in literal or "}" in literal for literal in literals)
        ):
            raise BadOption(
                f"'{self.template}' is no template for table paths.",
                "Write it like {db}/{coll}/mirror: relative, each field in a component of its own.",
            )
        if not self.base.strip("/"):
            raise BadOption("The base path of the tables is empty.", "Name a folder of their own.")

    def path(self, namespace: Namespace) -> str:
        """The table's path. Distinct namespaces have distinct paths, all of the same depth."""
        names = {"db": quote(namespace.db), "coll": quote(namespace.coll)}
        return self._under(_FIELD.sub(lambda field: names[field[1]], self.template))

    def glob(self) -> str:
        """A Hadoop glob that matches every path of this route, and perhaps folders of others."""
        literals = _FIELD.split(self._under(self.template))[::2]
        return "*".join(_GLOB.sub(r"\\\1", literal) for literal in literals)

    def _parts(self) -> list[str]:
        return self._under(self.template).split("/")

    def _under(self, relative: str) -> str:
        return f"{self.base.rstrip('/')}/{relative}"


def require_disjoint(routes: Iterable[Route]) -> None:
    """Raises BadOption unless no table of one route can lie at, above or below one of another.

    A table inside another table's folder would lose its files to that one's VACUUM. The proof asked
    for is simple: some component is fixed text in both and differs.
    """
    for one, other in combinations(routes, 2):
        pairs = zip(one._parts(), other._parts(), strict=False)
        if not any(a != b and not _FIELD.search(a + b) for a, b in pairs):
            raise BadOption(
                f"Tables under '{one.template}' and '{other.template}' could meet in one folder.",
                "End each in a name of its own, like {db}/{coll}/changelog and {db}/{coll}/mirror.",
            )
