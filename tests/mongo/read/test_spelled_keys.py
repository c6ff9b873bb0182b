"""A key is the same row for ever, however the server's clients spell its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson import Decimal128, Int64
from pymongo.database import Database

from tests.mongo.capture import Capture, Document, contents, filled

Begin = Callable[..., Capture]

SPELLINGS: dict[str, list[Any]] = {
    "one": [1, 1.0, Int64(1), Decimal128("1.00"), Decimal128("1")],
    "zero": [0, -0.0, Decimal128("0E+3"), Decimal128("-0"), Int64(0)],
    "nested": [{"a": 1, "b": [2]}, {"a": 1.0, "b": [2]}, {"a": Decimal128("1.0"), "b": [Int64(2)]}],
    "large": [Int64(2**53), float(2**53), Decimal128("9007199254740992.0")],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_replaced_document_keeps_its_row_when_its_key_is_spelled_anew(
    capture: Begin, database: Database[Document], name: str
) -> None:
    """Guards: the merge key is by value: real events of a server that holds the keys equal."""
    first, *others = SPELLINGS[name]
    coll = filled(database, "a", [first, "other"])
    pipeline = capture("a", documents_per_split=1)
    pipeline.run()
    for number, spelling in enumerate(others):
        result = coll.replace_one({"_id": first}, {"_id": spelling, "number": number})
        assert result.matched_count == 1
    pipeline.run()
    rows = [row for row in pipeline.rows if row.key != '"other"']
    assert {row.op for row in rows} == {"read", "replace"}
    assert len(rows) == len(SPELLINGS[name])
    assert len({row.key for row in rows}) == 1
    assert pipeline.replayed(coll) == contents(coll)
    assert len(contents(coll)) == 2
