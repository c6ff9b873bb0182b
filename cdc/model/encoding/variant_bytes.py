"""Reader of VARIANT bytes that checks all bounds and returns None for damaged bytes.

`cdc.model.encoding.variant` describes the format. An object is valid only if its names ascend in
Spark's order; so no name occurs twice. The values of an object or array must fill it, in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.encoding.variant import pack_metadata

# The lower two bits of a value's first byte.
PRIMITIVE: Final = 0
SHORT_STRING: Final = 1
OBJECT: Final = 2
ARRAY: Final = 3
# The upper six bits of a primitive's first byte.
NULL: Final = 0
TRUE: Final = 1
FALSE: Final = 2
INT1: Final = 3
INT8: Final = 6
DOUBLE: Final = 7
DECIMAL4: Final = 8
DECIMAL16: Final = 10
DATE: Final = 11
TIMESTAMP: Final = 12
TIMESTAMP_NTZ: Final = 13
FLOAT: Final = 14
BINARY: Final = 15
STRING: Final = 16
# The bytes that each primitive takes; for binaries and strings, the bytes before their content.
SIZES: Final = (1, 1, 1, 2, 3, 5, 9, 9, 6, 10, 18, 5, 9, 9, 5, 5, 5, 9, 9, 9, 17)

# Spark sorts names by UTF-16 units. In that order characters above U+FFFF (first UTF-8 byte 0xF0
# to 0xF4) come before those from U+E000 on (0xEE and 0xEF). This table maps bytes accordingly.
UTF16: Final = bytes([*range(0xEE), 0xF3, 0xF4, *range(0xEE, 0xF3), *range(0xF5, 0x100)])


@dataclass(frozen=True, slots=True)
class Inner:
    """A value inside another. For a field: the id of its name, and the position of that id."""

    start: int
    stop: int
    id_at: int = -1
    id: int = -1


def dictionary(metadata: bytes) -> list[bytes] | None:
    """The names of a dictionary, indexed by id; None if the metadata are damaged."""
    if not metadata or metadata[0] & 15 != 1:
        return None
    width = (metadata[0] >> 6) + 1
    count = _read_number(metadata, 1, width)
    begin = 1 + (count + 2) * width
    if begin > len(metadata):
        return None
    ends = [
        begin + _read_number(metadata, 1 + index * width, width) for index in range(1, count + 2)
    ]
    if ends[0] != begin or ends != sorted(ends) or ends[-1] > len(metadata):
        return None
    return [metadata[a:b] for a, b in itertools.pairwise(ends)]


def stop_of(data: bytes, at: int, end: int) -> int | None:
    """The end of the value that begins at `at`; None if it would be after `end`."""
    if at >= end:
        return None
    kind = data[at] >> 2
    if data[at] & 3 == SHORT_STRING:
        stop = at + 1 + kind
    elif data[at] & 3 == PRIMITIVE:
        if kind >= len(SIZES):
            return None
        stop = at + SIZES[kind]
        if kind in (BINARY, STRING) and stop <= end:
            stop += _read_number(data, at + 1, 4)
    else:
        layout = _Layout.of(data, at, end)
        if layout is None:
            return None
        stop = layout.begin + layout.offset(data, layout.count)
    return stop if stop <= end else None


def members(data: bytes, start: int, stop: int) -> list[Inner] | None:
    """Fields of the object that fills those bytes, names unchecked; None for any other value."""
    return _read_inner(data, start, stop, OBJECT)


def fields(data: bytes, start: int, stop: int, names: Sequence[bytes] | None) -> list[Inner] | None:
    """Fields of the object that fills those bytes, with ascending names; else None."""
    inner = members(data, start, stop)
    if inner is None or names is None or any(each.id >= len(names) for each in inner):
        return None
    keys = [names[each.id].translate(UTF16) for each in inner]
    return inner if all(a < b for a, b in itertools.pairwise(keys)) else None


def elements(data: bytes, start: int, stop: int) -> list[Inner] | None:
    """Elements of the array that fills those bytes; None for any other value."""
    return _read_inner(data, start, stop, ARRAY)


def trim_dictionary(
    value: bytes, metadata: bytes, names: Sequence[bytes] | None
) -> tuple[bytes, bytes]:
    """The value with a dictionary of only the names that it uses; unchanged if it is damaged."""
    if stop_of(value, 0, len(value)) != len(value):
        return value, metadata
    within, named = [Inner(0, len(value))], list[tuple[int, Inner]]()
    for each in within:
        kind = value[each.start] & 3
        if kind < OBJECT:
            continue
        found = elements(value, each.start, each.stop)
        if kind == OBJECT:
            found = fields(value, each.start, each.stop, names)
            named += [(_id_width(value[each.start]), field) for field in found or ()]
        if found is None:
            return value, metadata
        within += found
    # The new id fits in the bytes of the old one, because it is never greater.
    numbers = {id: new for new, id in enumerate(sorted({field.id for _, field in named}))}
    out = bytearray(value)
    for width, field in named:
        out[field.id_at : field.id_at + width] = numbers[field.id].to_bytes(width, "little")
    return bytes(out), pack_metadata([names[id] for id in numbers] if names else [])


def _read_inner(data: bytes, start: int, stop: int, kind: int) -> list[Inner] | None:
    if start >= stop or data[start] & 3 != kind:
        return None
    layout = _Layout.of(data, start, stop)
    if layout is None or layout.begin + layout.offset(data, layout.count) != stop:
        return None
    found, filled = list[Inner](), layout.begin
    for index in range(layout.count):
        at = layout.begin + layout.offset(data, index)
        end = stop_of(data, at, stop)
        if end is None:
            return None
        filled += end - at
        id_at = layout.ids + index * layout.id_width
        found.append(Inner(at, end, id_at, _read_number(data, id_at, layout.id_width)))
    return found if filled == stop else None


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of an object or array: where the name ids, the offsets and the values begin."""

    count: int
    ids: int
    id_width: int
    offsets: int
    offset_width: int
    begin: int

    @classmethod
    def of(cls, data: bytes, at: int, end: int) -> _Layout | None:
        is_object = data[at] & 3 == OBJECT
        is_large = data[at] >> (6 if is_object else 4) & 1
        ids = at + (5 if is_large else 2)
        if ids > end:
            return None
        count, id_width = _read_number(data, at + 1, ids - at - 1), _id_width(data[at])
        width = (data[at] >> 2 & 3) + 1
        offsets = ids + count * id_width
        begin = offsets + (count + 1) * width
        return cls(count, ids, id_width, offsets, width, begin) if begin <= end else None

    def offset(self, data: bytes, index: int) -> int:
        return _read_number(data, self.offsets + index * self.offset_width, self.offset_width)


def _id_width(header: int) -> int:
    """Bytes of a name id; 0 in an array, whose elements have no names."""
    return (header >> 4 & 3) + 1 if header & 3 == OBJECT else 0


def _read_number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")
