"""What is as large, deep or odd as the server takes it, through the whole job in each format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import bson
import pytest
from bson import json_util
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import InsertOne, UpdateOne
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantVal

from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet
from cdc.model import Namespace, key_of, merge_key
from cdc.pipeline import Config, Replication, verify
from tests.slow import slow_but

Orders = Collection[dict[str, Any]]
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
_RECORDING = {"changeStreamPreAndPostImages": {"enabled": True}}
_LARGEST = 16 * 2**20
_UNREADABLE = b"\xff\xfe\xc3"
# What an update writes is as long as what was there.
_OLD, _NEW = b"old!", b"new!"


def element(kind: int, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + name + b"\0" + value


def text(value: bytes) -> bytes:
    return (len(value) + 1).to_bytes(4, "little") + value + b"\0"


def document(*elements: bytes) -> bytes:
    body = b"".join(elements) + b"\0"
    return (len(body) + 4).to_bytes(4, "little") + body


def odd(key: str, *elements: bytes) -> bytes:
    own = element(2, b"_id", text(key.encode()))
    return document(own, element(2, b"state", text(_OLD)), *elements)


def nested(levels: int) -> bytes:
    inner = document()
    for _ in range(levels):
        inner = document(element(3, b"a", inner))
    return element(3, b"deep", inner)


def numbered(count: int) -> Iterator[bytes]:
    for n in range(count):
        yield element(16, f"field {n:05d}".encode(), n.to_bytes(4, "little"))


def deepest(database: Database[dict[str, Any]]) -> int:
    """How many levels the server takes below a field."""

    def takes(levels: int) -> bool:
        try:
            database["trial"].insert_one(bson.decode(odd("x", nested(levels))))
        except PyMongoError:
            return False
        database["trial"].drop()
        return True

    return next(levels for levels in range(260, 0, -1) if takes(levels))


def oddities(database: Database[dict[str, Any]]) -> dict[str, Iterable[bytes]]:
    """By name: the elements of what every format can express."""
    names = (b"a.b", b"$dollar", b"", b"$", ".\u00e9\U0001f600".encode(), b"x" * 1000, b" ")
    return {
        "deep": [nested(deepest(database))],
        "wide": numbered(10_000),
        "names": [element(2, name, text(b"told")) for name in names],
        "names below": [element(3, b"in", document(*(element(10, name, b"") for name in names)))],
        "zero bytes": [element(2, b"text", text(b"a\0b\0")), element(5, b"n", b"\1\0\0\0\0\0")],
    }


# What has no image but in `bson`.
_UNMAPPABLE: dict[str, list[bytes]] = {
    "not UTF-8": [element(2, b"text", text(b"old" + _UNREADABLE))],
    "twice": [element(10, b"a", b""), element(8, b"a", b"\1")],
    "twice below": [element(3, b"in", document(element(10, b"a", b""), element(10, b"a", b"")))],
}


def largest(key: str) -> bytes:
    """Not a byte more would be taken."""
    pad = _LARGEST - len(odd(key, element(2, b"pad", text(b""))))
    return odd(key, element(2, b"pad", text(b"x" * pad)))


def inserted(coll: Orders, documents: Iterable[bytes]) -> None:
    raw = coll.with_options(codec_options=RAW)  # type: ignore[arg-type]
    for each in documents:
        raw.insert_one(RawBSONDocument(each))


def caught_up(spark: SparkSession, config: Config) -> list[BatchReport]:
    reports: list[BatchReport] = []
    replication = Replication(spark, config, available_now=True, on_batch=reports.append)
    assert replication.query.awaitTermination(280)
    replication.stop()
    return reports


@pytest.mark.timeout(600)
@pytest.mark.parametrize("format", slow_but([], ["variant", "json", "bson"], soak=["json", "bson"]))
def test_what_the_server_takes_is_copied_and_followed_in_each_format(
    spark: SparkSession,
    database: Database[dict[str, Any]],
    pipeline: Callable[..., Config],
    format: str,
) -> None:
    """Each document is copied and then updated, another like it is inserted and then updated. The
    server's bytes decide; what a format cannot express is a dead letter with its bytes."""
    coll = database.create_collection("odd", **_RECORDING)
    alike = {**oddities(database), **_UNMAPPABLE}
    kinds = {name: list(elements) for name, elements in alike.items()}
    config = pipeline(
        f"{database.name}.odd", f"document.format={format}", "document.json=canonical"
    )
    inserted(coll, [odd(f"copied {name}", *elements) for name, elements in kinds.items()])
    inserted(coll, [largest("copied largest")])
    reports = caught_up(spark, config)
    inserted(coll, [odd(f"inserted {name}", *elements) for name, elements in kinds.items()])
    inserted(coll, [largest("inserted largest")])
    coll.update_many({}, {"$set": {"state": _NEW.decode()}})
    reports += caught_up(spark, config)

    orders, count = Namespace(database.name, "odd"), len(kinds) + 1
    assert _ops(reports, orders) == {"read": count, "insert": count, "update": 2 * count}
    assert verify(spark, config, orders).is_equal
    raw = coll.with_options(codec_options=RAW)  # type: ignore[arg-type]
    held = {merge_key(key_of(bytes(each.raw))): bytes(each.raw) for each in raw.find()}
    assert all(_NEW in each for each in held.values())
    assert max(map(len, held.values())) == _LARGEST
    mirror = config.table("mirror", orders)
    assert mirror is not None
    reported = {row["key"]: row["document"] for row in mirror.target.read(spark).collect()}
    assert set(reported) == set(held)
    unmappable = set()
    for key, image in reported.items():
        stands_in = _stands_in(image)
        if stands_in is not None:
            unmappable.add(key)
            assert stands_in == held[key]
        else:
            assert _is_reported(image, held[key]), key
    kept = {"copied", "inserted"}
    expected = {f"{how} {name}" for how in kept for name in _UNMAPPABLE}
    assert unmappable == (set() if format == "bson" else {_merged(key) for key in expected})


def _ops(reports: list[BatchReport], namespace: Namespace) -> dict[str, int]:
    found: dict[str, int] = {}
    for report in reports:
        for op, count in report.counts.get(namespace, {}).items():
            found[op] = found.get(op, 0) + count
    return {op: found[op] for op in ("read", "insert", "update")}


def _merged(key: str) -> str:
    return merge_key(key_of(odd(key)))


def _stands_in(image: Any) -> bytes | None:
    """The bytes that a stand-in keeps, None if it is none."""
    if isinstance(image, VariantVal):
        plain = image.toPython()
        return bytes(plain["$bson"]) if "$unmappable" in plain else None
    if isinstance(image, str):
        plain = json.loads(image)
        return bytes(json_util.object_hook(plain["$bson"])) if "$unmappable" in plain else None
    return None


def _is_reported(image: Any, data: bytes) -> bool:
    if isinstance(image, VariantVal):
        return bool(image.toPython() == bson.decode(data))
    if isinstance(image, str):
        return bool(json_util.loads(image) == bson.decode(data))
    return bytes(image) == data


# --- a large transaction -------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_transaction_of_100_000_operations_is_whole_in_one_batch(
    spark: SparkSession, pipeline: Callable[..., Config]
) -> None:
    """It takes several entries of the oplog, and more than a batch may hold otherwise."""
    orders = Namespace("shop", "orders")
    # With a smaller cache the server refuses the transaction.
    with ReplicaSet(cache_gigabytes=2.0, oplog_megabytes=2048) as server, server.client() as client:
        coll = client[orders.db].create_collection(orders.coll, **_RECORDING)
        coll.insert_many([{"_id": n, "n": 0, "pad": "x" * 100} for n in range(40_000)])
        config = pipeline(
            str(orders), f"uri={server.uri}", "split.size.mb=64", "max.events.per.batch=7000"
        )
        caught_up(spark, config)
        coll.update_many({"_id": {"$lt": 10_000}}, {"$inc": {"n": 1}})
        _transaction(coll)
        coll.update_many({"_id": {"$lt": 10_000}}, {"$inc": {"n": 1}})
        entries = client["local"]["oplog.rs"].find({"ns": "admin.$cmd"}, {"o.applyOps.op": 1})
        operations = [len(entry.get("o", {}).get("applyOps", ())) for entry in entries]
        assert sum(operations) == 100_000
        assert sum(map(bool, operations)) > 1

        found = [report.counts.get(orders, {}) for report in caught_up(spark, config)]
        whole = {"insert": 60_000, "update": 30_000, "delete": 10_000}
        assert [counts for counts in found if "insert" in counts or "delete" in counts] == [whole]
        rest = [counts["update"] for counts in found if counts and counts != whole]
        assert sum(rest) == 20_000
        # The batch that reaches the live edge may have a tenth more changes than the limit.
        assert all(count <= 7700 for count in rest)
        table = config.table("changelog", orders)
        assert table is not None
        rows = table.target.read(spark).where("txn IS NOT NULL")
        assert rows.count() == rows.select("position").distinct().count() == 100_000
        assert rows.select("cluster_time", "cluster_inc", "txn").distinct().count() == 1
        assert verify(spark, config, orders).is_equal


def _transaction(coll: Orders) -> None:
    fresh = [InsertOne({"_id": n, "pad": "y" * 300}) for n in range(10**6, 10**6 + 60_000)]
    known = [UpdateOne({"_id": n}, {"$inc": {"n": 1}}) for n in range(30_000)]
    with coll.database.client.start_session() as session, session.start_transaction():
        coll.bulk_write(fresh, session=session)
        coll.bulk_write(known, session=session)
        coll.delete_many({"_id": {"$gte": 30_000, "$lt": 40_000}}, session=session)
