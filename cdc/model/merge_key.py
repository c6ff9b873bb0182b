"""The merge key: equal text for `_id`s that the server treats as equal; and a readable text of it.

Equality is that of the unique index on `_id` under the simple collation. Numbers compare by exact
value whatever their type, symbols like strings. Documents compare by their fields in order, arrays
by their elements. Every rule was checked on a real server, see tests/model/test_merge_key.py.

A router reports two documents with one `_id` on different shards, and both halves of a document
that moves to another shard, in any order. Only the whole document key distinguishes them: the `_id`
and the shard key. So it is the merge key where the shard key has other fields than `_id`.
"""

from __future__ import annotations

import base64
import decimal
import json
import re
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from bson.timestamp import Timestamp

from cdc.errors import UnmappableValue, UnsuitableSource
from cdc.model.bson import (
    Element,
    decimal128,
    element,
    elements,
    encode_document,
    encode_field,
    extended_json,
)
from cdc.model.encoding import document
from cdc.model.selection import Namespace
from cdc.model.split import key_of


def merge_key(id_document: bytes) -> str:
    """Return the merge key for BSON bytes of `{_id: value}`; the field's name is ignored.

    Two keys are equal exactly when a unique index treats the two values as equal. An ObjectId, a
    string or a number is written as in relaxed Extended JSON (`{"$oid":"…"}`, `"…"`, `7`). The
    value cannot be restored from its key: the key omits the type of a number, the difference
    between symbol and string, and the names of array elements. Nothing is promised for a
    collection whose default collation is not simple: its `_id` index treats more values as equal.

    Raises UnmappableValue if the bytes are corrupt or the document has not exactly one field. Text
    that is not UTF-8 and a name that occurs twice do not raise: the server keeps such keys apart,
    so this function must too.
    """
    fields = elements(id_document, 0, len(id_document))
    if len(fields) != 1:
        raise UnmappableValue(f"a key document has one field, not {len(fields)}")
    return value_key(id_document, fields[0])


def value_key(data: bytes, item: Element) -> str:
    """Return the merge key of a field's value, which lies in `data`."""
    return _value_text(data, item, 0)


# Between the key of an `_id` and the rest of a document key, see `whole_key`. A merge key is
# JSON, which has no control characters.
SEPARATOR = "\t"
# The keys of ids that have a shorter text. A user's own `{"$oid": …}` has a second `$` there.
_OBJECT_ID = re.compile(r'\{"\$oid":"(.{24})"\}')
_UUID = re.compile(r'\{"\$binary":\{"base64":"(.{22}==)","subType":"04"\}\}')
_DOUBLE = re.compile(r'\{"\$numberDouble":"(.*)"\}')


def readable_id(key: str) -> str:
    """Return the text of an `_id` as people write it, from its merge key.

    An ObjectId is its 24 hexadecimal digits, a string is itself, a UUID is its text, a number is
    its digits: what a reference to it becomes as text in VARIANT. Every other `_id` is its merge
    key. Of a whole document key only the `_id` counts. The texts of ids of several types may be
    equal: the string `7` and the number 7 both give `7`, and only their keys differ.
    """
    key = key.partition(SEPARATOR)[0]
    if key.startswith('"'):
        # A string that is not UTF-8 has no text of its own, see `_quote`.
        return key if "\\ud" in key.replace("\\\\", "") else str(json.loads(key))
    if (found := _OBJECT_ID.fullmatch(key)) or (found := _DOUBLE.fullmatch(key)):
        return found[1]
    if found := _UUID.fullmatch(key):
        return str(uuid.UUID(bytes=base64.b64decode(found[1])))
    return key


# --- document keys of sharded collections --------------------------------------------------------


def document_key_json(document_key: bytes) -> str:
    """Canonical Extended JSON of a change event's documentKey: shard key and `_id`, with types.

    Never raises: a documentKey that has no such text becomes `document.unmappable_json`.
    """
    try:
        return document.canonical_json(document_key)
    except UnmappableValue as error:
        return document.unmappable_json(error.message, document_key)


class ShardKey(NamedTuple):
    """The shard key of a collection.

    Attributes:
        fields: the paths of its fields in their order, `_id` among them if it is one.
        uuid: the incarnation of the collection.
        since: the time at which it got this shard key.
    """

    fields: tuple[str, ...]
    uuid: bytes
    since: Timestamp

    @property
    def others(self) -> tuple[str, ...]:
        """The fields besides `_id`, sorted. If there are any, two documents may have one `_id`."""
        return tuple(sorted(set(self.fields) - {"_id"}))


def shard_key_changed(namespace: Namespace, at: str) -> UnsuitableSource:
    """Return the error for a collection whose document keys are others now, and is not copied."""
    return UnsuitableSource(
        f"{namespace} got another shard key at {at}, and the column key contains it. This mode does"
        " not copy the collection again.",
        "Set mode to initial to copy it again, or set shards.direct in a new pipeline.",
    )


def shard_keys_hidden() -> UnsuitableSource:
    """Return the error for a user who lost the privilege to read the shard keys."""
    return UnsuitableSource(
        "The user may no longer read the shard keys, which the column key contains.",
        "Grant find on config.collections.",
    )


def document_key_of(document: bytes, fields: Sequence[str]) -> bytes:
    """Return BSON of the document key of a document, as a change event has it.

    It has the fields of the shard key that the document has, and the `_id`. Raises UnmappableValue
    if the bytes are not a document or contain no `_id`.
    """
    own = key_of(document)
    key = []
    for field in fields:
        name = field.encode()
        found = find_field(document, name.split(b"."))
        if found is not None and field != "_id":
            key.append(encode_field(found.kind, name, document[found.start : found.stop]))
    return encode_document([*key, own[4:-1]])


def whole_key(document_key: bytes) -> str:
    """Return the text of a document key: equal for those that the server treats as equal.

    It is the merge key of the `_id`. If there are other fields, a tab follows, which no merge key
    contains, and a JSON object of their merge keys, by name. The order of the fields does not
    matter.
    """
    texts = {
        each.name: value_key(document_key, each)
        for each in elements(document_key, 0, len(document_key))
        if each.name != b"_id"
    }
    own = merge_key(key_of(document_key))
    if not texts:
        return own
    return (
        f"{own}{SEPARATOR}{{{','.join(f'{_quote(name)}:{texts[name]}' for name in sorted(texts))}}}"
    )


def find_field(document: bytes, path: Sequence[bytes]) -> Element | None:
    """Return the field at a path of names; None if the document does not have it."""
    start, stop = 0, len(document)
    for number, name in enumerate(path, 1):
        within = elements(document, start, stop)
        found = next((each for each in within if each.name == name), None)
        if found is None or number == len(path):
            return found
        if found.kind != element.DOCUMENT:
            return None
        start, stop = found.start, found.stop
    return None


# --- texts of values -----------------------------------------------------------------------------


def _value_text(data: bytes, item: Element, depth: int) -> str:
    kind, _, start, stop = item
    if kind in (element.STRING, element.SYMBOL):
        return _quote(element.string(data, start))
    if kind == element.DOCUMENT:
        return _document_text(data, start, stop, depth + 1)
    if kind == element.ARRAY:
        return _array_text(data, item, depth + 1)
    if kind in (element.INT32, element.INT64, element.DOUBLE, element.DECIMAL128):
        return _number_text(data, item)
    if kind == element.REGEX:
        pattern, options, _ = data[start:stop].split(b"\0")
        return f'{{"$regularExpression":[{_quote(pattern)},{_quote(options)}]}}'
    if kind == element.CODE:
        return f'{{"$code":{_quote(element.string(data, start))}}}'
    if kind == element.CODE_WITH_SCOPE:
        scope = _document_text(data, element.scope_start(data, start), stop, depth + 1)
        return f'{{"$code":{_quote(element.string(data, start + 4))},"$scope":{scope}}}'
    if kind == element.DBPOINTER:
        target = data[stop - 12 : stop].hex()
        return f'{{"$dbPointer":[{_quote(element.string(data, start))},"{target}"]}}'
    if kind == element.BINARY:
        # Extended JSON would drop the inner length of the old subtype 2.
        payload = extended_json.binary(data[start + 5 : stop], data[start + 4])
        return json.dumps(payload, separators=(",", ":"))
    return json.dumps(extended_json.value(data, item, relaxed=False), separators=(",", ":"))


def _document_text(data: bytes, start: int, stop: int, depth: int) -> str:
    parts = []
    for item in elements(data, start, stop, depth):
        # A user's "$" is doubled: their {"$oid": "…"} must not look like an ObjectId.
        name = b"$" + item.name if item.name.startswith(b"$") else item.name
        parts.append(f"{_quote(name)}:{_value_text(data, item, depth)}")
    return "{" + ",".join(parts) + "}"


def _array_text(data: bytes, item: Element, depth: int) -> str:
    parts = []
    for each in elements(data, item.start, item.stop, depth):
        parts.append(_value_text(data, each, depth))
    return "[" + ",".join(parts) + "]"


def _quote(raw: bytes) -> str:
    """A JSON string. Bytes that are not UTF-8 become lone surrogates, written as escapes.

    No UTF-8 decodes to a lone surrogate: the text stays encodable, different bytes stay different.
    """
    try:
        return json.dumps(raw.decode("utf-8"), ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps(raw.decode("utf-8", "surrogateescape"), ensure_ascii=True)


def _number_text(data: bytes, item: Element) -> str:
    if item.kind == element.INT32:
        return str(element.int32(data, item.start)[0])
    if item.kind == element.INT64:
        return str(element.int64(data, item.start)[0])
    if item.kind == element.DECIMAL128:
        return _decimal_text(element.decimal128(data, item.start))
    double: float = element.float64(data, item.start)[0]
    exact = decimal.Decimal.from_float(double)
    if exact.is_finite() and len(_digits(exact)) > 34:
        # No decimal128 and no integer equals this double: its own text is short and unique.
        return f'{{"$numberDouble":"{extended_json.double_text(double)}"}}'
    return _decimal_text(exact)


def _decimal_text(number: decimal.Decimal) -> str:
    """One text per value: 0 for every zero, no trailing zeros, no exponent in the usual range."""
    if number.is_nan():
        return '{"$number":"NaN"}'
    if number.is_infinite():
        return f'{{"$number":"{"-" if number < 0 else ""}Infinity"}}'
    if not number:
        return "0"
    sign, _, exponent = number.as_tuple()
    digits = _digits(number)
    exponent = int(exponent) + len(number.as_tuple().digits) - len(digits)
    bare = decimal.Decimal(f"{'-' if sign else ''}{digits}E{exponent}")
    return f"{bare:f}" if -10 <= bare.adjusted() < 34 else decimal128.text(bare)


def _digits(number: decimal.Decimal) -> str:
    """The coefficient without trailing zeros. (Decimal.normalize would round to the context.)"""
    return "".join(map(str, number.as_tuple().digits)).rstrip("0")
