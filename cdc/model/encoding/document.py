"""`document.format`: the encoders from BSON bytes to a document column.

* `variant`: (value, metadata) of a VARIANT, see cdc.model.encoding.variant for the mapping.
* `json`: text of Extended JSON v2, relaxed or canonical (`json_mode`).
* `bson`: the bytes, unchanged and unchecked.

A document that cannot be mapped becomes `{"$unmappable": reason, "$bson": its raw bytes}`, in the
same column and the same format. So it is neither lost nor does it stop the job.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from cdc.errors import BadOption, UnmappableValue
from cdc.model.bson import Json, extended_json
from cdc.model.encoding import variant

Column: TypeAlias = tuple[bytes, bytes] | str | bytes

FORMATS = ("variant", "json", "bson")
JSON_MODES = ("relaxed", "canonical")

# A user's document may contain a field of this name too (servers from 5.0 on accept it). Only a
# document with exactly these two fields is a placeholder.
UNMAPPABLE = "$unmappable"
RAW = "$bson"
# A placeholder as text: a regular expression of Java, Python and RE2.
PLACEHOLDER_JSON = (
    rf'^\{{"\{UNMAPPABLE}":"(?:[^"\\]|\\.)*","\{RAW}":'
    r'\{"\$binary":\{"base64":"[A-Za-z0-9+/=]*","subType":"00"\}\}\}$'
)


def encoder(format: str, json_mode: str = "relaxed") -> Callable[[bytes], Column]:
    """Return the function from BSON bytes to the column's value; that function never raises.

    Its caller must leave it 550 of the interpreter's 1,000 frames, for the deepest possible
    document; a Spark task leaves more than 900. The function may be called from any thread. Do not
    pickle it: pass the two options, and call `encoder` where the function is used.

    Raises BadOption for an unknown format or JSON mode.
    """
    if format not in FORMATS:
        raise BadOption(f"There is no document.format '{format}'.", f"Use one of {FORMATS}.")
    if json_mode not in JSON_MODES:
        raise BadOption(f"There is no Extended JSON '{json_mode}'.", f"Use one of {JSON_MODES}.")
    if format == "variant":
        return _encode_variant
    if format == "bson":
        return bytes
    return _encode_relaxed if json_mode == "relaxed" else _encode_canonical


def canonical_json(document: bytes) -> str:
    """Canonical Extended JSON v2 text. Raises UnmappableValue as extended_json.document does."""
    return _dumps(extended_json.document(document, 0, len(document), relaxed=False))


def relaxed_json(document: bytes) -> str:
    """Relaxed Extended JSON v2 text. Raises UnmappableValue as extended_json.document does."""
    return _dumps(extended_json.document(document, 0, len(document), relaxed=True))


def unmappable_variant(reason: str, document: bytes) -> tuple[bytes, bytes]:
    """The placeholder for `document` in a VARIANT column: `$bson` is a binary."""
    return variant.from_tree({UNMAPPABLE: reason}, {RAW: document})


def unmappable_json(reason: str, document: bytes) -> str:
    """The placeholder for `document` in a JSON column: `$bson` is Extended JSON's `$binary`."""
    return _dumps({UNMAPPABLE: reason, RAW: extended_json.binary(document, subtype=0)})


def _encode_variant(document: bytes) -> tuple[bytes, bytes]:
    try:
        return variant.transcode(document)
    except UnmappableValue as error:
        return unmappable_variant(error.message, document)


def _encode_relaxed(document: bytes) -> str:
    try:
        return relaxed_json(document)
    except UnmappableValue as error:
        return unmappable_json(error.message, document)


def _encode_canonical(document: bytes) -> str:
    try:
        return canonical_json(document)
    except UnmappableValue as error:
        return unmappable_json(error.message, document)


def _dumps(tree: dict[str, Json]) -> str:
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
