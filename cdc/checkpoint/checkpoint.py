"""The checkpoint of a streaming query, read from local files without Spark.

It contains the planned batches, the written batches and their offsets. Spark writes a file
`offsets/N` when it plans batch N, and `commits/N` after the batch is written. The first file
contains the time at which the batch began. Only the modification time of the second file shows when
the batch was written; a copy of the folders may have lost it.
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

from cdc.errors import BadOption, CheckpointDamaged, CheckpointInUse, ForeignOffset
from cdc.file_lock import try_lock
from cdc.model import Namespace, Offset, Selection, Timestamp
from cdc.tasks import local_path

_ELSEWHERE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/")
_FORMAT = "v1"
REPAIR = (
    "Return to the last batch that is known: mongodb-cdc repair-checkpoint --config FILE; add"
    " --dry-run first to see the steps."
)
_RECENT_SECONDS = 10.0
# Spark retains 100 batches. A running job may remove the oldest of these meanwhile.
_NEWEST, _RETAINED = 20, 90
# Spark writes `offsets/N` immediately after it sets the batch's time. A larger difference means
# that a copy lost the modification times.
_AT_ONCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch that is in all its changelogs.

    `began` and `moment` are the times at which it began and was written, in seconds since 1970.
    `moment` is None where the files no longer have their original modification times.
    """

    batch: int
    offset: Offset
    began: float
    moment: float | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest batches of a checkpoint; None: there is no such batch.

    `planned` is the newest planned batch and `last` the newest written one. `before` is the oldest
    of the recent written batches that began at most 10 seconds before `last`, or else the batch
    before `last`.
    """

    planned: int | None = None
    last: WrittenBatch | None = None
    before: WrittenBatch | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The content of a file `offsets/N`: Spark's metadata of the batch, and the batch's end."""

    about: Mapping[str, Any]
    offset: Offset


def read(path: str) -> Checkpoint:
    """Read the current state of a checkpoint, also while a job continues from it.

    Older batches may be damaged: no job reads them.

    Raises BadOption if the checkpoint is not on the local file system, ForeignOffset if it belongs
    to another source, and CheckpointDamaged if the last written batch is unreadable.
    """
    folder = local_folder(path)
    planned, commits = max(_numbers(folder / "offsets"), default=None), _newest_commits(folder)
    is_lost = bool(commits) and _read_batch(folder, commits[-1]) is None
    # After a repair the newest commit may belong to an older batch, whose offsets no job reads.
    if is_lost and (planned is None or planned <= commits[-1] + 1):
        raise CheckpointDamaged(f"{_offset(folder, commits[-1])} is damaged.", REPAIR)
    readable = _readable_batches(folder, commits)
    if not readable:
        return Checkpoint(planned)
    *older, last = readable
    recent = [each for each in older if last.began - each.began <= _RECENT_SECONDS] or older[-1:]
    return Checkpoint(planned, last, recent[0] if recent else None)


def batches(path: str) -> list[WrittenBatch]:
    """The newest 90 written batches in order, without damaged ones; also while a job runs.

    Raises BadOption and ForeignOffset, as `read` does.
    """
    folder = local_folder(path)
    return _readable_batches(folder, _newest_commits(folder, _RETAINED))


def time_of(path: str, batch: int) -> Timestamp | None:
    """T of a batch; None if its file is damaged or removed: Spark retains 100 of them.

    Raises BadOption and ForeignOffset, as `read` does.
    """
    plan = _read_plan(_offset(local_folder(path), batch))
    return None if plan is None else plan.offset.time


def is_local(path: str) -> bool:
    """Whether a checkpoint is on the local file system, by its name alone."""
    return _ELSEWHERE.match(path) is None


@contextmanager
def lock_checkpoint(path: str) -> Iterator[None]:
    """Exclude other jobs of this machine from a checkpoint for the duration of the block.

    Jobs on other machines are not excluded. A checkpoint that is not on the local file system is
    not locked at all.

    Raises CheckpointInUse if another job has the lock, and BadOption if the folder cannot be
    written.
    """
    if not is_local(path):
        yield
        return
    folder = local_folder(path)
    _make_folder(folder)
    with try_lock(folder) as is_locked:
        if not is_locked:
            raise CheckpointInUse(f"Another job runs on the checkpoint {path}.", "End it first.")
        yield


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(folder, "of the checkpoint", error.errno) from error
    require_writable(folder, "of the checkpoint")


def require_writable(folder: Path, owner: str) -> None:
    """Raise BadOption unless this user may write a local folder, or create it if it is missing.

    Creates nothing. `owner` says in the message what the folder is.
    """
    there = folder
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise _not_writable(folder, owner, errno.ENOTDIR)
    if not os.access(there, os.W_OK | os.X_OK):
        is_fixed = os.statvfs(there).f_flag & os.ST_RDONLY
        raise _not_writable(folder, owner, errno.EROFS if is_fixed else errno.EACCES)


def _not_writable(folder: Path, owner: str, code: int | None) -> BadOption:
    return BadOption(
        f"The folder {folder} {owner} cannot be written: {os.strerror(code or errno.EIO)}.",
        "Set path or checkpoint in [sink] to a folder that this user may create and write.",
    )


def complete_until(path: str, collection: Namespace) -> Timestamp | None:
    """The time of the last written batch, if all changes of the collection up to it are written.

    The tables alone do not show this: a collection without changes has no commit. None also if the
    checkpoint is not on the local file system.
    """
    if not is_local(path):
        return None
    last = read(path).last
    if last is None or not last.offset.passes_whole(collection):
        return None
    is_captured = Selection.parse(last.offset.selection).matches(collection)
    return last.offset.time if is_captured else None


def local_folder(path: str) -> Path:
    if not is_local(path):
        raise BadOption(
            f"The checkpoint {path} cannot be read: it is not on the local file system.",
            "Copy its folders 'offsets' and 'commits' to this machine, and set -o"
            " sink.checkpoint=PATH.",
        )
    return Path(local_path(path))


def _numbers(folder: Path) -> list[int]:
    """The batch numbers in a folder, in order. A file that is being written has another name."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(path.name) for path in paths if path.name.isdecimal())


def _newest_commits(folder: Path, count: int = _NEWEST) -> list[int]:
    """The newest committed batches, which a running job does not remove meanwhile."""
    return _numbers(folder / "commits")[-count:]


def _readable_batches(folder: Path, commits: Iterable[int]) -> list[WrittenBatch]:
    return [batch for n in commits if (batch := _read_batch(folder, n)) is not None]


def parse_plan(text: str, path: str) -> PlannedBatch | None:
    """Parse a file `offsets/N`; None if it is truncated or anything else that Spark never writes.

    Raises ForeignOffset if the file is complete but belongs to another source.
    """
    version, _, rest = text.partition("\n")
    about, *offsets = [parse_json(line) for line in rest.split("\n")]
    is_whole = isinstance(about, dict) and "batchTimestampMs" in about and None not in offsets
    is_other = version != _FORMAT and re.fullmatch("v[0-9]+", version) is not None
    if not is_other and not (is_whole and offsets and version == _FORMAT):
        return None
    if is_other or len(offsets) > 1:
        raise ForeignOffset(
            f"{path} belongs to a query that does not read this source alone.",
            "Name the checkpoint of this pipeline.",
        )
    return PlannedBatch(about, Offset.from_json(offsets[0]))


def parse_json(text: str) -> Any:
    """The value, or None if the text is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _offset(folder: Path, batch: int) -> Path:
    return folder / "offsets" / str(batch)


def _read_plan(path: Path) -> PlannedBatch | None:
    text = path.read_text(errors="replace") if path.exists() else ""
    return parse_plan(text, str(path))


def _read_batch(folder: Path, batch: int) -> WrittenBatch | None:
    """A written batch; None if its offset is damaged or missing."""
    path = _offset(folder, batch)
    plan = _read_plan(path)
    if plan is None:
        return None
    began = plan.about["batchTimestampMs"] / 1000
    return WrittenBatch(batch, plan.offset, began, _written_at(path, began))


def _written_at(path: Path, began: float) -> float | None:
    """The time at which the batch of this offset file was written, if the files still show it."""
    if abs(path.stat().st_mtime - began) > _AT_ONCE_SECONDS:
        return None
    return (path.parent.parent / "commits" / path.name).stat().st_mtime
