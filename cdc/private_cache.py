"""Folders of the user's cache whose contents are executed, so nobody else may write them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def create_folder(name: str, first: str | None = None) -> Path:
    """Return a folder of that name in the first of these places that is writable.

    The places are `first`, if given; the user's cache (`XDG_CACHE_HOME`, `~/.cache`); the folder
    for temporary files. The folder is never shared with other users.

    Raises OSError if no place is writable, or if the folder belongs to somebody else.
    """
    errors: list[OSError] = []
    for base in _bases(first):
        try:
            return _create_private(base, name)
        except OSError as error:
            errors.append(error)
    raise errors[0]


def _bases(first: str | None) -> Iterator[Path]:
    if first:
        yield Path(first)
    home = os.environ.get("XDG_CACHE_HOME")
    yield (Path(home) if home else Path("~/.cache").expanduser()) / "mongodb-cdc"
    yield Path(tempfile.gettempdir()) / f"mongodb-cdc-{os.getuid()}"


def _create_private(base: Path, name: str) -> Path:
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = base / name
    folder.mkdir(mode=0o700, exist_ok=True)
    for each in (base, folder):
        status = each.lstat()  # a link might lead elsewhere tomorrow
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(f"{each} belongs to another user or is writable by others")
    with tempfile.TemporaryFile(dir=folder):
        return folder
