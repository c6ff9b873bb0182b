"""KeyStrings are the bytes that real servers write, and sort as these servers do."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import bson
from bson import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from cdc.model import Token, resume_token
from cdc.model.keystring import keystring
from tests.model import mixed
from tests.model.test_keystring import SAMPLES
from tests.model.test_merge_key import array, document, double, of, raw, tricky_values

RAW = CodecOptions(document_class=RawBSONDocument)
# So many type bits that their length takes four bytes.
LONG = [array(*map(double, range(600))), array(*map(double, range(500)))]


def test_tokens_of_every_type_of_key_are_written_and_read_as_the_server_does(
    mongo: MongoClient[Any], database: Database[Any]
) -> None:
    items = [item for item, _, _ in SAMPLES] + tricky_values() + LONG
    items += mixed.edges() + mixed.values(seed=1, count=3000)
    collection = database.create_collection("keys").with_options(RAW)
    begin = mongo.admin.command("ping")["operationTime"]
    # Below `_id`, whose own type may not be any; the value comes first, so that it decides.
    ids = [document((b"v", item), (b"n", of(number))) for number, item in enumerate(items)]
    collection.insert_many(
        [RawBSONDocument(raw((b"_id", item), (b"n", of(n)))) for n, item in enumerate(ids)]
    )
    keys = []
    with collection.watch(start_at_operation_time=begin, batch_size=1000) as stream:
        for event in _some(stream, len(ids)):
            document_key = bytes(event["documentKey"].raw)
            keys.append(keystring.encode(document_key)[0])
            reported = _reported(event["_id"])
            assert reported == _expected(reported, event)
            assert _written(reported, document_key) == dict(event["_id"])
            assert reported.document_key == mixed.as_kept((0x03, document_key))[1]
    assert sorted(range(len(keys)), key=lambda n: keys[n]) == _in_order_of_id(collection)


def _reported(given: Any) -> Token:
    return resume_token.decode(given["_data"], bytes(given.get("_typeBits") or b""))


def _some(stream: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        yield next(stream)


def _expected(reported: Token, event: Any) -> Token:
    """What the event says beside its token; keys are compared by the caller."""
    return Token(
        1, "event", event["clusterTime"], uuid=reported.uuid, document_key=reported.document_key
    )


def _written(reported: Token, document_key: bytes) -> dict[str, Any]:
    """The whole token, as it would be written by us."""
    assert reported.uuid is not None
    time = struct.pack("<II", reported.cluster_time.inc, reported.cluster_time.time)
    collection = struct.pack("<iB", 16, 4) + reported.uuid.bytes
    values = [(0x11, time), of(1), of(128), of(0), of(False), (0x05, collection)]
    key, type_bits = keystring.encode(
        raw(*[(b"", value) for value in [*values, (0x03, document_key)]])
    )
    return {"_data": key.hex().upper(), **({"_typeBits": type_bits} if type_bits else {})}


def _in_order_of_id(collection: Collection[Any]) -> list[int]:
    """By an index, whose keys are KeyStrings."""
    return [found["n"] for found in collection.find({}, {"_id": 0, "n": 1}).sort("_id", 1)]


def test_ten_thousand_mixed_values_sort_as_the_server_sorts_them(database: Database[Any]) -> None:
    """Ties too: equal values have equal bytes, and no others have."""
    # DBPointers, which no driver has written for ten years, sort in another way than in an index.
    items = mixed.edges() + mixed.values(seed=2, count=12_000, pointers=False)
    # A document, because of an array `$sort` would take the least element.
    wrapped = [document((b"v", item)) for item in items]
    database["mixed"].insert_many(
        [RawBSONDocument(raw((b"_id", of(n)), (b"v", item))) for n, item in enumerate(wrapped)]
    )
    keys = [keystring.encode(raw((b"", item)))[0] for item in wrapped]
    stages: list[dict[str, Any]] = [{"$sort": {"v": 1, "_id": 1}}, {"$project": {"_id": 1}}]
    order = [found["_id"] for found in database["mixed"].aggregate(stages, allowDiskUse=True)]
    assert order == sorted(range(len(items)), key=lambda n: (keys[n], n))
    assert 5000 < len(set(keys)) < len(keys)


def test_tokens_of_transactions_and_ddl_report_their_place(
    mongo: MongoClient[Any], database: Database[Any]
) -> None:
    collection = database.create_collection("a")
    begin = mongo.admin.command("ping")["operationTime"]
    with mongo.start_session() as session, session.start_transaction():
        collection.insert_many([{"_id": n} for n in range(3)], session=session)
    collection.drop()
    mongo.drop_database(database.name)
    with database.watch(start_at_operation_time=begin, batch_size=0) as stream:
        # What a stream says before it has got anywhere is a high-water mark.
        opening = stream.resume_token
        events = list(_some(stream, 6))
    assert opening == {"_data": resume_token.high_water_mark(begin)}
    found = [_reported(event["_id"]) for event in events]
    assert [each.txn_op_index for each in found] == [0, 1, 2, 0, 0, 0]
    assert [each.from_invalidate for each in found] == [False] * 5 + [True]
    keys = [each.document_key and bson.decode(each.document_key) for each in found]
    assert keys == [{"_id": 0}, {"_id": 1}, {"_id": 2}, None, None, None]
    assert {each.uuid for each in found[:4]} == {found[0].uuid}
    assert [each.uuid for each in found[4:]] == [None, None]
    for each, event in zip(found, events, strict=True):
        assert each.cluster_time == event["clusterTime"]
