"""The files of a checkpoint on the local file system, without Spark.

Hadoop keeps a checksum beside each file, `.NAME.crc`: four bytes `crc\\0`, the number of bytes of a
chunk, and the CRC-32 of each chunk. This module checks and writes these as Hadoop does, so Spark
can read each file that it writes, and refuses each file that it finds damaged.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from cdc.checkpoint.checkpoint import local_folder

_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"
_CHUNK_BYTES = 512


class LocalFiles:
    """Files on the local file system; a path may be a `file:` URL."""

    def names(self, folder: str) -> list[str]:
        path = local_folder(folder)
        return [each.name for each in path.iterdir()] if path.is_dir() else []

    def exists(self, path: str) -> bool:
        return local_folder(path).exists()

    def read(self, path: str) -> bytes | None:
        there = local_folder(path)
        try:
            content = there.read_bytes()
        except FileNotFoundError:
            return None
        try:
            checksum = _checksum_of(there).read_bytes()
        except FileNotFoundError:
            return content
        return content if _matches(content, checksum) else None

    def replace(self, path: str, content: bytes) -> None:
        """Write a file and its checksum.

        After a crash between the two, the old checksum makes the new file unreadable. A repair
        then writes both again.
        """
        there = local_folder(path)
        there.parent.mkdir(parents=True, exist_ok=True)
        for each, data in ((there, content), (_checksum_of(there), _checksum(content))):
            temporary = each.with_name(f"{each.name}.repaired")
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(each)

    def remove(self, path: str) -> None:
        """Remove a file and its checksum: the file first, as Hadoop does.

        A checksum that a crash leaves alone would make the next file of this name unreadable.
        `Folder.names` does not list it, and Hadoop overwrites it together with the file.
        """
        there = local_folder(path)
        there.unlink(missing_ok=True)
        _checksum_of(there).unlink(missing_ok=True)


def _checksum_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _checksum(content: bytes, size: int = _CHUNK_BYTES) -> bytes:
    chunks = (content[first : first + size] for first in range(0, len(content), size))
    sums = b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)
    return _HEADER.pack(_MAGIC, size) + sums


def _matches(content: bytes, checksum: bytes) -> bool:
    """Whether content has this checksum. Hadoop ignores a checksum without a valid header."""
    if len(checksum) < _HEADER.size:
        return True
    magic, size = _HEADER.unpack_from(checksum)
    return magic != _MAGIC or (size > 0 and checksum == _checksum(content, size))
