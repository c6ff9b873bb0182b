"""Documents of each `document.format` back as BSON, by the functions alone."""

from __future__ import annotations

import bson
import pytest
from bson import Decimal128, Int64, ObjectId

from cdc.delta.documents import restored
from cdc.model.document import Column, encoder
from cdc.model.key import document_key_json
from cdc.model.split import key_of
from tests.model import mixed
from tests.model.test_key import OTHERS, SPECIAL_NUMBERS, document, of

FORMATS = {"bson": ("bson",), "canonical": ("json", "canonical"), "variant": ("variant",)}


def through(data: bytes, *format: str) -> bytes:
    """As a task captures it, Arrow tells it, and a task restores it."""
    column: Column = encoder(*format)(data)
    image = (
        dict(zip(("value", "metadata"), column, strict=True))
        if isinstance(column, tuple)
        else column
    )
    return restored(image, document_key_json(key_of(data)))


@pytest.mark.parametrize("format", FORMATS)
def test_a_document_of_any_type_comes_back_as_its_format_promises(format: str) -> None:
    """Guards: what could not be mapped was kept as bytes."""
    for n, item in enumerate(SPECIAL_NUMBERS + OTHERS + mixed.values(seed=11, count=400)):
        data = document((b"_id", of(n)), (b"v", item), (b"last", of(None)))[1]
        again = through(data, *FORMATS[format])
        if format == "bson":
            assert again == data
            continue
        assert key_of(again) == key_of(data)
        if format == "canonical":
            kept = document((b"_id", of(n)), (b"v", mixed.as_kept(item)), (b"last", of(None)))[1]
            assert again in (kept, data)
        else:
            assert through(again, "variant") == again


def test_a_variant_gives_back_its_types_and_the_key_its_own() -> None:
    own = ObjectId()
    told = {"_id": own, "z": 1, "a": Int64(2), "o": own, "d": Decimal128("1.50"), "b": b"x"}
    told["t"] = bson.Timestamp(3, 4)
    told["when"] = bson.decode(bson.encode({"x": bson.DatetimeMS(1_769_860_800_123)}))["x"]
    again = bson.decode(through(bson.encode(told), "variant"))
    assert again == {**told, "a": 2, "o": str(own)}
    assert list(again) == ["_id", "a", "b", "d", "o", "t", "when", "z"]


def test_what_could_not_be_mapped_comes_back_as_it_was() -> None:
    twice = document((b"_id", of(1)), (b"a", of(1)), (b"a", of(2)))[1]
    for format in FORMATS.values():
        assert through(twice, *format) == twice
