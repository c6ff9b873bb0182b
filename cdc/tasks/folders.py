"""Folders of tables as tasks write them: local ones, and those of object stores and HDFS."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from pyarrow import fs

from cdc.tasks.storage import Storage, is_remote


class Folder(Protocol):
    """A folder of data files.

    Attributes:
        made: the topmost folder that `create` would make or has made; None for none.
    """

    made: str | None

    def create(self, name: str) -> Any:
        """Return a binary stream into a new file. `name` must be unique for ever."""

    def complete(self, stream: Any) -> int:
        """Close a stream; return the bytes. The file then survives a power failure."""

    def open(self, name: str) -> Any:
        """Return a seekable stream of a file's bytes, to be closed; raises OSError."""

    def remove(self, name: str) -> None:
        """Remove a file; raises OSError."""

    def has(self, name: str) -> bool:
        """Whether the folder contains a file or folder of that name."""

    def names(self) -> list[str]:
        """The names in the folder; none if it does not exist."""


def open_folder(folder: str, storage: Storage) -> Folder:
    """The folder at a path or URL; it need not exist.

    Raises what `Storage.locate` does.
    """
    return _RemoteFolder(folder, storage) if is_remote(folder) else _LocalFolder(folder)


@contextmanager
def probe_file(storage: Storage, folder: str, name: str) -> Iterator[tuple[str, int]]:
    """A small file in a folder for the duration of the block: its name and bytes.

    Raises what `open_folder` and the file system do, also if the folder does not list the file.
    """
    place = open_folder(folder, storage)
    stream = place.create(name)
    try:
        stream.write(b"mongodb-cdc")
        size = place.complete(stream)
        if name not in place.names():
            raise FileNotFoundError(name)
        yield name, size
    finally:
        with suppress(OSError):
            place.remove(name)


def local_path(folder: str) -> str:
    """Return the path of a folder that is a path or a `file:` URL, as Hadoop reads it: verbatim.

    Another URL is returned as it is.
    """
    return re.sub(r"^file:(//)?(?=/)", "", folder)


class _LocalFolder:
    def __init__(self, folder: str) -> None:
        self._path = Path(local_path(folder))
        missing = [each for each in (self._path, *self._path.parents) if not each.exists()]
        self.made = str(missing[-1]) if missing else None

    def create(self, name: str) -> Any:
        self._path.mkdir(parents=True, exist_ok=True)
        return (self._path / name).open("xb")

    def complete(self, stream: Any) -> int:
        stream.flush()
        # A commit that survives a power failure must not name a file that does not.
        os.fsync(stream.fileno())
        size: int = stream.tell()
        stream.close()
        return size

    def open(self, name: str) -> Any:
        return (self._path / name).open("rb")

    def remove(self, name: str) -> None:
        (self._path / name).unlink()

    def has(self, name: str) -> bool:
        return (self._path / name).exists()

    def names(self) -> list[str]:
        return [each.name for each in self._path.iterdir()] if self._path.exists() else []


class _RemoteFolder:
    """An object exists as a whole from the moment its stream is closed, and needs no folder.

    pyarrow cannot abort an upload: closing completes it, and `remove` removes the object. A killed
    task leaves the parts of its upload, which no reader sees.
    """

    made: str | None = None

    def __init__(self, folder: str, storage: Storage) -> None:
        self._system, self._path = storage.locate(folder)

    def create(self, name: str) -> Any:
        # The name is random, so nothing can be overwritten. Stores differ in how they would refuse.
        return self._system.open_output_stream(f"{self._path}/{name}")

    def complete(self, stream: Any) -> int:
        size: int = stream.tell()
        stream.close()
        return size

    def open(self, name: str) -> Any:
        return self._system.open_input_file(f"{self._path}/{name}")

    def remove(self, name: str) -> None:
        self._system.delete_file(f"{self._path}/{name}")

    def has(self, name: str) -> bool:
        [info] = self._system.get_file_info([f"{self._path}/{name}"])
        return bool(info.type != fs.FileType.NotFound)

    def names(self) -> list[str]:
        selector = fs.FileSelector(self._path, allow_not_found=True)
        # A store may contain an empty object that stands for the folder.
        found = (info.base_name for info in self._system.get_file_info(selector))
        return [name for name in found if name]


def remove_empty(path: Path, made: str | None) -> None:
    """Remove the local folders above a path, up to the one that was made, if they are empty."""
    with suppress(OSError):
        for folder in path.parents:
            if made is None or not folder.is_relative_to(made):
                break
            folder.rmdir()
