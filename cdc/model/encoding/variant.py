"""BSON bytes to Spark's VARIANT: the Parquet Variant binary encoding, version 1.

| BSON | VARIANT |
| --- | --- |
| double, string, bool, null, array, document | the same |
| int32, int64 | the smallest integer type that fits the value, as Spark itself stores it |
| date | timestamp (UTC, microseconds), from year 1 to 9999 |
| decimal128 | decimal of the same scale, if 38 digits and a scale of 0 to 38 suffice |
| ObjectId | string of 24 hex digits |
| binary of subtype 0 / UUID (subtype 4, 16 bytes) | binary / string, the UUID's text |
| every other value, also one outside the limits above | canonical Extended JSON v2, an object |

Source: https://github.com/apache/parquet-format/blob/master/VariantEncoding.md; limits and order
of keys from org.apache.spark.types.variant.VariantUtil and Variant of Spark 4.2.
"""

from __future__ import annotations

import functools
import itertools
import struct
import uuid
from collections.abc import Callable
from typing import TypeAlias

from cdc.errors import UnmappableValue
from cdc.model.bson import Element, Json, element, elements, extended_json

# Spark refuses a longer value or metadata. (16 MiB where Spark runs its own tests.)
SIZE_LIMIT = 128 * 2**20

# 0001-01-01 to 9999-12-31: the timestamps of Spark SQL, Python and Parquet readers alike.
FIRST_MILLI, LAST_MILLI = -62_135_596_800_000, 253_402_300_799_999

_MAX_DECIMAL = 10**38

_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INT1, _INT2 = struct.Struct("<Bb").pack, struct.Struct("<Bh").pack
_INT4, _INT8 = struct.Struct("<Bi").pack, struct.Struct("<Bq").pack
_LENGTH = struct.Struct("<BI").pack

# Field name -> id: the names of the whole document in order of first use, shared by its objects.
_Dictionary: TypeAlias = dict[bytes, int]


def transcode(document: bytes) -> tuple[bytes, bytes]:
    """Encode a BSON document as a VARIANT; return its (value, metadata).

    Spark can look up every field of an object, whatever their number. The order of fields is lost,
    as in every VARIANT. Also lost: the width of integers, the sign of a decimal zero, whether a
    string was an ObjectId or a UUID, and whether the source already had an Extended JSON object.

    Raises UnmappableValue, and nothing else, for corrupt bytes, a name or string that is not UTF-8,
    a name that occurs twice in a document, nesting deeper than element.MAX_DEPTH, or a result
    larger than SIZE_LIMIT.
    """
    dictionary: _Dictionary = {}
    value = _encode_document(document, 0, len(document), dictionary, 0)
    metadata = pack_metadata(list(dictionary))
    if max(len(value), len(metadata)) > SIZE_LIMIT:
        raise UnmappableValue(f"larger than the {SIZE_LIMIT} bytes of a VARIANT")
    return value, metadata


def is_object(data: bytes, item: Element) -> bool:
    """Whether a value becomes an object: a document, or a value written as Extended JSON."""
    return _WRITERS.get(item.kind, _encode_extended)(data, item, {}, 0)[0] & 3 == 2


def from_tree(tree: dict[str, Json], payload: dict[str, bytes]) -> tuple[bytes, bytes]:
    """(value, metadata) of an object with the fields of `tree` and the binaries of `payload`."""
    dictionary: _Dictionary = {}
    fields = {name.encode(): _encode_tree(item, dictionary) for name, item in tree.items()}
    fields.update({name.encode(): _encode_binary(raw) for name, raw in payload.items()})
    value = _encode_object(tuple(fields), list(fields.values()), dictionary)
    return value, pack_metadata(list(dictionary))


def _encode_document(
    data: bytes, start: int, stop: int, dictionary: _Dictionary, depth: int
) -> bytes:
    found = elements(data, start, stop, depth)
    values = []
    for item in found:
        values.append(_WRITERS.get(item.kind, _encode_extended)(data, item, dictionary, depth))
    return _encode_object(tuple([item.name for item in found]), values, dictionary)


def _encode_array(data: bytes, item: Element, dictionary: _Dictionary, depth: int) -> bytes:
    values = []
    for each in elements(data, item.start, item.stop, depth + 1):
        writer = _WRITERS.get(each.kind, _encode_extended)
        values.append(writer(data, each, dictionary, depth + 1))
    return _encode_list(values)


def _encode_embedded(data: bytes, item: Element, dictionary: _Dictionary, depth: int) -> bytes:
    return _encode_document(data, item.start, item.stop, dictionary, depth + 1)


def _encode_object(names: tuple[bytes, ...], values: list[bytes], dictionary: _Dictionary) -> bytes:
    # Many documents share their names: cache the order. The limits bound the cache to some 16 MB,
    # whatever names a collection has.
    is_cached = len(names) < 64 and max(map(len, names), default=0) < 256
    order = _cached_name_order(names) if is_cached else _name_order(names)
    ids = [dictionary.setdefault(names[index], len(dictionary)) for index in order]
    return pack_object(ids, [values[index] for index in order])


def pack_object(ids: list[int], content: list[bytes]) -> bytes:
    """Pack an object from the ids of its names and its values, both in the order of the names."""
    offsets, size = _pack_offsets(content)
    wide = _byte_width(max(ids, default=0))
    large = len(ids) > 255
    header = large << 6 | (wide - 1) << 4 | (size - 1) << 2 | 2
    count = len(ids).to_bytes(4 if large else 1, "little")
    return b"".join((bytes((header,)), count, _pack_numbers(ids, wide), offsets, *content))


def _encode_list(values: list[bytes]) -> bytes:
    offsets, size = _pack_offsets(values)
    large = len(values) > 255
    header = large << 4 | (size - 1) << 2 | 3
    count = len(values).to_bytes(4 if large else 1, "little")
    return b"".join((bytes((header,)), count, offsets, *values))


def _name_order(names: tuple[bytes, ...]) -> tuple[int, ...]:
    """Indices of `names` in the order that Spark searches. Raises UnmappableValue as `names_text`.

    From 32 fields on, Spark 4.2 finds a name by binary search with Java's String.compareTo, which
    compares UTF-16 units. The format prescribes the order of UTF-8 bytes. The two orders differ
    between a character above U+FFFF and one from U+E000 to U+FFFF: in the format's order Spark
    returns null for an existing field. Below 32 fields Spark finds names in any order.
    """
    texts = element.names_text(names)
    return tuple(sorted(range(len(names)), key=lambda index: texts[index].encode("utf-16-be")))


_cached_name_order = functools.lru_cache(maxsize=1024)(_name_order)


def pack_metadata(names: list[bytes]) -> bytes:
    """Pack the dictionary of names by id, with the "sorted" flag unset, as Spark itself does."""
    content = b"".join(names)
    size = _byte_width(max(len(content), len(names)))
    ends = itertools.accumulate(map(len, names), initial=0)
    header = bytes(((size - 1) << 6 | 1,))
    return header + len(names).to_bytes(size, "little") + _pack_numbers(list(ends), size) + content


def _pack_offsets(values: list[bytes]) -> tuple[bytes, int]:
    """The packed offsets of the values and of the end of the last one, and the bytes per offset."""
    ends = list(itertools.accumulate(map(len, values), initial=0))
    size = _byte_width(ends[-1])
    return _pack_numbers(ends, size), size


def _byte_width(largest: int) -> int:
    return (largest.bit_length() + 7) // 8 or 1


def _pack_numbers(numbers: list[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    return b"".join([number.to_bytes(size, "little") for number in numbers])


def _encode_string(raw: bytes) -> bytes:
    if not raw.isascii():
        element.text(raw)
    if len(raw) < 64:
        return bytes((len(raw) << 2 | 1,)) + raw
    return _LENGTH(16 << 2, len(raw)) + raw


def _encode_binary(raw: bytes) -> bytes:
    return _LENGTH(15 << 2, len(raw)) + raw


def _encode_integer(number: int) -> bytes:
    if -0x80 <= number < 0x80:
        return _INT1(3 << 2, number)
    if -0x8000 <= number < 0x8000:
        return _INT2(4 << 2, number)
    if -0x80000000 <= number < 0x80000000:
        return _INT4(5 << 2, number)
    return _INT8(6 << 2, number)


def _encode_tree(tree: Json, dictionary: _Dictionary) -> bytes:
    """Encode a tree of canonical Extended JSON, in which no JSON number has a fraction."""
    if isinstance(tree, dict | list):
        # A loop, no comprehension, as in `extended_json`: a code with scope adds two levels here.
        values = []
        for item in tree.values() if isinstance(tree, dict) else tree:
            values.append(_encode_tree(item, dictionary))
        if isinstance(tree, list):
            return _encode_list(values)
        return _encode_object(tuple(name.encode() for name in tree), values, dictionary)
    if isinstance(tree, str):
        return _encode_string(tree.encode())
    if tree is None:
        return _NULL
    if isinstance(tree, bool):
        return _TRUE if tree else _FALSE
    return _encode_integer(int(tree))


_Writer: TypeAlias = Callable[[bytes, Element, _Dictionary, int], bytes]


def _encode_extended(data: bytes, item: Element, dictionary: _Dictionary, depth: int) -> bytes:
    return _encode_tree(extended_json.value(data, item, relaxed=False, depth=depth), dictionary)


def _encode_date(data: bytes, item: Element, dictionary: _Dictionary, depth: int) -> bytes:
    millis = element.int64(data, item.start)[0]
    if FIRST_MILLI <= millis <= LAST_MILLI:
        return _INT8(12 << 2, millis * 1000)
    return _encode_extended(data, item, dictionary, depth)


def _encode_decimal(data: bytes, item: Element, dictionary: _Dictionary, depth: int) -> bytes:
    sign, digits, exponent = element.decimal128(data, item.start).as_tuple()
    # The exponent of Infinity and NaN is a letter.
    if isinstance(exponent, int) and -38 <= exponent <= 38:
        scale = max(-exponent, 0)
        unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
        if unscaled < _MAX_DECIMAL:
            return _pack_decimal(-unscaled if sign else unscaled, scale)
    return _encode_extended(data, item, dictionary, depth)


def _pack_decimal(unscaled: int, scale: int) -> bytes:
    # Spark checks both the digits and the scale against the width: 9, 18 and 38.
    magnitude = abs(unscaled)
    if magnitude < 10**9 and scale <= 9:
        return bytes((8 << 2, scale)) + unscaled.to_bytes(4, "little", signed=True)
    if magnitude < 10**18 and scale <= 18:
        return bytes((9 << 2, scale)) + unscaled.to_bytes(8, "little", signed=True)
    return bytes((10 << 2, scale)) + unscaled.to_bytes(16, "little", signed=True)


def _encode_bytes(data: bytes, item: Element, dictionary: _Dictionary, depth: int) -> bytes:
    subtype = data[item.start + 4]
    payload = data[item.start + 5 : item.stop]
    if subtype == 0:
        return _encode_binary(payload)
    if subtype == 4 and len(payload) == 16:
        return _encode_string(str(uuid.UUID(bytes=payload)).encode())
    return _encode_extended(data, item, dictionary, depth)


_WRITERS: dict[int, _Writer] = {
    element.DOUBLE: lambda data, item, *_: b"\x1c" + data[item.start : item.stop],
    element.STRING: lambda data, item, *_: _encode_string(element.string(data, item.start)),
    element.DOCUMENT: _encode_embedded,
    element.ARRAY: _encode_array,
    element.BINARY: _encode_bytes,
    element.OBJECT_ID: lambda data, item, *_: _encode_string(
        data[item.start : item.stop].hex().encode()
    ),
    element.BOOL: lambda data, item, *_: _TRUE if element.boolean(data, item.start) else _FALSE,
    element.DATE: _encode_date,
    element.NULL: lambda *_: _NULL,
    element.INT32: lambda data, item, *_: _encode_integer(element.int32(data, item.start)[0]),
    element.INT64: lambda data, item, *_: _encode_integer(element.int64(data, item.start)[0]),
    element.DECIMAL128: _encode_decimal,
}
