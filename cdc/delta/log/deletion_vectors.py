"""Deletion vectors: the rows of a data file that a table no longer contains.

The format is that of Delta's protocol (PROTOCOL.md, "Deletion Vectors"). A vector is a Roaring
bitmap of row numbers, counted from 0 over the whole file. The vectors of a commit lie in one file
of the table's folder. Other writers may also put a small one into the log itself.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Mapping
from contextlib import closing
from typing import Any, TypeAlias
from uuid import UUID, uuid4

from pyroaring import BitMap

from cdc.tasks import Folder

# The action's field `deletionVector`.
Descriptor: TypeAlias = Mapping[str, Any]

_IN_FILE, _IN_LOG = "u", "i"
_VERSION = b"\x01"
# The form that consists of a number of bitmaps, one for each upper half of the 64 bits.
_MAGIC = 1681511377
# Delta writes the alphabet of Z85, Python that of git.
_GIT = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _TO_GIT = bytes.maketrans(_GIT, _Z85), bytes.maketrans(_Z85, _GIT)


class UnknownVector(Exception):
    """A vector of a form that no released Delta writes for a table at a path."""


def vector_path(vector: Descriptor | None) -> str | None:
    """The file of a vector, relative to the folder of its table; None if it is in none there."""
    if vector is None or vector["storageType"] != _IN_FILE:
        return None
    return _path_of(vector["pathOrInlineDv"])


def _path_of(place: str) -> str:
    prefix, name = place[:-20], UUID(bytes=_decode(place[-20:]))
    return f"{prefix}/{_name(name)}" if prefix else _name(name)


def read_vector(folder: Folder, vector: Descriptor | None) -> BitMap:
    """The numbers of the rows that a file lacks; none without a vector. `folder` is the table's.

    Raises UnknownVector, and OSError or ValueError if the file of the vector is missing or damaged.
    """
    if vector is None:
        return BitMap()
    place, size = vector["pathOrInlineDv"], vector["sizeInBytes"]
    if vector["storageType"] == _IN_LOG:
        return _parse(_decode(place)[:size])
    if vector["storageType"] != _IN_FILE:
        raise UnknownVector(f"a deletion vector has the storage type {vector['storageType']}")
    path = _path_of(place)
    if not re.fullmatch(r"(\w+/)?[^/]+", path, re.ASCII):
        raise UnknownVector("the file of a deletion vector has an unusual place")
    with closing(folder.open(path)) as stream:
        stream.seek(vector.get("offset") or 0)
        found = stream.read(4 + size + 4)
    data = found[4 : 4 + size]
    if found != _framed(data):
        raise ValueError(f"The deletion vector in {path} is damaged.")
    return _parse(data)


def write_vectors(folder: Folder, bitmaps: Mapping[str, BitMap]) -> tuple[str, dict[str, Any]]:
    """Write vectors to a new file of the table's folder.

    Returns the name of the file, and the descriptor of each vector under its key in `bitmaps`.
    """
    unique, found = uuid4(), dict[str, Any]()
    stream = folder.create(_name(unique))
    stream.write(_VERSION)
    offset = len(_VERSION)
    for key, bitmap in bitmaps.items():
        data = struct.pack("<iqi", _MAGIC, 1, 0) + bitmap.serialize()
        stream.write(_framed(data))
        found[key] = {
            "storageType": _IN_FILE,
            "pathOrInlineDv": _encode(unique.bytes),
            "offset": offset,
            "sizeInBytes": len(data),
            "cardinality": len(bitmap),
        }
        offset += len(data) + 8
    folder.complete(stream)
    return _name(unique), found


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def _name(unique: UUID) -> str:
    return f"deletion_vector_{unique}.bin"


def _parse(data: bytes) -> BitMap:
    magic, count = struct.unpack_from("<iq", data)
    if magic != _MAGIC or count > 1:
        raise UnknownVector(f"a deletion vector has the form {magic} with {count} bitmaps")
    if count == 0:
        return BitMap()
    (upper,) = struct.unpack_from("<i", data, 12)
    if upper:
        raise UnknownVector("a data file has more than 4,294,967,295 rows")
    return BitMap.deserialize(data[16:])


def _encode(data: bytes) -> str:
    return base64.b85encode(data).translate(_TO_Z85).decode()


def _decode(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_TO_GIT))
