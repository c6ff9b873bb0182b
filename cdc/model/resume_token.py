"""Resume tokens: their order, their cluster time, and their decoded contents.

A token's `_data` is the hex of a KeyString that begins with the cluster time: byte 0x82 (the type),
then seconds and increment as big-endian 32-bit numbers. Upper-case hex sorts as the bytes do, so
`_data` itself is the total order of all events: the column `position`. That holds for versions 1
(servers from 4.2) and 2 (from 7.0, and on 6.0 where large events are split). Version 0 (4.0) has
its time at the same place.
Source: jstests and `resume_token.cpp` of the server; tested on 4.2, 5.0 and 6.0.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from dataclasses import dataclass, replace
from typing import Final, Literal

from bson.timestamp import Timestamp

from cdc.errors import BadToken, UnmappableValue
from cdc.model import timestamp
from cdc.model.bson import element, elements, encode_document, encode_field
from cdc.model.keystring import keystring

Kind = Literal["high_water_mark", "event"]

_TIMESTAMP_TYPE: Final = "82"
_LAST_VERSION: Final = 2
_EXPLICIT: Final = 2  # from this version on every event names its type, and no field is omitted
_UUID: Final = struct.pack("<iB", 16, 4)
_EVENT: Final = 128
_KINDS: Final[dict[int, Kind]] = {0: "high_water_mark", _EVENT: "event"}
_REMEDY: Final = "Copy `_data` as the server sent it, and the `_typeBits` that came with it."


def _encode_rest(kind: int, index: int, *event: bytes) -> str:
    """The rest of a version 1 token, after its time.

    The fields are the version, the kind, the index in a transaction, whether the token comes from
    an invalidate event, and those of the event.
    """
    numbers = [struct.pack("<BBi", element.INT32, 0, number) for number in (1, kind, index)]
    origin = bytes([element.BOOL, 0, False])
    key, _ = keystring.encode(encode_document([*numbers, origin, *event]))
    return key.hex().upper()


# It sorts before all events.
_HIGH_WATER_MARK: Final = _encode_rest(0, 0)


@dataclass(frozen=True, slots=True)
class Token:
    """The contents of a token. `txn_op_index` counts the events of one cluster time.

    Documents are BSON bytes. `operation_type` is present in version 2, and in version 1 for the
    additional events of `showExpandedEvents`. It comes with a document key, an operation
    description, or neither. `fragment` counts from 0 if the event was split. A token of version 0
    does not contain its kind: the server treats it as an event's.
    """

    version: int
    kind: Kind
    cluster_time: Timestamp
    txn_op_index: int = 0
    from_invalidate: bool = False
    uuid: uuid.UUID | None = None
    document_key: bytes | None = None
    operation_type: str | None = None
    operation_description: bytes | None = None
    fragment: int | None = None


def high_water_mark(time: Timestamp) -> str:
    """The position after every event before `time` and before every event at `time`."""
    return f"{_TIMESTAMP_TYPE}{time.time:08X}{time.inc:08X}{_HIGH_WATER_MARK}"


def position_after(time: Timestamp) -> str:
    """The position after every event at `time` and before any later one.

    A document read as of `time` gets this position, because it reflects all of those events. It is
    the high-water mark of the next time.
    """
    return high_water_mark(timestamp.after(time))


def event_position(time: Timestamp, index: int, collection: bytes, document_key: bytes) -> str:
    """The position of a row event, as servers before 7.0 write it (version 1).

    Args:
        time: the cluster time.
        index: the index of the event in its transaction; 0 outside transactions.
        collection: the 16 bytes of the collection's UUID.
        document_key: BSON of the event's `documentKey`.
    """
    fields = [
        encode_field(element.BINARY, b"", _UUID + collection),
        encode_field(element.DOCUMENT, b"", document_key),
    ]
    rest = _encode_rest(_EVENT, index, *fields)
    return f"{_TIMESTAMP_TYPE}{time.time:08X}{time.inc:08X}{rest}"


def parse(text: str) -> str:
    """The position that a user wrote: a token's `_data`, or the whole token (`{"_data": …}`).

    Raises BadToken if the text is neither, or if the token is that of a fragment of an event.
    """
    data = text.strip()
    try:
        if data.startswith("{"):
            data = str(json.loads(data)["_data"])
        if decode(data).fragment is not None:
            raise BadToken("it is the position of a fragment of an event")
    except (BadToken, ValueError, KeyError, RecursionError) as error:
        raise BadToken(
            "The given text is no resume token.",
            'Write it as {"_data": "82…"}, as 82… alone, or as the position of a row.',
        ) from error
    return data.upper()


def time_of(data: str) -> Timestamp:
    """The cluster time at the beginning of a token's `_data`; the rest is not checked.

    Raises BadToken if `_data` is not hexadecimal or does not begin with a cluster time.
    """
    try:
        head = bytes.fromhex(data[:18])
    except ValueError as error:
        raise BadToken("A resume token is not hexadecimal.") from error
    if len(head) != 9 or head[0] != 0x82:
        raise BadToken("A resume token does not begin with a cluster time.")
    return Timestamp(int.from_bytes(head[1:5]), int.from_bytes(head[5:9]))


def decode(data: str, type_bits: bytes | None = None) -> Token:
    """Decode the token with this `_data` and these `_typeBits`.

    The server sends no type bits if all are zero: pass empty bytes then. Pass None if the type bits
    are unknown, as for a row's `position`; numbers in the key then have the right value, but
    perhaps another type. This is stricter than the server, which skips bytes that it never writes.
    Raises BadToken; its message names the fault but quotes no value.
    """
    try:
        if len(data) % 2 or not re.fullmatch("[0-9A-Fa-f]+", data):
            raise BadToken("it is not hexadecimal")
        return _decode_fields(_Fields(keystring.decode(bytes.fromhex(data), type_bits)))
    except (BadToken, UnmappableValue) as error:
        raise BadToken(f"This is no resume token: {error.message}.", _REMEDY) from error


def _decode_fields(fields: _Fields) -> Token:
    inc, seconds = struct.unpack("<II", fields.take(element.TIMESTAMP, "cluster time"))
    version = fields.number("version")
    if version > _LAST_VERSION:
        raise BadToken(f"its version is {version}, but only 0 to {_LAST_VERSION} are known")
    kind = _KINDS.get(fields.number("type")) if version else "event"
    if kind is None:
        raise BadToken("its type is neither that of an event nor of a high-water mark")
    index = fields.number("index in a transaction")
    from_invalidate = version > 0 and fields.take(element.BOOL, "origin") == b"\1"
    head = Token(version, kind, Timestamp(seconds, inc), index, from_invalidate)
    token = replace(head, uuid=_take_collection(version, fields))
    if kind == "event":
        token = _take_event(token, fields)
    elif token != Token(version, kind, head.cluster_time):
        raise BadToken("it is a high-water mark but describes an event")
    fields.end()
    return token


def _take_collection(version: int, fields: _Fields) -> uuid.UUID | None:
    """The collection's UUID. Without a collection version 2 writes null, older versions nothing."""
    if version < _EXPLICIT and not fields.has_next:
        return None
    if version >= _EXPLICIT and fields.take_if(element.NULL):
        return None
    value = fields.take(element.BINARY, "collection")
    if value[:5] != _UUID:
        raise BadToken("its collection is no UUID")
    return uuid.UUID(bytes=value[5:])


def _take_event(token: Token, fields: _Fields) -> Token:
    if token.version < _EXPLICIT and not fields.has_next:
        return token
    identifier = fields.take(element.DOCUMENT, "event")
    names = [item.name for item in elements(identifier, 0, len(identifier))]
    if token.version < _EXPLICIT and (names[:1] != [b"operationType"] or b"_id" in names):
        return replace(token, document_key=identifier)
    inner = _Fields(identifier)
    token = replace(token, operation_type=inner.text("operation type"))
    if names[1:] == [b"documentKey"]:
        token = replace(token, document_key=inner.take(element.DOCUMENT, "document key"))
    elif names[1:] == [b"operationDescription"]:
        description = inner.take(element.DOCUMENT, "operation description")
        token = replace(token, operation_description=description)
    inner.end()
    if token.version >= _EXPLICIT and fields.has_next:
        token = replace(token, fragment=fields.number("fragment"))
    return token


class _Fields:
    """Reads the values of a document one by one; `what` names the expected value in an error."""

    def __init__(self, document: bytes) -> None:
        self._data = document
        self._items = elements(document, 0, len(document))

    @property
    def has_next(self) -> bool:
        return bool(self._items)

    def take_if(self, kind: int) -> bool:
        is_next = self.has_next and self._items[0].kind == kind
        if is_next:
            self._items.pop(0)
        return is_next

    def take(self, kind: int, what: str) -> bytes:
        if not self._items:
            raise BadToken(f"it ends before its {what}")
        item = self._items.pop(0)
        if item.kind != kind:
            raise BadToken(f"its {what} is of a wrong type")
        return self._data[item.start : item.stop]

    def number(self, what: str) -> int:
        value = int.from_bytes(self.take(element.INT32, what), "little", signed=True)
        if value < 0:
            raise BadToken(f"its {what} is below zero")
        return value

    def text(self, what: str) -> str:
        return element.text(element.string(self.take(element.STRING, what), 0))

    def end(self) -> None:
        if self._items:
            raise BadToken("it continues after its end")
