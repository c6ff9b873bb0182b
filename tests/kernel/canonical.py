"""VARIANTs as trees that are equal if, and only if, the VARIANTs have the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdc.model.encoding import variant_bytes as v


def canonical(value: bytes, metadata: bytes) -> Any:
    """The bytes of each value that contains no other; a dict for an object, a list for an array.

    So numbers of the same value but of another type differ, and the order of the fields, and which
    names the dictionary has besides, make no difference. The VARIANT must be valid.
    """
    names = v.dictionary(metadata)
    assert names is not None
    return _canonical(value, 0, len(value), names)


def _canonical(data: bytes, start: int, stop: int, names: Sequence[bytes]) -> Any:
    kind = data[start] & 3
    if kind == v.OBJECT:
        fields = v.fields(data, start, stop, names)
        assert fields is not None, "no valid object"
        return {names[each.id]: _canonical(data, each.start, each.stop, names) for each in fields}
    if kind == v.ARRAY:
        elements = v.elements(data, start, stop)
        assert elements is not None, "no valid array"
        return [_canonical(data, each.start, each.stop, names) for each in elements]
    assert v.stop_of(data, start, stop) == stop
    return data[start:stop]


def canonical_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with canonical images."""
    return [{name: _canonical_cell(cell) for name, cell in row.items()} for row in rows]


def _canonical_cell(cell: Any) -> Any:
    is_variant = isinstance(cell, dict) and cell.keys() == {"value", "metadata"}
    return canonical(**cell) if is_variant else cell
