"""A VARIANT as a tree of Python values, without loss.

PySpark's own `toPython` is no alternative. It multiplies decimals in the current context, which has
28 digits where a VARIANT has 38. It also needs more interpreter frames than a deep document leaves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from cdc.errors import UnmappableValue
from cdc.model.bson import element
from cdc.model.encoding import variant_bytes as v

# A code with scope takes two levels, and the Extended JSON of the innermost value up to three more.
_DEEPEST: Final = 2 * element.MAX_DEPTH + 4
_DAY: Final = 86_400_000


def tree(value: bytes, metadata: bytes) -> Any:
    """Read a VARIANT as a Python tree.

    Objects become dicts in the order of the VARIANT. Arrays, strings, numbers, binaries and null
    become their Python equivalents. Dates and timestamps (with or without a zone: UTC) become
    `DatetimeMS`, truncated to milliseconds.

    Raises UnmappableValue for damaged bytes, and for types that BSON does not have.
    """
    names = v.dictionary(metadata)
    if names is None or v.stop_of(value, 0, len(value)) != len(value):
        raise _damaged_error()
    return _read_value(value, 0, len(value), [element.text(name) for name in names], 0)


def _read_value(data: bytes, start: int, stop: int, names: Sequence[str], depth: int) -> Any:
    # One frame per level, or the deepest document would exceed the interpreter's limit. So the
    # recursion goes through no helper function and no comprehension.
    if depth > _DEEPEST:
        raise UnmappableValue(f"values nested more than {_DEEPEST} levels deep")
    kind = data[start] & 3
    if kind == v.OBJECT:
        fields: dict[str, Any] = {}
        for each in _require_sound(v.members(data, start, stop)):
            name = names[each.id] if each.id < len(names) else None
            if name is None or name in fields:
                raise _damaged_error()
            fields[name] = _read_value(data, each.start, each.stop, names, depth + 1)
        return fields
    if kind == v.ARRAY:
        items: list[Any] = []
        for each in _require_sound(v.elements(data, start, stop)):
            items.append(_read_value(data, each.start, each.stop, names, depth + 1))
        return items
    if kind == v.SHORT_STRING:
        return element.text(data[start + 1 : stop])
    read = _PRIMITIVES.get(data[start] >> 2)
    if read is None:
        raise UnmappableValue("a VARIANT contains a type that BSON does not have")
    return read(data[start + 1 : stop])


def _require_sound(inner: list[v.Inner] | None) -> list[v.Inner]:
    if inner is None:
        raise _damaged_error()
    return inner


def _damaged_error() -> UnmappableValue:
    return UnmappableValue("damaged VARIANT")


def _read_integer(body: bytes) -> int:
    return int.from_bytes(body, "little", signed=True)


def _read_decimal(body: bytes) -> Decimal:
    # From text: the constructor keeps every digit, arithmetic rounds to the current context.
    return Decimal(f"{_read_integer(body[1:])}E-{body[0]}")


def _read_micros(body: bytes) -> DatetimeMS:
    return DatetimeMS(_read_integer(body) // 1000)


_PRIMITIVES: Final[Mapping[int, Callable[[bytes], Any]]] = {
    v.NULL: lambda body: None,
    v.TRUE: lambda body: True,
    v.FALSE: lambda body: False,
    **dict.fromkeys(range(v.INT1, v.INT8 + 1), _read_integer),
    v.DOUBLE: lambda body: struct.unpack("<d", body)[0],
    **dict.fromkeys(range(v.DECIMAL4, v.DECIMAL16 + 1), _read_decimal),
    v.DATE: lambda body: DatetimeMS(_read_integer(body) * _DAY),
    v.TIMESTAMP: _read_micros,
    v.TIMESTAMP_NTZ: _read_micros,
    v.FLOAT: lambda body: struct.unpack("<f", body)[0],
    v.BINARY: lambda body: body[4:],
    v.STRING: lambda body: element.text(body[4:]),
}
