"""The change event of an operation.

Source: document_source_change_stream_transform.cpp of the server, version 6.0.
"""

from __future__ import annotations

from typing import Final

from bson.raw_bson import RawBSONDocument

from cdc.model import resume_token
from cdc.model.bson import (
    DOCUMENT,
    STRING,
    Element,
    elements,
    encode_document,
    encode_field,
    encode_string,
    field_parts,
)
from cdc.model.oplog.diff import apply_diff, describe_diff
from cdc.model.oplog.operation import NeedsChangeStream, Operation

_VERSION: Final = (2).to_bytes(4, "little")


def change_event(operation: Operation, before: bytes | None) -> RawBSONDocument:
    """Return the change event of an operation as a change stream reports it, with both images.

    It has all fields of which the connector makes rows.

    Args:
        operation: the operation.
        before: the recorded pre-image; None for an insert.

    Raises NeedsChangeStream.
    """
    fields, entry = operation.fields, operation.entry
    if before is None and operation.pre_image is not None:
        raise NeedsChangeStream("a missing pre-image")
    document = bytes(fields["o"].raw)
    name, key, after, update = "delete", document, None, None
    if fields["op"] != "d":
        key = bytes(fields["o2"].raw) if "o2" in fields else b""
        name, after = "insert", document
    if fields["op"] == "u":
        assert before is not None
        name, after, update = _read_update(document, before)
    if not key:
        raise NeedsChangeStream("an oplog entry without document key")
    position = resume_token.event_position(entry["ts"], operation.number, bytes(fields["ui"]), key)
    namespace, whole = operation.namespace, _Fields(entry)
    token = encode_document([_string(b"_data", position)])
    ns = [_string(b"db", namespace.db), _string(b"coll", namespace.coll)]
    is_transaction = entry["op"] == "c"
    return RawBSONDocument(
        encode_document(
            [
                *((whole.copy(b"lsid"), whole.copy(b"txnNumber")) if is_transaction else ()),
                encode_field(DOCUMENT, b"_id", token),
                _string(b"operationType", name),
                whole.copy(b"ts", b"clusterTime"),
                whole.copy(b"wall", b"wallTime"),
                *_document(b"fullDocument", after),
                encode_field(DOCUMENT, b"ns", encode_document(ns)),
                *_document(b"documentKey", key),
                *_document(b"updateDescription", update),
                *_document(b"fullDocumentBeforeChange", before),
            ]
        )
    )


def _read_update(change: bytes, before: bytes) -> tuple[str, bytes, bytes | None]:
    """Return the type of an update's event, its after-image and its description."""
    found = {each.name: each for each in elements(change, 0, len(change))}
    if b"_id" in found:
        return "replace", change, None
    version, diff = found.get(b"$v"), found.get(b"diff")
    if version is None or diff is None or len(found) > 2 or diff.kind != DOCUMENT:
        raise NeedsChangeStream("an update of an unknown form")
    if change[version.start : version.stop] != _VERSION:
        raise NeedsChangeStream("an unknown version of an update's diff")
    changed = change[diff.start : diff.stop]
    return "update", apply_diff(before, changed), describe_diff(changed)


class _Fields:
    """The fields of an entry, copied under the name that they have in an event."""

    def __init__(self, entry: RawBSONDocument) -> None:
        self._data = bytes(entry.raw)
        found = elements(self._data, 0, len(self._data))
        self._found: dict[bytes, Element] = {each.name: each for each in found}

    def copy(self, name: bytes, new: bytes | None = None) -> bytes:
        """Return the field; raises NeedsChangeStream if the entry does not have it."""
        found = self._found.get(name)
        if found is None:
            raise NeedsChangeStream(f"an oplog entry without {name.decode()}")
        return encode_field(found.kind, new or name, self._data[found.start : found.stop])


def _string(name: bytes, text: str) -> bytes:
    return encode_field(STRING, name, encode_string(text.encode()))


def _document(name: bytes, document: bytes | None) -> tuple[bytes, ...]:
    return () if document is None else field_parts(DOCUMENT, name, document)
