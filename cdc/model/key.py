"""The merge key: text that is equal exactly when the server holds two `_id`s equal.

The server's equality is that of the unique index on `_id` under the simple collation: numbers by
exact value whatever their type, symbols like strings, documents by their fields in order, arrays
by their elements. Every rule here was asked of a real server, see tests/model/test_key.py.
"""

from __future__ import annotations

import decimal
import json

from cdc.errors import UnmappableValue
from cdc.model import decimal128, document, element, extended_json
from cdc.model.element import Element, elements


def merge_key(id_document: bytes) -> str:
    """The key of a document from BSON bytes of `{_id: value}`; the field's name does not matter.

    Two results are equal exactly when a unique index takes the values for equal. An ObjectId, a
    string or a number reads as in relaxed Extended JSON (`{"$oid":"…"}`, `"…"`, `7`). It is a key
    and no archive: the type of a number, the difference between symbol and string, and the names
    of array elements are not in it. Not promised for a collection whose default collation is not
    simple: its `_id` index takes more values for equal.

    Raises UnmappableValue for corrupt bytes or for another number of fields than one, but not for
    text that is not UTF-8 or for a name that occurs twice: the server holds such keys apart, so
    must this.
    """
    found = elements(id_document, 0, len(id_document))
    if len(found) != 1:
        raise UnmappableValue(f"a key document has one field, not {len(found)}")
    return _text(id_document, found[0], 0)


def document_key_json(document_key: bytes) -> str:
    """Canonical Extended JSON of a change event's documentKey (shard key and `_id`), types kept.

    A documentKey that has no such text becomes document.unmappable_json: it does not raise.
    """
    try:
        return document.canonical_json(document_key)
    except UnmappableValue as error:
        return document.unmappable_json(error.message, document_key)


def _text(data: bytes, item: Element, depth: int) -> str:
    kind, _, start, stop = item
    if kind in (element.STRING, element.SYMBOL):
        return _quoted(element.string(data, start))
    if kind == element.DOCUMENT:
        return _document(data, start, stop, depth + 1)
    if kind == element.ARRAY:
        return _array(data, item, depth + 1)
    if kind in (element.INT32, element.INT64, element.DOUBLE, element.DECIMAL128):
        return _number(data, item)
    if kind == element.REGEX:
        pattern, options, _ = data[start:stop].split(b"\0")
        return f'{{"$regularExpression":[{_quoted(pattern)},{_quoted(options)}]}}'
    if kind == element.CODE:
        return f'{{"$code":{_quoted(element.string(data, start))}}}'
    if kind == element.CODE_WITH_SCOPE:
        scope = _document(data, element.scope_start(data, start), stop, depth + 1)
        return f'{{"$code":{_quoted(element.string(data, start + 4))},"$scope":{scope}}}'
    if kind == element.DBPOINTER:
        target = data[stop - 12 : stop].hex()
        return f'{{"$dbPointer":[{_quoted(element.string(data, start))},"{target}"]}}'
    if kind == element.BINARY:
        # Not through Extended JSON: of the old subtype 2 that drops the inner length.
        payload = extended_json.binary(data[start + 5 : stop], data[start + 4])
        return json.dumps(payload, separators=(",", ":"))
    return json.dumps(extended_json.value(data, item, relaxed=False), separators=(",", ":"))


def _document(data: bytes, start: int, stop: int, depth: int) -> str:
    parts = []
    for item in elements(data, start, stop, depth):
        # A "$" of the user's is doubled: {"$oid": "…"} must not read like an ObjectId.
        name = b"$" + item.name if item.name.startswith(b"$") else item.name
        parts.append(f"{_quoted(name)}:{_text(data, item, depth)}")
    return "{" + ",".join(parts) + "}"


def _array(data: bytes, item: Element, depth: int) -> str:
    parts = []
    for each in elements(data, item.start, item.stop, depth):
        parts.append(_text(data, each, depth))
    return "[" + ",".join(parts) + "]"


def _quoted(raw: bytes) -> str:
    """A JSON string. Bytes that are not UTF-8 become lone surrogates, which no UTF-8 decodes to,
    written as escapes: so the text stays encodable and different bytes stay different."""
    try:
        return json.dumps(raw.decode("utf-8"), ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps(raw.decode("utf-8", "surrogateescape"), ensure_ascii=True)


def _number(data: bytes, item: Element) -> str:
    if item.kind == element.INT32:
        return str(element.int32(data, item.start)[0])
    if item.kind == element.INT64:
        return str(element.int64(data, item.start)[0])
    if item.kind == element.DECIMAL128:
        return _exact(element.decimal128(data, item.start))
    double: float = element.float64(data, item.start)[0]
    exact = decimal.Decimal.from_float(double)
    if exact.is_finite() and len(_digits(exact)) > 34:
        # No decimal128 and no integer equals it: its own text is short and unique.
        return f'{{"$numberDouble":"{extended_json.double_text(double)}"}}'
    return _exact(exact)


def _exact(number: decimal.Decimal) -> str:
    """One text per value: 0 for every zero, no trailing zeros, plain unless very large or small."""
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
