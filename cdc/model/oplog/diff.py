"""The diff of an update in the oplog (`$v: 2`), applied and described as the server does.

The diff of a document has, in this order, the sections `d` (deleted fields), `u` (fields with a new
value, which remain at their place), `i` (new fields, which are appended), and for each changed
field NAME of type document or array its own diff `sNAME`. The diff of an array has `a: true`, `l`
(the new length), and for each changed element N `uN` or `sN`.

Source: doc_diff.idl, document_diff_serialization.h, document_diff_applier.cpp and
change_stream_document_diff_parser.cpp of the server, version 6.0; compared with the server in
tests/mongo/read/test_oplog.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cdc.model.bson import (
    ARRAY,
    BOOL,
    DOCUMENT,
    INT32,
    NULL,
    STRING,
    Element,
    element,
    elements,
    encode_document,
    encode_field,
    encode_string,
    field_parts,
)
from cdc.model.oplog.operation import NeedsChangeStream

# The elements of an array in a document of 16 MiB, at most.
_LONGEST = 2**24


class _Value(NamedTuple):
    kind: int
    data: bytes


class _DocumentDiff(NamedTuple):
    """The sections of a document's diff, each in the order of the diff."""

    deleted: list[bytes]
    updated: dict[bytes, _Value]
    inserted: dict[bytes, _Value]
    nested: dict[bytes, bytes]


class _ArrayDiff(NamedTuple):
    """The changes of an array by index: a new value, or the diff of the element."""

    length: int | None
    changes: dict[int, _Value | bytes]


def apply_diff(image: bytes, diff: bytes) -> bytes:
    """Return the document after an update.

    Args:
        image: the document before the update.
        diff: the field `o.diff` of the update's entry.

    Raises NeedsChangeStream if the diff has another form or does not fit the document, and
    UnmappableValue if either is corrupt BSON.
    """
    return _apply_to_document(image, _parse_document(diff))


def describe_diff(diff: bytes) -> bytes:
    """Return the `updateDescription` of the change event. Raises like `apply_diff`."""
    description = _Description()
    description.add_document(_parse_document(diff), ())
    return description.encode()


def _parse_document(diff: bytes) -> _DocumentDiff:
    parsed = _DocumentDiff([], {}, {}, {})
    for each in elements(diff, 0, len(diff)):
        value = diff[each.start : each.stop]
        if each.name == b"d" and each.kind == DOCUMENT:
            parsed.deleted.extend(field.name for field in elements(value, 0, len(value)))
        elif each.name == b"u" and each.kind == DOCUMENT:
            parsed.updated.update(_fields(value))
        elif each.name == b"i" and each.kind == DOCUMENT:
            parsed.inserted.update(_fields(value))
        elif each.name[:1] == b"s" and each.kind == DOCUMENT:
            parsed.nested[each.name[1:]] = value
        else:
            raise NeedsChangeStream("an unknown part of an update's diff")
    return parsed


def _parse_array(diff: bytes) -> _ArrayDiff:
    length, changes = None, dict[int, _Value | bytes]()
    for each in elements(diff, 0, len(diff))[1:]:
        value, section, index = diff[each.start : each.stop], each.name[:1], each.name[1:]
        if each.name == b"l" and each.kind == INT32:
            length = element.int32(value, 0)[0]
        elif section == b"u" and index.isdigit():
            changes[int(index)] = _Value(each.kind, value)
        elif section == b"s" and index.isdigit() and each.kind == DOCUMENT:
            changes[int(index)] = value
        else:
            raise NeedsChangeStream("an unknown part of an update's diff")
    return _ArrayDiff(length, changes)


def _fields(document: bytes) -> Iterator[tuple[bytes, _Value]]:
    for each in elements(document, 0, len(document)):
        yield each.name, _Value(each.kind, document[each.start : each.stop])


def _is_of_array(diff: bytes) -> bool:
    """Whether a nested diff is that of an array: it begins with `a: true`."""
    return diff[4:7] == b"%ca\0" % BOOL


def _apply_to_document(image: bytes, diff: _DocumentDiff) -> bytes:
    fields, left = list[bytes](), set(diff.updated) | set(diff.nested)
    omitted = {*diff.deleted, *diff.inserted}
    for each in elements(image, 0, len(image)):
        if each.name in omitted:
            continue
        value = _Value(each.kind, image[each.start : each.stop])
        if each.name in diff.updated:
            value = diff.updated[each.name]
        elif each.name in diff.nested:
            value = _apply_nested(value, diff.nested[each.name])
        left.discard(each.name)
        fields += field_parts(value.kind, each.name, value.data)
    if left:
        raise NeedsChangeStream("an update of a field that its pre-image does not have")
    fields += [encode_field(value.kind, name, value.data) for name, value in diff.inserted.items()]
    return encode_document(fields)


def _apply_nested(value: _Value, diff: bytes) -> _Value:
    if value.kind != (ARRAY if _is_of_array(diff) else DOCUMENT):
        raise NeedsChangeStream("an update of a field with another type in its pre-image")
    if value.kind == ARRAY:
        return _Value(ARRAY, _apply_to_array(value.data, _parse_array(diff)))
    return _Value(DOCUMENT, _apply_to_document(value.data, _parse_document(diff)))


def _apply_to_array(image: bytes, diff: _ArrayDiff) -> bytes:
    values = [_Value(each.kind, image[each.start : each.stop]) for each in _items(image)]
    if diff.length is not None:
        del values[diff.length :]
    length = max(diff.length or 0, len(values), *(index + 1 for index in diff.changes))
    if length > _LONGEST:
        raise NeedsChangeStream("an array that is longer than a document")
    values += [_Value(NULL, b"")] * (length - len(values))
    for index, change in diff.changes.items():
        new = change if isinstance(change, _Value) else _apply_nested(values[index], change)
        values[index] = new
    return _array(values)


def _items(image: bytes) -> list[Element]:
    return elements(image, 0, len(image))


def _array(values: list[_Value]) -> bytes:
    return encode_document(
        encode_field(value.kind, b"%d" % index, value.data) for index, value in enumerate(values)
    )


class _Description:
    """Collects an `updateDescription` in the server's order."""

    def __init__(self) -> None:
        self._updated = list[bytes]()
        self._removed = list[_Value]()
        self._truncated = list[_Value]()

    def add_document(self, diff: _DocumentDiff, path: tuple[bytes, ...]) -> None:
        for name, value in (*diff.updated.items(), *diff.inserted.items()):
            self._add_updated((*path, name), value)
        for name in diff.deleted:
            self._removed.append(_Value(STRING, encode_string(b".".join((*path, name)))))
        for name, nested in diff.nested.items():
            self._add_nested(nested, (*path, name))

    def _add_array(self, diff: _ArrayDiff, path: tuple[bytes, ...]) -> None:
        if diff.length is not None:
            fields = [
                encode_field(STRING, b"field", encode_string(b".".join(path))),
                encode_field(INT32, b"newSize", diff.length.to_bytes(4, "little")),
            ]
            self._truncated.append(_Value(DOCUMENT, encode_document(fields)))
        for index, change in diff.changes.items():
            below = (*path, b"%d" % index)
            if isinstance(change, _Value):
                self._add_updated(below, change)
            else:
                self._add_nested(change, below)

    def _add_updated(self, path: tuple[bytes, ...], value: _Value) -> None:
        self._updated.append(encode_field(value.kind, b".".join(path), value.data))

    def _add_nested(self, diff: bytes, path: tuple[bytes, ...]) -> None:
        if _is_of_array(diff):
            self._add_array(_parse_array(diff), path)
        else:
            self.add_document(_parse_document(diff), path)

    def encode(self) -> bytes:
        return encode_document(
            [
                encode_field(DOCUMENT, b"updatedFields", encode_document(self._updated)),
                encode_field(ARRAY, b"removedFields", _array(self._removed)),
                encode_field(ARRAY, b"truncatedArrays", _array(self._truncated)),
            ]
        )
