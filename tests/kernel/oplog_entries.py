"""Entries of the oplog, and pre-images, made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import bson

IMAGE = {
    "_id": 7,
    "a": 1,
    "b": {"c": [1, "two", {"d": 5}, [6]], "e": None},
    "x": bson.Regex("x"),
    "f": bson.Code("c"),
    "g": bson.MaxKey(),
    "h": bson.DBRef("a", 1),
    "z": "x" * 60,
}
DIFFS: tuple[dict[str, Any], ...] = (
    {"u": {"a": 2}},
    {"d": {"a": False, "b": False}, "u": {"z": bson.Regex("y")}, "i": {"n": 1, "m": "x" * 40}},
    {"sb": {"u": {"e": 2}, "sc": {"a": True, "l": 9, "u1": 5, "s2": {"i": {"n": 1}}, "u7": "x"}}},
    {"sb": {"i": {"n": bson.Code("x")}, "sc": {"a": True, "s3": {"a": True, "l": 0}}}},
    {"d": {"x": False}, "sb": {"sc": {"a": True, "l": 2}}},
)


def entry(**fields: Any) -> dict[str, Any]:
    """An entry of the oplog."""
    return {
        "op": "u",
        "ns": "db.c",
        "ui": bson.Binary(bytes(16), 4),
        "o2": {"_id": 7},
        "ts": bson.Timestamp(1_700_000_000, 2),
        "t": bson.Int64(1),
        "v": bson.Int64(2),
        "wall": bson.datetime_ms.DatetimeMS(1),
        "o": {"$v": 2, "diff": DIFFS[0]},
        "prevOpTime": {"ts": bson.Timestamp(0, 0), "t": bson.Int64(-1)},
        **fields,
    }


def entries() -> Iterator[bytes]:
    """Entries of all kinds that the compiled functions read."""
    session = {"lsid": {"id": bson.Binary(bytes(16), 4), "uid": b"u"}, "txnNumber": bson.Int64(7)}
    keys = (7, "key", bson.Int64(2**40), bson.ObjectId(b"1" * 12), bson.Binary(b"x" * 20), None)
    operations = [entry(o={"$v": 2, "diff": diff}) for diff in DIFFS]
    operations += [entry(op="i", o=IMAGE, o2={"_id": key}) for key in keys]
    operations += [entry(op="d", o={"_id": key}, **session) for key in keys]
    operations += [entry(o={"_id": 7, "z": 1})]
    inner = [{n: each[n] for n in ("op", "ns", "ui", "o", "o2")} for each in operations[:3]]
    command = {"op": "c", "ns": "admin.$cmd", "o": {"applyOps": inner}, **session}
    yield from map(bson.encode, [*operations, entry(**command)])


def recorded(number: int) -> bytes:
    """A pre-image."""
    key = {"nsUUID": bson.Binary(bytes(16), 4), "ts": bson.Timestamp(1_700_000_000, 2)}
    own = {**key, "applyOpsIndex": bson.Int64(number)}
    return bson.encode(
        {"_id": own, "operationTime": bson.datetime_ms.DatetimeMS(1), "preImage": IMAGE}
    )
