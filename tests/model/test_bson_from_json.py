"""Extended JSON back to BSON: canonical form gives the bytes that it was made of."""

from __future__ import annotations

import json
import struct

import bson

from cdc.errors import UnmappableValue
from cdc.model.bson import element
from cdc.model.encoding import relaxed_json
from cdc.model.encoding.document import canonical_json
from cdc.model.encoding.from_extended_json import document
from tests.model import mixed
from tests.model.test_merge_key import OTHERS, SPECIAL_NUMBERS, Element, array
from tests.model.test_merge_key import document as of_elements

EVERY_TYPE = {*range(0x01, 0x14), element.MIN_KEY, element.MAX_KEY}


def whole(*items: Element) -> bytes:
    named = [(str(n).encode(), item) for n, item in enumerate(items)]
    return of_elements(*named)[1]


def is_reported(item: Element) -> bool:
    """Whether there is Extended JSON of it at all: else the row keeps the bytes."""
    try:
        canonical_json(whole(item))
    except UnmappableValue:
        return False
    return True


def test_canonical_json_gives_back_the_bytes_of_every_type() -> None:
    values = SPECIAL_NUMBERS + OTHERS + mixed.edges() + mixed.values(seed=7, count=800)
    reported = [item for item in values if is_reported(item)]
    assert {kind for kind, _ in reported} == EVERY_TYPE
    for item in reported:
        kept = mixed.as_kept(item)
        data = whole(item, array(item))
        assert document(json.loads(canonical_json(data))) == whole(kept, array(kept)), data.hex()


def test_what_canonical_json_cannot_express_is_lost_and_nothing_else() -> None:
    """The documented list, held true."""
    payload = struct.pack("<Q", 0xFFF8 << 48 | 7)
    lost = {
        "the payload and sign of a NaN": whole((element.DOUBLE, payload)),
        "the names in an array": whole(
            (element.ARRAY, of_elements((b"7", (element.NULL, b"")))[1])
        ),
        "a document that looks like an ObjectId": bson.encode({"a": {"$oid": "0" * 24}}),
    }
    for what, data in lost.items():
        again = document(json.loads(canonical_json(data)))
        assert again != data, what
        assert canonical_json(again) == canonical_json(data), what


def test_relaxed_json_gives_numbers_in_the_least_type_that_holds_them() -> None:
    data = bson.encode({"a": bson.Int64(1), "b": 2**40, "c": 1.5, "d": -0.0, "e": [1.0]})
    kinds = [each.kind for each in element.elements(data, 0, len(data))]
    again = document(json.loads(relaxed_json(data)))
    assert bson.decode(again) == bson.decode(data)
    changed = [each.kind for each in element.elements(again, 0, len(again))]
    assert (kinds[0], changed[0]) == (element.INT64, element.INT32)
    assert changed[1:] == kinds[1:]
