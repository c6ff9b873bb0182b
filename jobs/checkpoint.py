"""What the checkpoint of a query tells to one who has no Spark: which batches were planned, which
are written, and up to where.

Spark keeps a file `offsets/N` for each batch that is planned, and `commits/N` once it is written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cdc.errors import BadOption, ForeignOffset
from cdc.model.offset import Offset

_ELSEWHERE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/")
_FORMAT = "v1"
_RECENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is in all its tables since a moment, in seconds since 1970."""

    batch: int
    offset: Offset
    moment: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`planned` is the newest batch of all, `last` the newest that is written, and `before` the one
    some seconds, or one batch, older. None: there is none."""

    planned: int | None = None
    last: Written | None = None
    before: Written | None = None


def read(path: str) -> Checkpoint:
    """The checkpoint as it is now, also while a job goes on with it. Raises BadOption if it is not
    on the local file system, ForeignOffset if it is none of this source."""
    folder = _local(path)
    planned = max(_numbers(folder / "offsets"), default=None)
    moments = {n: (folder / "commits" / str(n)).stat().st_mtime for n in _newest(folder)}
    if not moments:
        return Checkpoint(planned)
    last = max(moments)
    older = [n for n in moments if n < last]
    recent = [n for n in older if moments[last] - moments[n] <= _RECENT_SECONDS] or older[-1:]
    return Checkpoint(
        planned,
        Written(last, _offset(folder, last), moments[last]),
        Written(recent[0], _offset(folder, recent[0]), moments[recent[0]]) if recent else None,
    )


def _local(path: str) -> Path:
    if _ELSEWHERE.match(path):
        raise BadOption(
            f"The checkpoint {path} is not on the local file system, and no other is read here.",
            "Copy its folders 'offsets' and 'commits' here: -o sink.checkpoint=PATH names them.",
        )
    return Path(unquote(urlsplit(path).path) if path.startswith("file:") else path)


def _numbers(folder: Path) -> list[int]:
    """In order. Files that are still being written have other names."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(path.name) for path in found if path.name.isdecimal())


def _newest(folder: Path) -> list[int]:
    """Of the commits, those that a job that goes on meanwhile does not remove."""
    return _numbers(folder / "commits")[-20:]


def _offset(folder: Path, batch: int) -> Offset:
    path = folder / "offsets" / str(batch)
    version, _, *offsets = path.read_text().split("\n")
    if version != _FORMAT or len(offsets) != 1:
        raise ForeignOffset(
            f"{path} is not of a query that reads this source, and nothing else.",
            "Name the checkpoint that belongs to this pipeline.",
        )
    return Offset.from_json(json.loads(offsets[0]))
