"""A VARIANT as a tree of Python's values, each exactly as it is.

PySpark's own `toPython` multiplies a decimal in the current context, whose 28 digits are fewer than
the 38 of a VARIANT, and needs more of the interpreter's frames than a deep document leaves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from cdc.errors import UnmappableValue
from cdc.model import element
from cdc.model import variant_bytes as v

# A code with scope is two levels, and the innermost value may be Extended JSON of three more.
_DEEPEST: Final = 2 * element.MAX_DEPTH + 4
_DAY: Final = 86_400_000


def tree(value: bytes, metadata: bytes) -> Any:
    """Objects are dicts, in the order of the VARIANT; arrays, strings, numbers, binaries and null
    what they are in Python, dates and timestamps (with or without a zone: UTC) `DatetimeMS`, which
    cuts off what is below a millisecond.

    Raises UnmappableValue for damaged bytes, and for types that BSON does not have.
    """
    names = v.dictionary(metadata)
    if names is None or v.stop_of(value, 0, len(value)) != len(value):
        raise _damaged()
    return _value(value, 0, len(value), [element.text(name) for name in names], 0)


def _value(data: bytes, start: int, stop: int, names: Sequence[str], depth: int) -> Any:
    # One frame for each level, for the sake of the deepest document: nothing here is a function of
    # its own, and nothing a comprehension, that leads further down.
    if depth > _DEEPEST:
        raise UnmappableValue(f"values nested more than {_DEEPEST} levels deep")
    kind = data[start] & 3
    if kind == v.OBJECT:
        fields: dict[str, Any] = {}
        for each in _sound(v.members(data, start, stop)):
            name = names[each.id] if each.id < len(names) else None
            if name is None or name in fields:
                raise _damaged()
            fields[name] = _value(data, each.start, each.stop, names, depth + 1)
        return fields
    if kind == v.ARRAY:
        items: list[Any] = []
        for each in _sound(v.elements(data, start, stop)):
            items.append(_value(data, each.start, each.stop, names, depth + 1))
        return items
    if kind == v.SHORT_STRING:
        return element.text(data[start + 1 : stop])
    read = _PRIMITIVES.get(data[start] >> 2)
    if read is None:
        raise UnmappableValue("a VARIANT holds a type that BSON does not have")
    return read(data[start + 1 : stop])


def _sound(found: list[v.Inner] | None) -> list[v.Inner]:
    if found is None:
        raise _damaged()
    return found


def _damaged() -> UnmappableValue:
    return UnmappableValue("damaged VARIANT")


def _integer(body: bytes) -> int:
    return int.from_bytes(body, "little", signed=True)


def _decimal(body: bytes) -> Decimal:
    # From text: a constructor keeps every digit, arithmetic those of the current context.
    return Decimal(f"{_integer(body[1:])}E-{body[0]}")


def _micros(body: bytes) -> DatetimeMS:
    return DatetimeMS(_integer(body) // 1000)


_PRIMITIVES: Final[Mapping[int, Callable[[bytes], Any]]] = {
    v.NULL: lambda body: None,
    v.TRUE: lambda body: True,
    v.FALSE: lambda body: False,
    **dict.fromkeys(range(v.INT1, v.INT8 + 1), _integer),
    v.DOUBLE: lambda body: struct.unpack("<d", body)[0],
    **dict.fromkeys(range(v.DECIMAL4, v.DECIMAL16 + 1), _decimal),
    v.DATE: lambda body: DatetimeMS(_integer(body) * _DAY),
    v.TIMESTAMP: _micros,
    v.TIMESTAMP_NTZ: _micros,
    v.FLOAT: lambda body: struct.unpack("<f", body)[0],
    v.BINARY: lambda body: body[4:],
    v.STRING: lambda body: element.text(body[4:]),
}
