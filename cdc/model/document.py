"""`document.format` in one place: what becomes of a document's BSON bytes in a column.

* `variant`: (value, metadata) of a VARIANT, see cdc.model.variant for the mapping.
* `json`: text of Extended JSON v2, relaxed or canonical (`json_mode`).
* `bson`: the bytes, unchanged and unread.

A document that cannot be mapped becomes `{"$unmappable": reason, "$bson": its raw bytes}`, in the
same column and the same format, so that it neither vanishes nor stops the job.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from cdc.errors import BadOption, UnmappableValue
from cdc.model import extended_json, variant
from cdc.model.extended_json import Json

Column: TypeAlias = tuple[bytes, bytes] | str | bytes

FORMATS = ("variant", "json", "bson")
JSON_MODES = ("relaxed", "canonical")

# A document of the user's may hold a field of this name too (servers from 5.0 on take it); the
# stand-in is the one with exactly these two fields.
UNMAPPABLE = "$unmappable"
RAW = "$bson"


def encoder(format: str, json_mode: str = "relaxed") -> Callable[[bytes], Column]:
    """The function from BSON bytes to the column's value; it never raises.

    Its caller leaves it 550 of the interpreter's 1,000 frames, for the deepest document that there
    can be; a task of Spark leaves more than 900.

    The function can be called from any thread, and pickled by naming these two options only:
    build it where it is used. Raises BadOption.
    """
    if format not in FORMATS:
        raise BadOption(f"There is no document.format '{format}'.", f"Use one of {FORMATS}.")
    if json_mode not in JSON_MODES:
        raise BadOption(f"There is no Extended JSON '{json_mode}'.", f"Use one of {JSON_MODES}.")
    if format == "variant":
        return _to_variant
    if format == "bson":
        return bytes
    return _to_relaxed if json_mode == "relaxed" else _to_canonical


def canonical_json(document: bytes) -> str:
    """Canonical Extended JSON v2 text. Raises UnmappableValue as extended_json.document does."""
    return _dumps(extended_json.document(document, 0, len(document), relaxed=False))


def relaxed_json(document: bytes) -> str:
    """Relaxed Extended JSON v2 text. Raises UnmappableValue as extended_json.document does."""
    return _dumps(extended_json.document(document, 0, len(document), relaxed=True))


def unmappable_variant(reason: str, document: bytes) -> tuple[bytes, bytes]:
    """The stand-in for `document` in a VARIANT column: `$bson` is a binary."""
    return variant.from_tree({UNMAPPABLE: reason}, {RAW: document})


def unmappable_json(reason: str, document: bytes) -> str:
    """The stand-in for `document` in a JSON column: `$bson` is Extended JSON's `$binary`."""
    return _dumps({UNMAPPABLE: reason, RAW: extended_json.binary(document, subtype=0)})


def _to_variant(document: bytes) -> tuple[bytes, bytes]:
    try:
        return variant.transcode(document)
    except UnmappableValue as error:
        return unmappable_variant(error.message, document)


def _to_relaxed(document: bytes) -> str:
    try:
        return relaxed_json(document)
    except UnmappableValue as error:
        return unmappable_json(error.message, document)


def _to_canonical(document: bytes) -> str:
    try:
        return canonical_json(document)
    except UnmappableValue as error:
        return unmappable_json(error.message, document)


def _dumps(tree: dict[str, Json]) -> str:
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
