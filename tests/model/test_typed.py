"""The rule of typed columns on VARIANTs that no document makes: damaged, or written by others."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.model.encoding import pack_object
from cdc.model.encoding.variant import pack_metadata
from cdc.model.encoding.variant_bytes import fields, stop_of
from cdc.model.typed import Array, Decimals, Integer, Plan, Scalar
from cdc.model.typed.typed_columns import take_columns

ONE, TWO, NULL = b"\x0c\x01", b"\x0c\x02", b"\0"
NAMES = pack_metadata([b"a", b"b", b"c"])
PLAN = Plan.of([(("a",), Integer(32)), (("b", "a"), Scalar.STRING)])


def columns_and_rest(value: bytes, metadata: bytes = NAMES) -> tuple[Any, ...]:
    found = take_columns(value, metadata, PLAN)
    return *found.columns, found.rescued


def test_what_is_left_has_no_names_but_its_own() -> None:
    document = pack_object([0, 2], [ONE, pack_object([1], [TWO])])
    rest = pack_object([1], [pack_object([0], [TWO])]), pack_metadata([b"b", b"c"])
    assert columns_and_rest(document) == (1, None, rest)


def test_an_object_with_a_name_twice_is_left_whole() -> None:
    for ids, metadata in (([0, 0], NAMES), ([0, 1], pack_metadata([b"a", b"a"]))):
        document = pack_object(ids, [ONE, TWO])
        assert columns_and_rest(document, metadata) == (None, None, (document, metadata))


def test_names_ascend_in_utf_16() -> None:
    names = ["\U0001f600".encode(), "\uff5e".encode()]
    document = pack_object([0, 1], [ONE, TWO])
    assert fields(document, 0, len(document), names) is not None
    assert fields(document, 0, len(document), names[::-1]) is None


def test_values_may_lie_in_any_order_and_fill_their_object() -> None:
    """Spark writes them as they come, and sorts only the names."""
    turned = b"\x02\x02\x00\x02\x02\x00\x04" + TWO + ONE
    assert columns_and_rest(turned) == (1, None, (pack_object([0], [TWO]), pack_metadata([b"c"])))
    with_gap = b"\x02\x02\x00\x02\x02\x00\x05" + TWO + ONE + NULL
    assert columns_and_rest(with_gap) == (None, None, (with_gap, NAMES))


@pytest.mark.parametrize(
    "value",
    [
        b"\x38" + bytes(4),  # a float
        b"\x50" + bytes(16),  # a UUID
        b"\x2c" + bytes(4),  # a date
        b"\x20\x0a" + bytes(4),  # a decimal of four bytes with ten decimal places
        b"\x20\x00" + (10**9).to_bytes(4, "little"),  # and with ten digits
        b"\x09\xc3\x28",  # a string that is no UTF-8
    ],
)
def test_what_no_document_makes_fits_nothing_and_is_left(value: bytes) -> None:
    assert stop_of(value, 0, len(value)) == len(value)
    for kind in (*Scalar, Integer(64), Decimals(38, 10), Array(Scalar.STRING)):
        plan = Plan.of([(("a",), kind)])
        found = take_columns(pack_object([0], [value]), pack_metadata([b"a"]), plan)
        is_kept = kind is Scalar.VARIANT
        assert (found.columns[0] is not None) == is_kept
        assert found.rescued == (
            None if is_kept else (pack_object([0], [value]), pack_metadata([b"a"]))
        )


@pytest.mark.parametrize("value", [ONE, NULL, b"\x03\x00\x00", b"\x0c", b"\xfc", ONE + b"x"])
def test_what_is_no_document_is_left_whole(value: bytes) -> None:
    columns = columns_and_rest(value)
    assert columns[:2] == (None, None)
    assert columns[2][0] == value


def test_without_a_dictionary_a_document_is_left_whole() -> None:
    document = pack_object([0], [ONE])
    for metadata in (b"", b"\x02", b"\x01\x01", b"\x01\x01\x00\x05a", b"\x01\x01\x01\x02ab"):
        assert columns_and_rest(document, metadata) == (None, None, (document, metadata))
