"""What the checkpoint of a query tells to one who has no Spark: which batches were planned, which
are written, and up to where.

Spark keeps a file `offsets/N` for each batch that is planned, and `commits/N` once it is written.
The first says when the batch began. When it was written, nothing tells but the time of the second,
which a copy of the folders may have lost.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cdc.errors import BadOption, CheckpointDamaged, CheckpointInUse, ForeignOffset
from cdc.locked import tried
from cdc.model.offset import Offset
from cdc.model.selection import Namespace, Selection
from cdc.model.timestamp import Timestamp

_ELSEWHERE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/")
_FORMAT = "v1"
REPAIR = (
    "Go back to the last batch that is known for certain: mongodb-cdc repair-checkpoint --config"
    " FILE, with --dry-run to see first what it does."
)
_RECENT_SECONDS = 10.0
# Spark keeps a hundred batches. The oldest of these a job that goes on may remove meanwhile.
_NEWEST, _KEPT = 20, 90
# Spark writes `offsets/N` as soon as the batch has got its time.
_AT_ONCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is in all its tables, when it began, and since when it is written, in seconds
    since 1970; None where the files have other times than those of their writing."""

    batch: int
    offset: Offset
    began: float
    moment: float | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`planned` is the newest batch of all, `last` the newest that is written, and `before` the one
    some seconds, or one batch, older. None: there is none."""

    planned: int | None = None
    last: Written | None = None
    before: Written | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A file `offsets/N`: what Spark says about the batch, and where it ends."""

    about: Mapping[str, Any]
    offset: Offset


def read(path: str) -> Checkpoint:
    """The checkpoint as it is now, also while a job goes on with it. Raises BadOption if it is not
    on the local file system, ForeignOffset if it is none of this source, CheckpointDamaged if the
    last batch that is written cannot be known: older ones may be damaged, which no job asks for."""
    folder = _local(path)
    planned, commits = max(_numbers(folder / "offsets"), default=None), _newest(folder)
    is_lost = bool(commits) and _written(folder, commits[-1]) is None
    # A repair may leave an older commit alone: of a batch that no job asks for.
    if is_lost and (planned is None or planned <= commits[-1] + 1):
        raise CheckpointDamaged(f"{_offset(folder, commits[-1])} is damaged.", REPAIR)
    found = _whole(folder, commits)
    if not found:
        return Checkpoint(planned)
    *older, last = found
    recent = [each for each in older if last.began - each.began <= _RECENT_SECONDS] or older[-1:]
    return Checkpoint(planned, last, recent[0] if recent else None)


def batches(path: str) -> list[Written]:
    """The newest ninety that are written, in order, also while a job goes on; without those that
    are damaged. Raises BadOption and ForeignOffset, as `read` does."""
    folder = _local(path)
    return _whole(folder, _newest(folder, _KEPT))


def is_here(path: str) -> bool:
    """Whether the checkpoint lies on the local file system, as far as its name tells."""
    return _ELSEWHERE.match(path) is None


@contextmanager
def alone(path: str) -> Iterator[None]:
    """The only job on this checkpoint among those of this machine, as long as it goes on; nobody
    knows of others, nor of those on a checkpoint that is elsewhere. Raises CheckpointInUse, and
    BadOption if its folder cannot be written."""
    if not is_here(path):
        yield
        return
    folder = _local(path)
    _make(folder)
    with tried(folder) as is_alone:
        if not is_alone:
            raise CheckpointInUse(f"Another job runs on the checkpoint {path}.", "End it first.")
        yield


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = None if os.access(folder, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise BadOption(
            f"The folder {folder} of the checkpoint cannot be written: {why}.",
            "Let path or checkpoint in [sink] name a folder that this user may make and write.",
        )


def complete_until(path: str, collection: Namespace) -> Timestamp | None:
    """The time of the last batch that is written, if the collection is told up to there: it may
    have had no change, and so no commit. None, too, if the checkpoint cannot be read here."""
    if not is_here(path):
        return None
    last = read(path).last
    if last is None or not last.offset.passes_whole(collection):
        return None
    is_told = Selection.parse(last.offset.selection).matches(collection)
    return last.offset.time if is_told else None


def _local(path: str) -> Path:
    if not is_here(path):
        raise BadOption(
            f"The checkpoint {path} is not on the local file system, and no other is read here.",
            "Copy its folders 'offsets' and 'commits' here: -o sink.checkpoint=PATH names them.",
        )
    return Path(unquote(urlsplit(path).path) if path.startswith("file:") else path)


def _numbers(folder: Path) -> list[int]:
    """In order. Files that are still being written have other names."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(path.name) for path in found if path.name.isdecimal())


def _newest(folder: Path, count: int = _NEWEST) -> list[int]:
    """Of the commits, those that a job that goes on meanwhile does not remove."""
    return _numbers(folder / "commits")[-count:]


def _whole(folder: Path, commits: Iterable[int]) -> list[Written]:
    return [each for n in commits if (each := _written(folder, n)) is not None]


def parsed(text: str, path: str) -> Planned | None:
    """What a file `offsets/N` says; None if it is cut off, or anything else than Spark writes.
    Raises ForeignOffset if it is whole, and none of this source."""
    version, _, rest = text.partition("\n")
    about, *offsets = [of_json(line) for line in rest.split("\n")]
    is_whole = isinstance(about, dict) and "batchTimestampMs" in about and None not in offsets
    is_other = version != _FORMAT and re.fullmatch("v[0-9]+", version) is not None
    if not is_other and not (is_whole and offsets and version == _FORMAT):
        return None
    if is_other or len(offsets) > 1:
        raise ForeignOffset(
            f"{path} is not of a query that reads this source, and nothing else.",
            "Name the checkpoint that belongs to this pipeline.",
        )
    return Planned(about, Offset.from_json(offsets[0]))


def of_json(text: str) -> Any:
    """None for what is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _offset(folder: Path, batch: int) -> Path:
    return folder / "offsets" / str(batch)


def _written(folder: Path, batch: int) -> Written | None:
    """None if its offset is damaged or missing."""
    path = _offset(folder, batch)
    text = path.read_text(errors="replace") if path.exists() else ""
    found = parsed(text, str(path))
    if found is None:
        return None
    began = found.about["batchTimestampMs"] / 1000
    return Written(batch, found.offset, began, _moment(path, began))


def _moment(path: Path, began: float) -> float | None:
    """When the batch of that offset was written."""
    if abs(path.stat().st_mtime - began) > _AT_ONCE_SECONDS:
        return None
    return (path.parent.parent / "commits" / path.name).stat().st_mtime
