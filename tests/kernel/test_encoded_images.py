"""The column of images that the compiled functions fill is the one that plain Python fills."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson import Binary, Decimal128, Int64
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.arrow import cells
from cdc.kernel import Places, loading
from cdc.model.bson import MAX_DEPTH
from cdc.model.encoding import encoder, variant
from cdc.model.encoding.document import FORMATS
from cdc.model.encoding.variant import pack_metadata
from cdc.tasks import share_names
from tests.kernel.arrow import KINDS
from tests.kernel.canonical import canonical
from tests.model.mixed import values
from tests.model.test_merge_key import document as of_elements
from tests.model.test_variant import BY_TYPE, DOCUMENTS, OID, REFUSED, nested, of, raw
from tests.slow import slow_but

PROPERTY = settings(max_examples=50, derandomize=True, deadline=None, database=None)


def surrounded(documents: Iterable[bytes], fill: bytes) -> Places:
    """The documents in bytes of other content, so that what is read beyond them shows."""
    data, starts, stops = bytearray(fill * 40), [], []
    for document in documents:
        starts.append(len(data))
        data += document
        stops.append(len(data))
        data += fill * 40
    return Places(bytes(data), np.array(starts, np.int64), np.array(stops, np.int64))


FILLS = (b"\0", b"\xff", b"\x02\x01")


def assert_same(
    documents: list[bytes],
    format: str = "variant",
    mode: str = "relaxed",
    fills: tuple[bytes, ...] = FILLS,
) -> None:
    encode = encoder(format, mode)
    expected = [encode(document) for document in documents]
    if format == "variant":
        expected = [canonical(*cell) for cell in expected]
    for fill in fills:
        column = encoded(surrounded(documents, fill), format, mode)
        assert column == expected


def encoded(places: Places, format: str = "variant", mode: str = "relaxed") -> list[Any]:
    """The images; a VARIANT as `canonical`, the same with and without shared dictionaries."""
    column = cells.encode_images(places, KINDS[format], format, mode).to_pylist()
    if format != "variant":
        return column
    field = pa.schema([("image", KINDS[format])])
    shared = cells.encode_images(places, share_names(field).field("image").type, format, mode)
    assert shared.to_pylist() == column
    return [None if cell is None else canonical(**cell) for cell in column]


def is_compiled(document: bytes) -> bool:
    """Whether the compiled functions encode it by themselves."""
    columns, places = loading.columns(), Places.concatenate([document])
    values = cells.Cells(1, columns.variant.room(places.longest))
    learnt = columns.tables.learn_nothing(places.longest)
    shared, numbers = cells.Cells(2, len(document) + 64), np.zeros(1, np.int32)
    filled = columns.write_variants(
        *places.arrays, 0, values.out, values.ends, numbers, shared.out, shared.ends, *learnt
    )
    return bool(filled == (1, columns.DONE))


ALL = [case[0] for case in BY_TYPE.values()]


@pytest.mark.parametrize("format", FORMATS)
def test_every_type_and_what_is_refused_is_encoded_as_before(format: str) -> None:
    assert_same([*ALL, *REFUSED.values()], format)
    assert_same([*reversed(REFUSED.values()), *ALL], format, "canonical")


OFTEN = {
    "double": 1.5,
    "string": "häß 😀\0" * 20,
    "document": {"b": 1, "a": {"zü": 1}},
    "array": [1, "a", [], {}],
    "binary": b"\0\xff",
    "uuid": Binary(bytes(range(16)), 4),
    "object id": OID,
    "bool": False,
    "date": bson.datetime_ms.DatetimeMS(-62135596800000),
    "null": None,
    "int32": -(2**31),
    "int64": Int64(-(2**63)),
    "decimal128": Decimal128("-12.50"),
    "decimal128 of 38 digits": Decimal128("1E+37"),
}


@pytest.mark.parametrize("name", OFTEN)
def test_what_is_frequent_is_encoded_by_compiled_functions(name: str) -> None:
    assert is_compiled(of(OFTEN[name]))
    assert_same([of(OFTEN[name])])


@pytest.mark.parametrize("size", [0, 63, 64, 255, 256, 300, 70_000])
def test_strings_binaries_and_arrays_of_any_size_are_the_same(size: int) -> None:
    assert_same([of("x" * size), of(b"x" * size), of(["x" * size, 1]), of([None] * size)])


@pytest.mark.parametrize("count", [1, 32, 255, 256, 512, 513, 2000])
def test_objects_of_any_number_of_fields_are_the_same(count: int) -> None:
    wide = {f"n{number * 7919 % count}": number for number in range(count)}
    long = {f"a name that goes on {number}": {"n": number} for number in range(count)}
    assert_same([bson.encode(wide), bson.encode(long), bson.encode({**long, **wide})])
    assert is_compiled(bson.encode(wide))


def test_names_are_ordered_as_spark_orders_them_whatever_they_share() -> None:
    names = ["", "a", "ab", "abcdefgh", "abcdefghi", "abcdefg", "abcdefgh\x01", "abcdefgi"]
    names += ["é", "ü", "\ue000", "\uffff", "😀", "\U00010000", "abcdefghé", "abcdefgé"]
    for first in names:
        for second in names:
            if first != second:
                assert_same([bson.encode({first: 1, second: {second: 2, first: 3}})])


@pytest.mark.parametrize("bits", [7, 8, 15, 16, 31, 32, 63])
def test_integers_at_the_edge_of_a_width_are_the_same(bits: int) -> None:
    edges = (2**bits - 1, -(2**bits), min(2**bits, 2**63 - 1), max(-(2**bits) - 1, -(2**63)))
    assert_same([of(Int64(number)) for number in edges])


def test_decimals_of_any_digits_and_scale_are_the_same() -> None:
    texts = []
    for digits in (1, 9, 10, 18, 19, 20, 33, 34):
        for exponent in (-6176, -39, -38, -19, -18, -10, -9, -1, 0, 1, 3, 4, 5, 20, 37, 38, 39):
            texts += [f"{sign}{digit * digits}E{exponent}" for sign in "+-" for digit in "019"]
    # In two halves of 64 bits these are less than what is held at most.
    texts += ["3748588345113503419436994625858840E+5", "3402823669209384634633746074317682E+5"]
    assert_same([of(Decimal128(text)) for text in texts])
    assert is_compiled(of(Decimal128("9999E+34")))
    assert not is_compiled(of(Decimal128("1E+38")))


def test_nesting_is_the_same_up_to_the_limit_and_beyond() -> None:
    for kind in (0x03, 0x04):
        assert_same([nested(levels, kind) for levels in (1, 99, MAX_DEPTH, MAX_DEPTH + 1, 1000)])


def test_one_that_is_refused_leaves_those_beside_it_as_they_are() -> None:
    regex = of(bson.Regex("^a"))
    assert not is_compiled(regex)
    assert_same([of(1), regex, of(2), regex, regex, REFUSED["a name twice"], of(3), regex])


def test_where_there_is_no_document_there_is_null() -> None:
    places = Places.concatenate([of(1), of(2)])
    starts = np.array([-1, *places.starts, -1], np.int64)
    stops = np.array([-1, *places.stops, -1], np.int64)
    for format, kind in KINDS.items():
        given = Places(places.data, starts, stops)
        column = cells.encode_images(given, kind, format, "relaxed")
        assert column.is_null().to_pylist() == [True, False, False, True]
        assert encoded(given, format)[1:3] == encoded(places, format)


def test_cells_that_need_more_room_than_the_documents_get_it() -> None:
    flood = of([bson.Regex("")] * 200)
    assert_same([flood, of(1), flood])


@PROPERTY
@given(st.lists(DOCUMENTS, max_size=2))
def test_random_documents_are_encoded_as_before(documents: list[dict[str, Any]]) -> None:
    assert_same([bson.encode(document) for document in documents], fills=FILLS[:1])


def test_values_of_all_types_and_ranges_are_encoded_as_before() -> None:
    drawn = values(11, 4000)
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    assert_same([of_elements((b"a", one), (b"v", other))[1] for one, other in pairs])


@PROPERTY
@given(DOCUMENTS, st.data())
def test_damaged_bytes_are_encoded_as_before(document: dict[str, Any], data: st.DataObject) -> None:
    damaged = bytearray(bson.encode(document))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    assert_same([bytes(damaged), bytes(damaged[:cut]), bytes(damaged[cut:])])


# From one wrong byte to the next: a seventh of all bytes, or all of them.
STEPS = slow_but([7], [7, 1])


def damaged_everywhere(step: int) -> list[bytes]:
    """A document of all types, each of its bytes wrong once in several ways; or some of them."""
    whole = raw(*[(case[0][4], name.encode(), case[0][7:-1]) for name, case in BY_TYPE.items()])
    often = bson.encode({**OFTEN, "_id": 1})
    found = []
    for document in (whole, often):
        for index in range(0, len(document), step):
            for other in (0, 0xFF, document[index] ^ 0x10):
                found.append(document[:index] + bytes([other]) + document[index + 1 :])
    return found


@pytest.mark.parametrize("step", STEPS)
def test_every_single_byte_may_be_wrong(step: int) -> None:
    assert_same(damaged_everywhere(step), fills=FILLS[2:])


def test_documents_of_ever_other_names_begin_new_dictionaries() -> None:
    """Guards: the number of a row's dictionary, where the compiled functions begin a new one, where
    plain Python encodes a document between, and where a row has none."""
    documents = [
        bson.encode({f"{number // 3} {field}": field for field in range(20)})
        for number in range(300)
    ]
    documents[40:60:7] = [of(bson.Regex("^a"))] * 3
    assert_same(documents)
    given = surrounded(documents, b"\0")
    given.starts[10:200:30] = -1
    expected = encoded(surrounded(documents, b"\0"))
    expected[10:200:30] = [None] * 7
    assert encoded(given) == expected
    field = share_names(pa.schema([("image", KINDS["variant"])])).field("image")
    names = cells.encode_images(given, field.type, "variant", "relaxed").field(1)
    own = {name for name in names.to_pylist() if name == variant.transcode(documents[40])[1]}
    assert len(own) == 1
    assert 5 < len(names.dictionary) < 20


def test_documents_of_one_shape_share_one_dictionary_whatever_they_hold() -> None:
    documents = [bson.encode({"a": n, "b": {"c": [n] * n, "a": "x" * n}}) for n in range(300)]
    assert_same(documents)
    field = share_names(pa.schema([("image", KINDS["variant"])])).field("image")
    column = cells.encode_images(Places.concatenate(documents), field.type, "variant", "relaxed")
    assert column.field(1).dictionary.to_pylist() == [pack_metadata([b"a", b"b", b"c"])]


def test_small_documents_after_a_large_one_do_not_get_its_names() -> None:
    """Guards: a reader gets all names of a dictionary with each of its rows."""
    large = bson.encode({f"{number:032x}": number for number in range(4000)})
    documents = [large, *(bson.encode({"_id": n, "name": "x"}) for n in range(1000))]
    assert_same(documents, fills=FILLS[:1])
    column = cells.encode_images(
        Places.concatenate(documents), KINDS["variant"], "variant", "relaxed"
    )
    assert column.field(1).nbytes < 3 * len(large)


@pytest.mark.parametrize("name", ["{0:032x}", "2024-01-{0:08d}:00.000Z", "{0}" + "p" * 900])
@pytest.mark.parametrize("step", [1, -1, 7919])
def test_many_names_that_are_alike_are_the_same(name: str, step: int) -> None:
    """Guards: names that differ only in the middle, and in orders that make sorting slow."""
    names = [name.format(number * step % 3001) for number in range(3000)]
    assert_same([bson.encode(dict.fromkeys(names, 1))], fills=FILLS[:1])
    assert is_compiled(bson.encode(dict.fromkeys(names, 1)))
