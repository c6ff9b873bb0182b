"""Conversion of images in tables back to BSON, for each `document.format`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cdc.errors import UnmappableValue
from cdc.model import key_of
from cdc.model.bson import BINARY, elements, encode_document, encode_field
from cdc.model.encoding import RAW, UNMAPPABLE, Origin, from_extended_json, variant_tree

_OF_TEXT = (
    "NaNs have no sign or payload, decimals are canonical, arrays are numbered, and a document that"
    ' is written like a value (as {"$symbol": "x"} is) became that value'
)
# What is lost, by the type of the column and whether its text is canonical.
LOSSES: Mapping[str, str] = {
    "canonical": f"documents come from canonical Extended JSON: {_OF_TEXT}",
    "relaxed": "documents come from relaxed Extended JSON: integers have the least width that holds"
    f" them, {_OF_TEXT}",
    "variant": "documents come from VARIANT: fields are in another order, integers have the least"
    " width that holds them, ObjectIds and UUIDs (but for those in _id) are strings, a decimal with"
    " an exponent above 0 has its zeros written out (5E+3 is 5000), a decimal zero has no sign,"
    f" {_OF_TEXT}",
}


def restored(image: Any, document_key: str) -> bytes:
    """Return the BSON of a document that Arrow gives as bytes, text or two binaries of a VARIANT.

    Bytes and canonical Extended JSON give the document of the server; see `bson_from_json` for what
    such text cannot express. For other formats the `_id` is exact, and LOSSES lists the
    differences. An image that could not be mapped was stored as bytes, which are returned. Raises
    UnmappableValue for an image that no encoder of this project writes.
    """
    if isinstance(image, bytes):
        return image
    is_text = isinstance(image, str)
    tree = _object(_parsed(image) if is_text else variant_tree.tree(**image))
    if tree.keys() == {UNMAPPABLE, RAW}:
        return _kept(tree[RAW])
    document = from_extended_json.document(tree, Origin.TEXT if is_text else Origin.VARIANT)
    return _with_key(document, _own_key(document_key))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnmappableValue("text that is not JSON") from error


def _object(tree: Any) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise UnmappableValue("an image that is no document")
    return tree


def _own_key(document_key: str) -> bytes:
    """BSON of `{"_id": …}`. A shard key without Extended JSON has its documentKey as bytes."""
    tree = _object(_parsed(document_key))
    if tree.keys() == {UNMAPPABLE, RAW}:
        return key_of(_kept(tree[RAW]))
    return key_of(from_extended_json.document(tree))


def _with_key(document: bytes, key: bytes) -> bytes:
    rest = [
        encode_field(each.kind, each.name, document[each.start : each.stop])
        for each in elements(document, 0, len(document))
        if each.name != b"_id"
    ]
    return encode_document([key[4:-1], *rest])


def _kept(raw: Any) -> bytes:
    if isinstance(raw, bytes):
        return raw
    wrapped = from_extended_json.document({RAW: raw})
    (item,) = elements(wrapped, 0, len(wrapped))
    if item.kind != BINARY:
        raise UnmappableValue("a placeholder without bytes")
    return wrapped[item.start + 5 : item.stop]
