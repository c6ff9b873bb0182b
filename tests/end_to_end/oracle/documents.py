"""Tables of documents: a mirror and a live view against the collection at a time, a history and
the positions of a mirror against the changelog."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import bson

from cdc.model import Namespace
from tests.end_to_end.oracle.changelog import Row, id_of, in_order
from tests.end_to_end.oracle.checkpoint import Frontier
from tests.end_to_end.oracle.oplog import Truth

MIRROR_COLUMNS = ("key", "document", "_position")
HISTORY_COLUMNS = (
    *("key", "document", "__START_AT.position AS start", "__END_AT.position AS end"),
)


def wrong_documents(
    rows: Sequence[Row], truth: Truth, namespace: Namespace, frontier: Frontier
) -> Iterator[str]:
    """The rows are the copied part of the collection at the offset's time, byte by byte."""
    below = frontier.below(namespace)
    documents = truth.documents(namespace, frontier.time)
    numbered = [(bson.decode(raw)["_id"], raw) for raw in documents]
    source = Counter(
        (str(number), raw) for number, raw in numbered if below is None or number < below
    )
    counts = Counter(row["key"] for row in rows)
    yield from (f"{key} is in it {count} times" for key, count in counts.items() if count > 1)
    # A row that stands twice is said above; two shards may have a document of one `_id`.
    different = {(row["key"], row["document"]) for row in rows}
    there = Counter((id_of(key), document) for key, document in different)
    lacking, others = {key for key, _ in source - there}, {key for key, _ in there - source}
    yield from (f"{key} is missing" for key in lacking - others)
    yield from (f"{key} is not in the collection" for key in others - lacking)
    yield from (f"{key} differs" for key in lacking & others)


def wrong_positions(mirror: Sequence[Row], changelog: Sequence[Row]) -> Iterator[str]:
    """A row of a mirror has the position of the last change of its key, which guards it.

    `changelog`: the rows of the batches that the mirror contains.
    """
    last = {row["key"]: row["position"] for row in in_order(_of_documents(changelog))}
    for row in mirror:
        if row["key"] in last and row["_position"] != last[row["key"]]:
            yield f"{row['key']} has the position of another change than the last"


def wrong_versions(history: Sequence[Row], changelog: Sequence[Row]) -> Iterator[str]:
    """A history has one version for each image in the changelog, from its position to the next.

    A delete by which a document only moves to another shard ends no version.
    """
    expected = Counter[Any]()
    by_key = defaultdict[str, list[Row]](list)
    for row in in_order(_without_moves(_of_documents(changelog))):
        by_key[row["key"]].append(row)
    for key, rows in by_key.items():
        ends = [*(row["position"] for row in rows[1:]), None]
        for row, end in zip(rows, ends, strict=True):
            if row["after"] is not None:
                expected[key, row["position"], end, row["after"]] += 1
    found = Counter[Any](
        (row["key"], row["start"], row["end"], row["document"])
        for row in history
        if row["key"] is not None and row["start"] != row["end"]
    )
    yield from (f"{key} lacks the version from {start} on" for key, start, *_ in expected - found)
    yield from (
        f"{key} never had the version from {start} on" for key, start, *_ in found - expected
    )


def _of_documents(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["key"] is not None]


def _without_moves(rows: Sequence[Row]) -> list[Row]:
    def place(row: Row) -> tuple[Any, ...]:
        return row["key"], row["txn"]["lsid"], row["txn"]["number"]

    arrived = {
        place(row): row["txn"]["shard"] for row in rows if row["txn"] and row["op"] == "insert"
    }
    return [
        row
        for row in rows
        if row["op"] != "delete"
        or not row["txn"]
        or arrived.get(place(row), row["txn"]["shard"]) == row["txn"]["shard"]
    ]
