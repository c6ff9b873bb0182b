"""Names and expressions in `collections` that match no collection, and their errors.

A run checks each of them once: a new run checks all, and a run after a change of `collections`
checks those that were added. Later a collection may be dropped or created: the change stream
reports it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

import pymongo.errors

from cdc.errors import UnsuitableSource
from cdc.model import INTERNAL_DATABASES, Namespace, Selection
from cdc.mongo.collections import Listing
from cdc.mongo.connection import LONGEST_MS, Client
from cdc.mongo.topology import Source

# In a message: missing items, nearest names of an item, and databases in which these are searched.
_MOST_ITEMS, _MOST_NEAR, _MOST_DATABASES = 4, 3, 2
# The literal characters at the beginning of an expression.
_LITERAL = re.compile(r"(?:[^\\\[\](){}?*+|^$.]|\\\W|\.(?![*+?{]))*")


def missing_items(selection: Selection, found: Listing) -> list[str]:
    """Return the names and expressions that match no listed collection, for a message."""
    unmatched = _unmatched(selection, found, None)
    return [*map(str, unmatched.names), *(f"'{pattern}'" for pattern in unmatched.patterns)]


def missing_errors(
    source: Source, selection: Selection, found: Listing, known: Selection | None = None
) -> Iterator[UnsuitableSource]:
    """Yield at most one error for the missing names, and one for the missing expressions.

    Each error names the nearest of the collections that the user may see.
    """
    unmatched = _unmatched(selection, found, known)
    kinds = (
        ("There is no collection", [(str(name), name) for name in unmatched.names]),
        ("No collection matches", [(f"'{each}'", _literal(each)) for each in unmatched.patterns]),
    )
    for what, items in kinds:
        if items:
            texts = [f"{text}{_nearest(source, name)}" for text, name in items[:_MOST_ITEMS]]
            more = f" and {len(items) - _MOST_ITEMS} more" if items[_MOST_ITEMS:] else ""
            yield UnsuitableSource(
                f"{what} {', '.join(texts)}{more}.",
                "Check 'collections': it needs full names db.coll, or expressions that match these;"
                " or set missing.collections = wait to capture a collection once it is created.",
            )


def _unmatched(selection: Selection, found: Listing, known: Selection | None) -> Selection:
    return selection.find_unmatched([each.namespace for each in found.collections], known)


def _literal(pattern: str) -> Namespace:
    """Return the part of an expression before its first non-literal character; it may be empty."""
    begin = _LITERAL.match(pattern)
    db, _, coll = re.sub(r"\\(\W)", r"\1", begin[0] if begin else "").partition(".")
    return Namespace(db, coll)


def _nearest(source: Source, name: Namespace) -> str:
    near: dict[str, None] = {}
    try:
        for shard in source.shards:
            near |= dict.fromkeys(_near(source.clients[shard], name))
    except pymongo.errors.PyMongoError:
        return ""  # The error about the missing collection is more important.
    names = list(near)[:_MOST_NEAR]
    return f" (nearest: {', '.join(names)})" if names else ""


def _near(client: Client, name: Namespace) -> Iterator[str]:
    """Yield similar full names, those in the most similar database first."""
    reply = client.admin.command("listDatabases", nameOnly=True, authorizedDatabases=True)
    databases = {entry["name"] for entry in reply["databases"]} - INTERNAL_DATABASES
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
    """Return the most similar names, the nearest first; upper and lower case are the same."""
    by_letters = {each.casefold(): each for each in sorted(names)}
    matches = difflib.get_close_matches(name.casefold(), by_letters, most)
    return [by_letters[each] for each in matches]
