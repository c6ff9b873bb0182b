"""The families of a document's values: which type of a column could take them.

A family is the type that Spark's `schema_of_variant` states, without the types within: BIGINT,
DOUBLE, DECIMAL(digits,scale), STRING, OBJECT, ARRAY ….
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from cdc.model.encoding import variant_bytes as v
from cdc.model.typed import casts

_NAMES = {
    v.TRUE: "BOOLEAN",
    v.FALSE: "BOOLEAN",
    v.DOUBLE: "DOUBLE",
    v.DATE: "DATE",
    v.TIMESTAMP: "TIMESTAMP",
    v.TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
    v.FLOAT: "FLOAT",
    v.BINARY: "BINARY",
    v.STRING: "STRING",
}
_OTHERS = {v.SHORT_STRING: "STRING", v.OBJECT: "OBJECT", v.ARRAY: "ARRAY"}
# Most documents of a collection have the same dictionary of names.
_names = lru_cache(maxsize=256)(v.dictionary)


def list_families(value: bytes, metadata: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and the family of each top-level field of a VARIANT that is not null.

    Nothing for a VARIANT that is no object, or damaged.
    """
    names = _names(metadata)
    for field in v.fields(value, 0, len(value), names) or ():
        family = _family(value[field.start : field.stop])
        if family is not None and names is not None:
            yield names[field.id].decode(), family


def _family(value: bytes) -> str | None:
    """The family of a value; None for null."""
    if value[0] & 3 != v.PRIMITIVE:
        return _OTHERS[value[0] & 3]
    kind = value[0] >> 2
    if kind == v.NULL:
        return None
    if v.INT1 <= kind <= v.INT8:
        return "BIGINT"
    if v.DECIMAL4 <= kind <= v.DECIMAL16:
        number = casts.decode_number(value)
        if number is casts.MISFIT:
            return None
        _, digits, exponent = number.as_tuple()
        scale = max(0, -exponent)
        return f"DECIMAL({max(len(digits) + max(0, exponent), scale)},{scale})"
    return _NAMES[kind]
