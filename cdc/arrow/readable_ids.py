"""The readable texts of many `_id`s, from their merge keys."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from cdc.model import SEPARATOR, readable_id

_Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
_Ends: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
_QUOTE, _BACKSLASH, _BRACE, _HYPHEN = b'"\\{-'
_SEPARATOR = ord(SEPARATOR)


def _bytes(text: bytes) -> _Bytes:
    return np.frombuffer(text, np.uint8)


# Keys of one length, around the digits of the id.
_OBJECT_ID = _bytes(b'{"$oid":"'), 24, _bytes(b'"}')
_UUID = _bytes(b'{"$binary":{"base64":"'), 22, _bytes(b'==","subType":"04"}}')
_HEX = _bytes(b"".join(b"%02x" % each for each in range(256))).reshape(256, 2)
_BASE64 = np.zeros(256, np.uint32)
_BASE64[_bytes(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = range(64)
_UUID_DIGITS = [at for at in range(36) if at not in (8, 13, 18, 23)]


def readable_ids(keys: pa.StringArray) -> pa.StringArray:
    """Return `readable_id` of each key.

    No key is null. A batch has ids of one type as a rule; those of the frequent types are converted
    together.
    """
    if not len(keys):
        return keys
    _, ends, content = keys.buffers()
    offsets = np.frombuffer(ends, np.int32, len(keys) + 1, 4 * keys.offset)
    data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]]
    starts = offsets - offsets[0]
    if not np.diff(starts).all() or (data == _SEPARATOR).any():
        return _one_by_one(keys)
    first = data[starts[:-1]]
    if not ((first == _QUOTE) | (first == _BRACE)).any():
        return keys
    if (first == _QUOTE).all() and not (data == _BACKSLASH).any():
        return _unquoted(data, starts)
    if (digits := _inner(data, starts, *_OBJECT_ID)) is not None:
        return _of_one_size(digits)
    if (digits := _inner(data, starts, *_UUID)) is not None:
        return _of_one_size(_uuids(digits))
    return _one_by_one(keys)


def _one_by_one(keys: pa.StringArray) -> pa.StringArray:
    return pa.array([readable_id(key) for key in keys.to_pylist()], pa.string())


def _unquoted(data: _Bytes, starts: _Ends) -> pa.StringArray:
    is_text = np.ones(len(data), bool)
    is_text[starts[:-1]] = is_text[starts[1:] - 1] = False
    return _strings(data[is_text], starts - 2 * np.arange(len(starts), dtype=np.int32))


def _inner(data: _Bytes, starts: _Ends, begin: _Bytes, size: int, end: _Bytes) -> _Bytes | None:
    """A row of `size` bytes for each key; None if one is not of this form."""
    whole = len(begin) + size + len(end)
    if not (np.diff(starts) == whole).all():
        return None
    rows = data.reshape(-1, whole)
    found = rows[:, len(begin) : len(begin) + size]
    is_so = (rows[:, : len(begin)] == begin).all() and (rows[:, -len(end) :] == end).all()
    return found if is_so else None


def _uuids(digits: _Bytes) -> _Bytes:
    """The texts of UUIDs from their base64. Four digits are three bytes."""
    values = np.zeros((len(digits), 24), np.uint32)
    values[:, : digits.shape[1]] = _BASE64[digits]
    groups = values.reshape(-1, 4) << np.array([18, 12, 6, 0], np.uint32)
    found = groups.sum(1, dtype=np.uint32).astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
    texts = np.full((len(digits), 36), _HYPHEN, np.uint8)
    texts[:, _UUID_DIGITS] = _HEX[found.reshape(len(digits), 18)[:, :16]].reshape(-1, 32)
    return texts


def _of_one_size(rows: _Bytes) -> pa.StringArray:
    count, size = rows.shape
    return _strings(np.ascontiguousarray(rows), np.arange(count + 1, dtype=np.int32) * size)


def _strings(data: _Bytes, ends: _Ends) -> pa.StringArray:
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(ends) - 1, buffers)
