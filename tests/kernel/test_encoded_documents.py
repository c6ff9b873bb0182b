"""Rows of documents that are encoded at once are the rows that they are one by one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Timestamp

from cdc.arrow import cells
from cdc.errors import UnmappableValue
from cdc.kernel import WORTH, Places, Total
from cdc.model import MAX_KEY, MIN_KEY, KeyRange, Namespace, SnapshotSplit, read_row
from cdc.model.encoding import encoder
from cdc.model.encoding.document import FORMATS
from cdc.mongo.read import Documents
from cdc.tasks import arrow_batches
from tests.kernel.arrow import options, schema
from tests.kernel.canonical import canonical_rows
from tests.model.mixed import values
from tests.model.test_variant import raw

SPLIT = SnapshotSplit(
    Namespace("db", "cöll"), bytes(16), KeyRange(MIN_KEY, MAX_KEY), Timestamp(1_700_000_000, 7)
)
IDS: list[Any] = [
    *(0, 9, 10, -1, -10, 2**31 - 1, -(2**31), Int64(2**63 - 1), Int64(-(2**63)), Int64(0)),
    *("", "a", 'q"', "back\\slash", "new\nline", "\x7f", "ü😀", "\0", "x" * 300, "\u2028"),
    *(
        ObjectId("0123456789abcdef01234567"),
        ObjectId(b"\0" * 12),
        1.5,
        Decimal128("1.0"),
        True,
        None,
        {"a": 1},
        b"x",
    ),
    *(Binary(bytes(range(16)), 4), Binary(b""), Binary(b"xy", 0x80), Binary(b"old", 2)),
    *(bson.MinKey(), bson.Regex("a")),
]


def one_by_one(
    documents: list[bytes], format: str, exact_from: Timestamp | None, fields: Sequence[str] = ()
) -> pa.Table:
    about = SPLIT.namespace, SPLIT.at, exact_from, encoder(format), fields
    rows = [read_row(each, *about) for each in documents]
    return pa.Table.from_batches(arrow_batches.encode_rows(iter(rows), schema(format)))


def at_once(documents: Documents, format: str, fields: Sequence[str] = ()) -> pa.Table:
    return pa.Table.from_batches(
        arrow_batches.encode_documents(documents, SPLIT, options(format), schema(format), fields)
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("exact_from", [None, Timestamp(1_700_000_001, 1)])
@pytest.mark.parametrize("fields", [(), ("n", "v")])
def test_rows_of_many_documents_are_those_of_each(
    format: str, exact_from: Timestamp | None, fields: tuple[str, ...]
) -> None:
    documents = [bson.encode({"_id": each, "n": n}) for n, each in enumerate(IDS)]
    last = [bson.encode({"v": each}) for each in IDS]  # a driver would put the _id first
    documents += [raw((0x0A, b"n", b""), (each[4], b"_id", each[7:-1])) for each in last]
    expected = one_by_one(documents, format, exact_from, fields)
    for given in (documents, Places.concatenate(documents)):
        found = at_once(Documents(given, exact_from), format, fields)
        assert found.schema == expected.schema
        assert canonical_rows(found.to_pylist()) == canonical_rows(expected.to_pylist())


def test_keys_of_all_types_and_ranges_are_those_of_each() -> None:
    documents = [raw((kind, b"_id", value)) for kind, value in values(5, 3000)]
    documents += [bson.encode({"_id": each}) for each in IDS]
    for alone in (False, True):
        key, document_key = cells.encode_keys(Places.concatenate(documents), alone)
        expected = one_by_one(documents, "bson", None)
        assert key.equals(expected["key"].combine_chunks())
        assert document_key.equals(expected["document_key"].combine_chunks())


def test_keys_of_frequent_types_are_written_by_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: a collection whose keys take longer than all else of its documents."""
    monkeypatch.setattr(cells, "merge_key", None)
    frequent = [7, Int64(7), "a", ObjectId(bytes(12)), Binary(bytes(16), 4), Binary(b"legacy", 3)]
    key, _ = cells.encode_keys(
        Places.concatenate([bson.encode({"_id": each}) for each in frequent]), alone=False
    )
    assert len(key) == len(frequent)


def test_a_shard_key_is_in_the_document_key_and_not_in_the_key() -> None:
    one, two = struct.pack("<i", 1), struct.pack("<i", 2)
    fields = (0x10, b"s", one), (0x10, b"_id", two)
    places = Places.concatenate([raw(*fields), raw(*reversed(fields))])
    key, document_key = cells.encode_keys(places, alone=True)
    assert key.to_pylist() == ["2", "2"]
    shard_key, own = '"s":{"$numberInt":"1"}', '"_id":{"$numberInt":"2"}'
    assert document_key.to_pylist() == [f"{{{shard_key},{own}}}", f"{{{own},{shard_key}}}"]


@pytest.mark.parametrize("document", [raw(), bson.encode({"_ix": 1}), b"\x06\0\0\0\0"])
def test_a_document_without_a_key_is_an_error_at_once_too(document: bytes) -> None:
    with pytest.raises(UnmappableValue):
        cells.encode_keys(Places.concatenate([bson.encode({"_id": 1}), document]), alone=False)


def test_a_wrong_length_anywhere_in_a_document_is_an_error_at_once_too() -> None:
    wrong = raw((0x10, b"_id", struct.pack("<i", 1)), (0x02, b"s", b"\x09\0\0\0a\0"))
    with pytest.raises(UnmappableValue):
        cells.encode_keys(Places.concatenate([wrong]), alone=False)


def test_large_documents_that_lie_apart_come_a_few_at_a_time() -> None:
    """Guards: what a rewind holds, encoded at once, would take as much again."""
    documents = [bson.encode({"_id": n, "pad": "x" * 2_000_000}) for n in range(9)]
    found = arrow_batches.encode_documents(
        Documents(documents), SPLIT, options("bson"), schema("bson")
    )
    assert [batch.num_rows for batch in found] == [5, 4]


def test_many_small_replies_are_encoded_at_once_like_a_large_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: a reply of 10,000 documents of 25 bytes, which took a hundred times as long."""
    monkeypatch.setattr(arrow_batches, "_encoded", Total())
    reply = [bson.encode({"_id": n, "n": n}) for n in range(1000)]
    replies = 1 + WORTH // sum(map(len, reply))
    found = [arrow_batches.is_large(reply) for _ in range(2 * replies)]
    assert found == [False] * (replies - 1) + [True] * (replies + 1)
