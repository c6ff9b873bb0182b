"""The readable text of an `_id`: what people write, and what a reference becomes as text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc.arrow import readable_ids
from cdc.model import readable_id
from tests.model.ids import texts_by_key


def test_an_id_of_each_type_has_the_text_that_people_write() -> None:
    expected = texts_by_key()
    assert {key: readable_id(key) for key in expected} == expected


@pytest.mark.parametrize("prefix", ["", "7", '"a', '{"$oid"', '{"$binary":{"base64":"Ej', '{"$'])
def test_many_ids_have_the_texts_of_each(prefix: str) -> None:
    """Guards: ids of one type, which are converted together; a slice of a longer column."""
    keys = [key for key in texts_by_key() if key.startswith(prefix)] * 3
    assert keys
    found = readable_ids(pa.array(["x", *keys, "y"]).slice(1, len(keys)))
    found.validate(full=True)
    assert found.to_pylist() == list(map(readable_id, keys))
    assert readable_ids(pa.array([], pa.string())).to_pylist() == []
