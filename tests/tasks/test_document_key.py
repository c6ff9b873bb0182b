"""Document keys of sharded collections as text, and the rows of changes that end one."""

from __future__ import annotations

import json
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from cdc.model import NEVER, Change, ShardKey, document_key_of, whole_key
from cdc.tasks.shard_keys import with_whole_key

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
FIELDS = ("place.code", "n", "_id")
SHARD_KEY = ShardKey(FIELDS, b"", NEVER)


def key_of(document: dict[str, Any]) -> str:
    return whole_key(document_key_of(bson.encode(document), FIELDS))


@pytest.mark.parametrize(
    ("document", "document_key"),
    [
        ({"_id": 7}, {"_id": 7}),
        ({"x": 1, "n": None, "_id": 7}, {"n": None, "_id": 7}),
        ({"_id": 7, "place": {"code": "a"}, "n": 1}, {"place.code": "a", "n": 1, "_id": 7}),
        ({"_id": 7, "place": "a"}, {"_id": 7}),
        ({"_id": 7, "place": {"code": {"x": 1}}}, {"place.code": {"x": 1}, "_id": 7}),
    ],
)
def test_a_document_key_has_the_fields_of_the_shard_key_that_the_document_has(
    document: dict[str, Any], document_key: dict[str, Any]
) -> None:
    """As MongoDB 6.0.5 reports it for these documents."""
    assert bson.decode(document_key_of(bson.encode(document), FIELDS)) == document_key


def test_a_whole_key_is_equal_for_equal_values_and_different_for_others() -> None:
    """Guards: an `_id` that looks like a key with a shard key; a field that is null or missing."""
    ids = [7, "7", {"n": 7}, '7\t{"n":1}', {"_id": 7, "n": 1}]
    documents = [
        {"_id": own, **more} for own in ids for more in ({}, {"n": None}, {"n": 1}, {"n": "1"})
    ]
    assert len({*map(key_of, documents)}) == len(documents)
    assert key_of({"_id": 7, "n": 1}) == key_of({"n": 1.0, "_id": bson.Int64(7)})
    assert key_of({"_id": 7}) == "7"
    assert key_of({"_id": 7, "n": 1, "place": {"code": "a\tb"}}) == (
        '7\t{"n":1,"place.code":"a\\tb"}'
    )


def _rows(
    operation: str,
    before: dict[str, Any],
    after: dict[str, Any] | None,
    op: str = "",
    shard_key: ShardKey | None = SHARD_KEY,
) -> list[Change]:
    own = document_key_of(bson.encode(before), FIELDS)
    event = {"operationType": operation, "documentKey": RawBSONDocument(own)}
    row = Change(op or operation, "82", 0, 0, document_key="old", before=b"b", after=b"a")
    row = row._replace(update_description="{}", description='{"exactFrom": "5:1"}')
    return with_whole_key(row, event, None if after is None else bson.encode(after), shard_key)


def test_a_changed_shard_key_is_a_delete_and_an_insert_at_one_position() -> None:
    """Guards: an update that leaves the row of the former document key in a mirror."""
    before, after = {"_id": 7, "n": 1}, {"_id": 7, "n": 2}
    for operation in ("update", "replace"):
        deleted, inserted = _rows(operation, before, after)
        assert (deleted.op, deleted.key, deleted.before, deleted.after) == (
            *("delete", '7\t{"n":1}', b"b", None),
        )
        assert (inserted.op, inserted.key, inserted.before, inserted.after) == (
            *("insert", '7\t{"n":2}', None, b"a"),
        )
        assert deleted.position == inserted.position
        assert deleted.update_description is inserted.update_description is None
        assert json.loads(deleted.description or "") == {"rekeyed": operation}
        assert json.loads(inserted.description or "") == {"exactFrom": "5:1", "rekeyed": operation}
        assert json.loads(inserted.document_key or "") == {
            "n": {"$numberInt": "2"},
            "_id": {"$numberInt": "7"},
        }


def test_a_field_of_the_shard_key_that_a_document_gets_or_loses_changes_its_key() -> None:
    for before, after in (({}, {"n": None}), ({"n": 1}, {})):
        rows = _rows("update", {"_id": 7, **before}, {"_id": 7, **after})
        assert [row.op for row in rows] == ["delete", "insert"]


def test_other_changes_are_one_row_of_their_document_key() -> None:
    old, new = {"_id": 7, "n": 1}, {"_id": 7, "n": 2}
    assert [row.key for row in _rows("update", old, {**old, "x": 1})] == ['7\t{"n":1}']
    assert [row.key for row in _rows("delete", old, None)] == ['7\t{"n":1}']
    assert [row.key for row in _rows("update", old, None)] == ['7\t{"n":1}']
    (entered,) = _rows("update", old, new, op="insert")
    assert (entered.op, entered.key, entered.before) == ("insert", '7\t{"n":2}', None)
    (left,) = _rows("update", old, new, op="delete")
    assert (left.op, left.key) == ("delete", '7\t{"n":1}')


def test_an_event_of_a_shard_that_does_not_know_the_shard_key_yet_has_the_new_key() -> None:
    """Guards: a delete by the former document key, which leaves the row of the new one."""
    whole = bson.encode({"_id": 7, "n": 1})
    for operation, image in (("insert", None), ("delete", RawBSONDocument(whole))):
        event = {
            "operationType": operation,
            "documentKey": RawBSONDocument(bson.encode({"_id": 7})),
            "fullDocumentBeforeChange": image,
        }
        row = Change(operation, "82", 0, 0)
        after = whole if image is None else None
        assert [each.key for each in with_whole_key(row, event, after, SHARD_KEY)] == ['7\t{"n":1}']


def test_of_a_collection_that_is_gone_the_event_names_the_shard_key() -> None:
    old, new = {"_id": 7, "n": 1}, {"_id": 7, "n": 2}
    assert [row.op for row in _rows("update", old, new, shard_key=None)] == ["delete", "insert"]
    assert [row.op for row in _rows("update", old, {**old, "x": 1}, shard_key=None)] == ["update"]
