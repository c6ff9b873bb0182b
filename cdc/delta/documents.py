"""Documents of a table back as BSON: what each `document.format` can give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import VariantVal

from cdc.model import bson_from_json
from cdc.model.document import RAW, UNMAPPABLE
from cdc.model.element import elements
from cdc.model.split import key_of

# What is lost, by the type of the column and whether its text is canonical.
LOSSES: Mapping[str, str] = {
    "variant": "documents come from VARIANT: the order of fields, the width of integers, and what"
    " ObjectIds and UUIDs were (but for those in _id) are not those of the source",
    "relaxed": "documents come from relaxed Extended JSON: the width of integers is not that of the"
    " source",
}


def restored(image: Any, document_key: str) -> bytes:
    """The BSON of a document as Arrow tells it: bytes, text, or the two binaries of a VARIANT.

    Bytes and canonical Extended JSON give what the server held; see `bson_from_json` for what such
    text cannot tell. Of others the `_id` is exact, and see LOSSES. What could not be mapped when it
    was captured was kept as bytes, and is given as those.
    """
    if isinstance(image, bytes):
        return image
    tree = json.loads(image) if isinstance(image, str) else VariantVal(**image).toPython()
    if set(tree) == {UNMAPPABLE, RAW}:
        return _kept(tree[RAW])
    return _with_key(tree, document_key)


def _with_key(tree: dict[str, Any], key: str) -> bytes:
    document = bson_from_json.document(tree)
    own = key_of(bson_from_json.document(json.loads(key)))
    body = own[4:-1] + b"".join(
        bytes((each.kind,)) + each.name + b"\0" + document[each.start : each.stop]
        for each in elements(document, 0, len(document))
        if each.name != b"_id"
    )
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def _kept(raw: Any) -> bytes:
    if isinstance(raw, bytes | bytearray):
        return bytes(raw)
    wrapped = bson_from_json.document({RAW: raw})
    (item,) = elements(wrapped, 0, len(wrapped))
    return wrapped[item.start + 5 : item.stop]
