"""Names and expressions in `collections` that match no collection, and the errors for them.

A run decides about each when it takes it up: a new run about all, a run whose `collections` were
changed about those that were added. From then on the collection may be dropped, or be created: its
events tell.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

import pymongo.errors

from cdc.errors import UnsuitableSource
from cdc.model.selection import Namespace, Selection
from cdc.mongo.client import LONGEST_MS, Client
from cdc.mongo.cluster import Source
from cdc.mongo.enumerator import INTERNAL, Listing

# Of what is missing, and of what is near one of these.
_MOST_NAMED, _MOST_NEAR, _MOST_DATABASES = 4, 3, 2
# What an expression begins with as a name could.
_LITERAL = re.compile(r"(?:[^\\\[\](){}?*+|^$.]|\\\W|\.(?![*+?{]))*")


def missing(selection: Selection, found: Listing, known: Selection | None = None) -> list[str]:
    """The names and expressions that match none of the listed collections, as messages name them;
    without those that were `known` before."""
    left = _unmatched(selection, found, known)
    return [*map(str, left.names), *(f"'{pattern}'" for pattern in left.patterns)]


def problems(
    source: Source, selection: Selection, found: Listing, known: Selection | None = None
) -> Iterator[UnsuitableSource]:
    """At most one for the names that are `missing`, and one for the expressions. Each names the
    nearest collections of those that the user may see."""
    left = _unmatched(selection, found, known)
    said = (
        ("There is no collection", [(str(name), name) for name in left.names]),
        ("No collection matches", [(f"'{each}'", _literal(each)) for each in left.patterns]),
    )
    for what, items in said:
        if items:
            named = [f"{text}{_nearest(source, name)}" for text, name in items[:_MOST_NAMED]]
            more = f" and {len(items) - _MOST_NAMED} more" if items[_MOST_NAMED:] else ""
            yield UnsuitableSource(
                f"{what} {', '.join(named)}{more}.",
                "Check 'collections': full names db.coll, or expressions that match these; or set"
                " missing.collections = wait to capture what comes later from birth.",
            )


def _unmatched(selection: Selection, found: Listing, known: Selection | None) -> Selection:
    return selection.unmatched([each.namespace for each in found.collections], known)


def _literal(pattern: str) -> Namespace:
    """The part of an expression before the first character that is no literal; it may be empty."""
    begin = _LITERAL.match(pattern)
    db, _, coll = re.sub(r"\\(\W)", r"\1", begin[0] if begin else "").partition(".")
    return Namespace(db, coll)


def _nearest(source: Source, name: Namespace) -> str:
    near: dict[str, None] = {}
    try:
        for shard in source.shards:
            near |= dict.fromkeys(_near(source.clients[shard], name))
    except pymongo.errors.PyMongoError:
        return ""  # what is missing is known, and the more important news
    found = list(near)[:_MOST_NEAR]
    return f" (nearest: {', '.join(found)})" if found else ""


def _near(client: Client, name: Namespace) -> Iterator[str]:
    """Those of its own database first."""
    reply = client.admin.command("listDatabases", nameOnly=True, authorizedDatabases=True)
    databases = {entry["name"] for entry in reply["databases"]} - INTERNAL
    for db in _close(name.db, databases, _MOST_DATABASES):
        listed = client.get_database(db).command(
            "listCollections",
            filter={"type": "collection"},
            nameOnly=True,
            authorizedCollections=True,
            maxTimeMS=LONGEST_MS,
        )
        names = [entry["name"] for entry in listed["cursor"]["firstBatch"]]
        names = [each for each in names if not each.startswith("system.")]
        close = _close(name.coll, names, _MOST_NEAR) if name.coll else sorted(names)
        yield from (f"{db}.{each}" for each in close)


def _close(name: str, names: Iterable[str], most: int) -> list[str]:
    """The nearest first, whatever their case."""
    by_letters = {each.casefold(): each for each in sorted(names)}
    found = difflib.get_close_matches(name.casefold(), by_letters, most)
    return [by_letters[each] for each in found]
