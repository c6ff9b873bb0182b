"""The captured collections: the option `collections`.

The same rule is applied in two places: here, in Python, to lists of names; and on the server, to
events. If the two did not agree, a collection would be copied but its changes never read. Exact
names always agree. Regular expressions may only use the syntax that means the same to Python and to
PCRE.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

from cdc.errors import BadOption

# The syntax with the same meaning in `re` (with re.ASCII) and PCRE. Refused: inline flags,
# look-behind, named groups, back references, POSIX classes, \Q…\E, Unicode classes.
_SHARED_SYNTAX = re.compile(
    r"""(?: [^\\\[\](){}?*+|^$\x00-\x1f]            # a literal
          | \\[dwsDWS] | \\[^\w\s]                  # \d \w \s and escaped punctuation
          | \[\^?\]?(?:\\[dwsDWS]|\\[^\w\s]|[^\[\]\\\x00-\x1f])*\]   # a character class
          | \(\?:|\(\?=|\(\?!|\((?!\?) | \) | \|
          | [*+?]\?? | \{\d+(?:,\d*)?\}\?? )+""",
    re.VERBOSE,
)
_META = re.compile(r"[\\\[\](){}?*+|^$]")
# An odd number of backslashes before the last character.
_ESCAPED_END = re.compile(r"(?<!\\)(?:\\\\)*\\.\Z", re.DOTALL)
# The literals at the beginning of a regular expression, up to a dot that is one.
_DATABASE = re.compile(r"((?:[^\\\[\](){}?*+|^$.]|\\[^\w\s.])+)\\\.(?![?*+{])")
# Characters that a database name cannot contain.
_NO_DATABASE = re.compile(r'[/\\. "$]')
# A zero byte, and what a command line has in place of bytes that are not UTF-8.
_NO_NAME = re.compile("[\0\ud800-\udfff]")
# An escaped character, a character class, or one other character. In the first two, a comma or a
# bracket has no meaning for the list.
_ITEM_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


# The databases of the server itself. A change stream of a deployment omits them, but its oplog has
# their changes.
INTERNAL_DATABASES = frozenset({"admin", "config", "local"})
# Collections that a regular expression never matches: the server's own, and the temporary ones of
# $out, convertToCapped and a rename across databases, which are renamed at the end.
_INTERNAL_COLLECTION = r"(?:system\.|tmp\.agg_out\.|tmp[A-Za-z0-9]{5}\.(?:convertToC|renameC))"
_INTERNAL = rf"(?:{'|'.join(sorted(INTERNAL_DATABASES))})\.|[^.]+\.{_INTERNAL_COLLECTION}"


class Namespace(NamedTuple):
    """The full name of a collection: `db.coll`.

    A database name contains no dot; a collection name may.
    """

    db: str
    coll: str

    def __str__(self) -> str:
        return f"{self.db}.{self.coll}"

    @classmethod
    def parse(cls, name: str) -> Namespace:
        """Parse `db.coll`. Raises BadOption."""
        db, dot, coll = name.partition(".")
        if not (dot and db and coll):
            raise BadOption(f"'{name}' is not a collection's full name.", "Write it as db.coll.")
        return cls(db, coll)


@dataclass(frozen=True, slots=True)
class Selection:
    """Exact names and regular expressions on the full name.

    A collection is selected if any of them matches. `text` is the form that `parse` reads.
    """

    text: str
    names: tuple[Namespace, ...]
    patterns: tuple[str, ...]
    _known: frozenset[Namespace] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", frozenset(self.names))

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Parse `db.a, db.b`, a JSON list, or regular expressions on the full name.

        An item with any of ``\\ [ ] ( ) { } ? * + | ^ $`` is a regular expression, which must match
        the whole name. A dot in it matches any character. In a JSON list, a pair `["db", "coll"]`
        is always a name, whatever characters it contains. A text is parsed once in a process.
        Raises BadOption.
        """
        return _parse(text)

    def require_possible(self) -> None:
        """Raise BadOption for a name that no collection can have.

        `parse` accepts such a name, because it also reads what checkpoints contain.
        """
        if any(map(_NO_NAME.search, [*map(str, self.names), *self.patterns])):
            raise BadOption(
                "Option 'collections' contains a zero byte or what is not UTF-8, but no name of a"
                " collection does.",
                "Correct the names.",
            )
        for name in self.names:
            if name.db in INTERNAL_DATABASES:
                raise BadOption(
                    f"Option 'collections' contains '{name}', but '{name.db}' is a database of the"
                    " server itself, and has no change stream.",
                    "Leave it out.",
                )
            if _NO_DATABASE.search(name.db):
                raise BadOption(
                    f"Option 'collections' contains '{name.db}', but no database can have that"
                    " name.",
                    'Write "db.coll", or ["db", "coll"]: everything after the first dot is the'
                    " collection's name.",
                )

    def matches(self, namespace: Namespace) -> bool:
        return namespace in self._known or any(
            re.fullmatch(_whole(pattern), str(namespace), re.ASCII) for pattern in self.patterns
        )

    def find_unmatched(
        self, there: Iterable[Namespace], known: Selection | None = None
    ) -> Selection:
        """Return the names and expressions that match none of the existing collections.

        Args:
            there: the existing collections.
            known: a selection whose names and expressions are left out: names that it matches, and
                expressions that it contains.
        """
        existing = set(there)
        names = (name for name in self.names if name not in existing)
        patterns = (
            pattern
            for pattern in self.patterns
            if not any(map(Selection("", (), (pattern,)).matches, existing))
        )
        if known is not None:
            names = (name for name in names if not known.matches(name))
            patterns = (pattern for pattern in patterns if pattern not in known.patterns)
        return self._make(tuple(names), tuple(patterns))

    @classmethod
    def of(cls, names: Iterable[Namespace]) -> Selection:
        """Return the selection of exactly these names."""
        return cls._make(tuple(names), ())

    def union(self, other: Selection) -> Selection:
        """Return the selection of all collections that either selection matches."""
        return self._make(self.names + other.names, self.patterns + other.patterns)

    @classmethod
    def _make(cls, names: tuple[Namespace, ...], patterns: tuple[str, ...]) -> Selection:
        items = [*map(_item, names), *(f"^{pattern}$" for pattern in patterns)]
        return cls(_text(items), names, patterns)

    @property
    def databases(self) -> frozenset[str] | None:
        """The databases of all selected collections; None if any database may have one.

        A regular expression is of one database if it begins with its name and an escaped dot.
        """
        found = {name.db for name in self.names}
        for pattern in self.patterns:
            database = _database_of(pattern)
            if database is None:
                return None
            found.add(database)
        return frozenset(found)

    @property
    def database(self) -> str | None:
        """The database of all selected collections; None if there may be several."""
        match sorted(self.databases or ()):
            case [database]:
                return database
        return None

    def condition(self, field: str) -> dict[str, Any]:
        """Return a match expression: the event's namespace in `field` (`ns` or `to`) is selected.

        Exact names use equality, because the server can apply that to the oplog before it builds
        events. Regular expressions use `$expr`.
        """
        by_database: dict[str, list[str]] = {}
        for name in self.names:
            by_database.setdefault(name.db, []).append(name.coll)
        choices: list[dict[str, Any]] = [
            {f"{field}.db": db, f"{field}.coll": {"$in": colls}}
            for db, colls in sorted(by_database.items())
        ]
        whole_name = full_name(field)
        choices += [
            {"$expr": {"$regexMatch": {"input": whole_name, "regex": rf"^{_whole(pattern)}\z"}}}
            for pattern in self.patterns
        ]
        return choices[0] if len(choices) == 1 else {"$or": choices}

    def full_condition(self, field: str) -> dict[str, Any]:
        """Return a match expression: the full name in `field` is selected.

        Entries of the oplog have such a field.
        """
        expressions = [rf"^{_whole(pattern)}\z" for pattern in self.patterns]
        choices: list[dict[str, Any]] = [{field: {"$regex": each}} for each in expressions]
        if self.names:
            choices.append({field: {"$in": [str(name) for name in self.names]}})
        return choices[0] if len(choices) == 1 else {"$or": choices}

    def database_condition(self) -> dict[str, Any]:
        """Return a match expression for `dropDatabase` of a database that may contain a selection.

        It is empty, and so matches any database, if any database may contain one.
        """
        databases = self.databases
        return {} if databases is None else {"ns.db": {"$in": sorted(databases)}}


def _database_of(pattern: str) -> str | None:
    """Return the database of all names that the expression matches; None if there may be several.

    An alternative outside of groups may be of another database.
    """
    found = _DATABASE.match(pattern)
    depth = 0
    for token in _ITEM_TOKEN.findall(pattern):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            return None
    return re.sub(r"\\(.)", r"\1", found[1]) if found else None


def _whole(pattern: str) -> str:
    return f"(?!{_INTERNAL})(?:{pattern})"


def full_name(field: str) -> dict[str, Any]:
    """Return an aggregation expression for the full name in `ns` or `to`; null without a name."""
    return {"$concat": [f"${field}.db", ".", f"${field}.coll"]}


def _item(name: Namespace) -> str | Namespace:
    """Return an item that `parse` reads as exactly this name."""
    text = str(name)
    return name if _META.search(text) or text != text.strip() else text


def _text(items: list[str | Namespace]) -> str:
    """Return a text that `parse` reads as these items."""
    match items:
        case [str(item)] if "," not in item:
            return item
    return json.dumps(items)


@lru_cache(maxsize=64)
def _parse(text: str) -> Selection:
    names, patterns = [], []
    for item in _items(text):
        if isinstance(item, Namespace):
            names.append(item)
        elif _META.search(item):
            patterns.append(_check_pattern(item))
        else:
            names.append(Namespace.parse(item))
    if not names and not patterns:
        raise BadOption("Option 'collections' names no collection.", "Set it to db.coll.")
    return Selection(text.strip(), tuple(names), tuple(patterns))


def _items(text: str) -> list[str | Namespace]:
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except json.JSONDecodeError:
            pass  # a regular expression may begin with a character class
        else:
            items = [Namespace(*item) if _is_pair(item) else item for item in listed]
            if not all(isinstance(item, str | Namespace) for item in items):
                raise BadOption(
                    "A JSON list in 'collections' may only contain strings and pairs of strings.",
                    'Write "db.coll", or ["db", "coll"] for a name that looks like an expression.',
                )
            return list(filter(None, map(_strip, items)))
    return list(filter(None, map(_strip, _split_outside_brackets(text))))


def _is_pair(item: object) -> TypeGuard[list[str]]:
    return (
        isinstance(item, list)
        and len(item) == 2
        and all(isinstance(part, str) and part for part in item)
    )


def _strip(item: str | Namespace) -> str | Namespace:
    return item if isinstance(item, Namespace) else item.strip()


def _split_outside_brackets(text: str) -> list[str]:
    items, depth, begin = [], 0, 0
    for token in _ITEM_TOKEN.finditer(text):
        if token[0] in ("(", "{"):
            depth += 1
        elif token[0] in (")", "}"):
            depth -= 1
        elif token[0] == "," and depth <= 0:
            items.append(text[begin : token.start()])
            begin = token.end()
    return [*items, text[begin:]]


def _check_pattern(pattern: str) -> str:
    """Return the expression without anchors. Raises BadOption if it cannot be used."""
    bare = pattern.removeprefix("^")
    if not _ESCAPED_END.search(bare):
        bare = bare.removesuffix("$")
    try:
        re.compile(f"(?:{bare})", re.ASCII)
    except re.error as error:
        raise BadOption(
            f"'{pattern}' is not a regular expression: {error.msg}.",
            r"Write .* for any characters, as in shop\..* for all of shop.",
        ) from error
    if not _SHARED_SYNTAX.fullmatch(bare):
        raise BadOption(
            f"The regular expression '{pattern}' uses syntax that may have another meaning on the"
            " server.",
            "Use literals, '.', [classes], groups, '|', quantifiers, \\d \\w \\s; or list names.",
        )
    return bare
