"""The reference encoders of `document.format`: BSON bytes to VARIANT, JSON or BSON.

These define the encoding. `cdc.kernel` contains the same encoders compiled; tests compare both.
"""

from cdc.model.encoding import document, from_extended_json, variant_bytes, variant_tree
from cdc.model.encoding.document import (
    PLACEHOLDER_JSON,
    RAW,
    UNMAPPABLE,
    Column,
    encoder,
    relaxed_json,
    unmappable_variant,
)
from cdc.model.encoding.from_extended_json import Origin
from cdc.model.encoding.variant import FIRST_MILLI, LAST_MILLI, pack_object
from cdc.model.encoding.variant_bytes import (
    ARRAY,
    BINARY,
    NULL,
    OBJECT,
    PRIMITIVE,
    SHORT_STRING,
    SIZES,
    STRING,
    UTF16,
)

__all__ = [
    "ARRAY",
    "BINARY",
    "FIRST_MILLI",
    "LAST_MILLI",
    "NULL",
    "OBJECT",
    "PLACEHOLDER_JSON",
    "PRIMITIVE",
    "RAW",
    "SHORT_STRING",
    "SIZES",
    "STRING",
    "UNMAPPABLE",
    "UTF16",
    "Column",
    "Origin",
    "document",
    "encoder",
    "from_extended_json",
    "pack_object",
    "relaxed_json",
    "unmappable_variant",
    "variant_bytes",
    "variant_tree",
]
