"""A changelog against the oplog, row by row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import bson
from bson import Timestamp, json_util

from cdc.model import Namespace
from tests.end_to_end.oracle.checkpoint import Frontier
from tests.end_to_end.oracle.oplog import Write, description_of, document_after

Row = Mapping[str, Any]
COLUMNS = (
    *("position", "key", "op", "before", "after", "exact", "txn", "document_key"),
    *("update_description", "unix_seconds(cluster_time) AS cluster_second", "cluster_inc"),
    *("unix_millis(wall_time) AS wall", "_batch", "coll"),
)
# From a key's state (present or not) to the state after each op; what is missing is forbidden.
TRANSITIONS = {
    (False, "read"): True,
    (False, "insert"): True,
    (True, "update"): True,
    (True, "replace"): True,
    (True, "delete"): False,
}


def changelog_violations(
    rows: Sequence[Row],
    reported: Sequence[Write],
    namespace: Namespace,
    frontier: Sequence[Frontier],
) -> Iterator[str]:
    """All that is wrong with the rows, which are those of the batches that `frontier` lists."""
    yield from _doubled(rows)
    of_documents = [row for row in rows if row["key"] is not None]
    yield from _broken_paths(of_documents)
    yield from _other_than_reported(of_documents, reported, namespace, frontier)


def _doubled(rows: Sequence[Row]) -> Iterator[str]:
    counts = Counter((row["position"], row["key"]) for row in rows)
    for (_, key), count in counts.items():
        if count > 1:
            yield f"{key} stands {count} times at one position"


def _broken_paths(rows: Sequence[Row]) -> Iterator[str]:
    """Each key's rows form a path of the table, and each before-image is the after before it."""
    documents: dict[str, bytes | None] = {}
    for row in in_order(rows):
        key, op = row["key"], row["op"]
        present = documents.get(key) is not None
        if (present, op) not in TRANSITIONS:
            yield f"{key}: {op} of a key that is {'there' if present else 'absent'}"
        elif op not in ("read", "insert") and row["before"] != documents[key]:
            yield f"{key}: before-image of {op} is not the document before it"
        documents[key] = row["after"]
        if op != "delete" and row["after"] is None:
            yield f"{key}: {op} without a document"
        if not row["exact"]:
            yield f"{key}: {op} is not exact"


def in_order(rows: Sequence[Row]) -> list[Row]:
    """By position. But a document that a transaction moves to another shard is deleted on the one
    before it is inserted on the other, whichever reports it first."""
    arrivals = {_in_transaction(row): row for row in rows if row["op"] == "insert" and row["txn"]}

    def place(row: Row) -> tuple[str, bool]:
        arrival = arrivals.get(_in_transaction(row)) if row["op"] == "delete" else None
        if arrival is None or arrival["txn"]["shard"] == row["txn"]["shard"]:
            return row["position"], True
        return min((row["position"], True), (arrival["position"], False))

    return sorted(rows, key=place)


def _in_transaction(row: Row) -> Any:
    return row["key"], *((row["txn"]["lsid"], row["txn"]["number"]) if row["txn"] else ())


def _other_than_reported(
    rows: Sequence[Row],
    reported: Sequence[Write],
    namespace: Namespace,
    frontier: Sequence[Frontier],
) -> Iterator[str]:
    """The changelog's events are the oplogs' after the time at which each key was copied."""
    expected, given = defaultdict[Any, list[Write]](list), defaultdict[Any, list[Row]](list)
    for write in reported:
        if _copied_at(write.key, namespace, frontier) < write.seen <= frontier[-1].time:
            expected[write.time, write.op, str(write.key)].append(write)
    for row in sorted(rows, key=lambda row: row["position"]):
        if row["op"] != "read":
            given[_time(row), row["op"], id_of(row["key"])].append(row)
    for (time, op, key), writes in expected.items():
        found = given.get((time, op, key), [])
        for _ in writes[len(found) :]:
            yield f"{op} of {key} at {time} is missing"
        for write, row in zip(writes, found, strict=False):
            for what in _differences(write, row):
                yield f"{op} of {key} at {time}: {what}"
    for (time, op, key), found in given.items():
        for _ in found[len(expected.get((time, op, key), [])) :]:
            yield f"{op} of {key} at {time} never happened"


def id_of(key: str) -> str:
    """The key of the `_id`; a whole document key has a tab and the shard key after it."""
    return key.partition("\t")[0]


def _time(row: Row) -> Timestamp:
    return Timestamp(row["cluster_second"], row["cluster_inc"])


def _copied_at(key: int, namespace: Namespace, frontier: Sequence[Frontier]) -> Timestamp:
    for offset in frontier:
        below = offset.below(namespace)
        if below is None or key < below:
            return offset.time
    return Timestamp(2**32 - 1, 0)


def _differences(write: Write, row: Row) -> Iterator[str]:
    """What a row says of a write other than its entry does."""
    txn = (row["txn"]["lsid"], row["txn"]["number"]) if row["txn"] else None
    if txn != write.txn:
        yield "'txn' is that of another transaction"
    if row["wall"] != write.wall:
        yield "'wall_time' is another one"
    if row["position"][2:18] != f"{write.time.time:08X}{write.time.inc:08X}":
        yield "'position' is at another time"
    named = json_util.loads(row["document_key"])
    if named != ({"_id": write.key} if write.identity is None else bson.decode(write.identity)):
        yield "'document_key' is another one"
    if (write.op in ("read", "insert")) != (row["before"] is None):
        yield "'before' should be null" if row["before"] else "'before' is null"
    elif row["after"] != document_after(write, row["before"]):
        yield "'after' is not what the entry makes of 'before'"
    if (write.op == "update") != (row["update_description"] is not None):
        yield "'update_description' stands in a wrong row"
    elif write.op == "update":
        given = json_util.loads(row["update_description"])
        removed = sorted(given.get("removedFields", []))
        found = given["updatedFields"], removed, len(given.get("truncatedArrays", []))
        if found != description_of(write):
            yield "'update_description' is not the entry's diff"
