"""Where tables live: a template, and how the names of databases and collections fill it.

A template is a path under the base path, `{db}/{coll}/mirror`, or, with dots and no slash, a name
in a catalog, `main.{db}.{coll}`.

Names are not to be trusted: a collection may be called `../../etc`, `a/b`, `100%` or be 200 bytes
of Cyrillic. In a path each name becomes one component (`folder`), so distinct namespaces never
share a folder, no name leaves the base path, and an ordinary name (letters, digits, dot, dash,
underscore) stays as it is. In a catalog letters, digits and underscores stay, in lower case.

So a file system that ignores case, or a catalog, can let `users` and `Users` meet, and no other
names. The table's own properties name its namespace, and the second of the two is refused when it
is opened.

Earlier versions percent-encoded names (`former_folder`). A table that has such a folder keeps it:
its `Target` has both paths, and `Target.settled` decides.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations

from cdc.delta.log import Target
from cdc.errors import BadOption
from cdc.model import Namespace

# File systems end at 255 bytes per component; the template may put a prefix and a suffix around.
_LONGEST = 200
# Hive's metastore ends at 128 characters.
_LONGEST_WORD = 60
_FIELD = re.compile(r"\{([^{}]*)\}")
_BOTH = {"db", "coll"}
_ESCAPE = "!"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+|^[._]|\.\Z")


def folder(name: str) -> str:
    """One path component for a name: ASCII, at most 200 characters, never `.`, `..` or hidden.

    A byte that is no ASCII letter, digit, dot, dash or underscore becomes `!` and two hexadecimal
    digits; so does a dot or underscore at the beginning, and a dot at the end. Injective; the empty
    name is `!`. What is longer than 200 characters then is cut and ends in `!!` and 128 bits of its
    SHA-256 (`!!` occurs in nothing else).

    Not `%`: delta-rs decodes it in paths. Of what is left, `!` is what object stores, URLs and
    Hadoop's globs leave alone. Non-ASCII letters are encoded: some file systems normalise Unicode,
    and two names would become one.
    """
    encoded = _UNSAFE.sub(lambda found: _escaped(found[0]), name) or _ESCAPE
    if len(encoded) <= _LONGEST:
        return encoded
    return f"{encoded[: _LONGEST - 34]}{_ESCAPE * 2}{_digest(name, 32)}"


def _escaped(text: str) -> str:
    return "".join(f"{_ESCAPE}{byte:02X}" for byte in text.encode())


def former_folder(name: str) -> str:
    """The folder that earlier versions gave a name; tables that are there keep it. It is the same
    as `folder`'s or, with a `%` or `~` in it, that of no other name."""
    encoded = urllib.parse.quote(name, safe="").replace("~", "%7E")
    encoded = re.sub(r"^[._]|\.$", lambda found: f"%{ord(found[0]):02X}", encoded) or "~"
    if len(encoded) <= _LONGEST:
        return encoded
    return f"{encoded[: _LONGEST - 33]}~{_digest(name, 32)}"


def word(name: str) -> str:
    """What every catalog takes as a part of a table's name: at most 60 ASCII letters, digits and
    underscores.

    A name that is not such a word gets `_` for each other character, and ends in `_` and 32 bits of
    its SHA-256, so that `web-shop` and `web.shop` do not meet.
    """
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if found == name and 0 < len(name) <= _LONGEST_WORD:
        return name
    return f"{found[: _LONGEST_WORD - 9]}_{_digest(name, 8)}"


def _digest(name: str, digits: int) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:digits]


@dataclass(frozen=True, slots=True)
class Route:
    """`base` and `template` of one kind of table, e.g. `s3a://lake/crm` and `{db}/{coll}/mirror`.

    A template that does not hold both `{db}` and `{coll}` leads several namespaces into one table,
    unless `only` says that there is but one. A path is relative, holds no `.` or `..` component and
    at most one field per component (with both in one, `a` + `b.c` and `a.b` + `c` would meet); a
    name in a catalog has two or three parts. Raises BadOption.
    """

    base: str
    template: str
    only: Namespace | None = None

    def __post_init__(self) -> None:
        parts = self._template_parts()
        fields = [_FIELD.findall(part) for part in parts]
        literals = [_FIELD.sub("", part) for part in parts]
        if (
            not {name for names in fields for name in names} <= _BOTH
            or any(len(set(names)) < len(names) for names in fields)
            or any(part in ("", ".", "..") for part in parts)
            or any("{" in literal or "}" in literal for literal in literals)
            or not (_is_name(fields) if self.is_name else all(len(each) < 2 for each in fields))
        ):
            raise BadOption(
                f"'{self.template}' is no template for tables.",
                "Write a path like {db}/{coll}/mirror: relative, each field in a component of its"
                " own; or a name in a catalog like main.{db}.{coll}, in two or three parts.",
            )
        if not self.is_name and not self.base.strip("/"):
            raise BadOption("The base path of the tables is empty.", "Name a folder of their own.")
        if "${" in self.base:  # by Spark, in the text of any statement, within backticks too
            raise BadOption(
                f"'{self.base}' has a variable in it, which would be filled in.", "Write it out."
            )

    @property
    def is_name(self) -> bool:
        """Whether the tables are known to a catalog by name."""
        return "/" not in self.template and "." in self.template

    @property
    def is_shared(self) -> bool:
        """Whether several namespaces may lie in one table."""
        return self.only is None and set(_FIELD.findall(self.template)) != _BOTH

    def target(self, namespace: Namespace) -> Target:
        """The namespace's table. Distinct namespaces have distinct paths of the same depth, unless
        the route is shared; of names see `word`."""
        if self.is_name:
            return Target.named(self._filled(namespace, word))
        path, former = (
            self._under("/".join(self._filled(namespace, convert)))
            for convert in (folder, former_folder)
        )
        return Target(path, former=None if former == path else former)

    def _filled(self, namespace: Namespace, convert: Callable[[str], str]) -> list[str]:
        names = {"db": convert(namespace.db), "coll": convert(namespace.coll)}
        return [_FIELD.sub(lambda f: names[f[1]], part) for part in self._template_parts()]

    @property
    def fixed(self) -> Target:
        """The one table of a template without fields. Raises BadOption if it has any."""
        if _FIELD.search(self.template):
            raise BadOption(
                f"'{self.template}' leads to several tables where there is to be one.",
                "Leave out {db} and {coll}.",
            )
        return self.target(Namespace("", ""))

    def own(self, found: Target) -> Target:
        """A table that was found by this route, addressed as `target` does it once settled."""
        if self.is_name:
            return found
        depth = len(self._template_parts())
        return Target(self._under("/".join(found.address.split("/")[-depth:])))

    def literals(self) -> list[str]:
        """The text between the fields of a path of this route.

        Paths that have this text in this order may be of other routes too.
        """
        return _FIELD.split(self._under(self.template))[::2]

    def patterns(self) -> tuple[str | None, re.Pattern[str], re.Pattern[str]]:
        """Of a name, the catalog (None: the session's), and what schema and table of each table of
        this route match, and perhaps others."""
        *catalog, schema, table = self._template_parts()
        return catalog[0] if catalog else None, _pattern(schema), _pattern(table)

    def _template_parts(self) -> list[str]:
        return self.template.split("." if self.is_name else "/")

    def _parts(self) -> list[str]:
        return self._template_parts() if self.is_name else self._under(self.template).split("/")

    def _under(self, relative: str) -> str:
        return f"{self.base.rstrip('/')}/{relative}"

    def may_meet(self, other: Route, is_same_kind: bool) -> bool:
        """Whether a table of this route could lie at, above or below one of the other's.

        The proof asked for is simple: one component has a different beginning or end in the
        two routes. Tables of one kind that could lie at the same place only are distinguished when
        they are opened.
        """
        if self.is_name != other.is_name:
            return False
        mine, theirs = self._parts(), other._parts()
        if len(mine) != len(theirs) and self.is_name:
            return False
        if is_same_kind and len(mine) == len(theirs):
            return self == other and not _FIELD.search(self.template)
        return not any(
            _differ(a, b) or (not self.is_name and _is_one_hidden(a, b))
            for a, b in zip(mine, theirs, strict=False)
        )


def _differ(one: str, other: str) -> bool:
    """Whether two components of templates can never become the same."""
    if not _FIELD.search(one + other):
        return one != other
    (start, end), (other_start, other_end) = _ends(one), _ends(other)
    return not (
        (start.startswith(other_start) or other_start.startswith(start))
        and (end.endswith(other_end) or other_end.endswith(end))
    )


def _is_one_hidden(one: str, other: str) -> bool:
    """Whether one component begins with a dot or underscore and the other with a field.

    No folder of a name begins so.
    """
    return (one[:1] in "._" and other[:1] == "{") or (other[:1] in "._" and one[:1] == "{")


def _ends(component: str) -> tuple[str, str]:
    literals = _FIELD.split(component)[::2]
    return literals[0], literals[-1]


def _is_name(fields: list[list[str]]) -> bool:
    # There is no list of catalogs by which a field in the first of three parts could be looked up.
    return len(fields) == 2 or (len(fields) == 3 and not fields[0])


def _pattern(part: str) -> re.Pattern[str]:
    # Catalogs differ in whether they keep the case of a name.
    return re.compile(".*".join(map(re.escape, _FIELD.split(part)[::2])), re.IGNORECASE)


def require_disjoint(routes: Iterable[tuple[str, Route]]) -> None:
    """Routes and the kind of their tables. Raises BadOption unless no table of one route can lie
    at, above or below one of another: a table inside another table's folder would lose its files to
    that one's VACUUM."""
    for (kind, one), (other_kind, other) in combinations(routes, 2):
        if one.may_meet(other, kind == other_kind):
            raise BadOption(
                f"Tables under '{one.template}' and '{other.template}' could meet.",
                "End each in a name of its own, like {db}/{coll}/changelog and {db}/{coll}/mirror.",
            )
