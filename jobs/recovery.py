"""A damaged checkpoint, and the way back to the last batch of which everything is known.

A batch counts as known if its end can be read in the checkpoint, or if a table holds it: each
commit of ours says where its batch ends. So what stands in some tables already is planned again as
it was, and those that hold it skip it; what stands in none may be planned anew, and end elsewhere.
No table is touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from cdc.errors import CheckpointDamaged
from cdc.model.offset import Offset
from jobs.checkpoint import REPAIR
from jobs.checkpoint_folder import COMMITS, METADATA, OFFSETS, Folder
from jobs.holdings import Held


@dataclass(frozen=True, slots=True)
class Step:
    """One file, changed in one step. Whatever is done of all steps, the job refuses to start until
    the last of them is, or would be right to start."""

    says: str
    do: Callable[[], None]


def require_whole(folder: Folder) -> None:
    """Raises CheckpointDamaged, which names the file, if the query could not go on from here;
    ForeignOffset if what it would go on from is whole, but not of this source or release."""
    for damaged in damages(folder):
        raise CheckpointDamaged(f"{damaged}, so that it is not known where to go on.", REPAIR)


def damages(folder: Folder) -> Iterator[str]:
    """What is wrong with the files that a query reads when it starts: who it is, the last two
    batches that were planned, and the last that is written."""
    last = max([*folder.numbers(OFFSETS), *folder.numbers(COMMITS)], default=None)
    if folder.pipeline() is None and (last is not None or folder.exists(METADATA)):
        yield _damaged(folder, METADATA)
    if last is None:
        return
    for batch in _unknown(folder, last):
        yield _damaged(folder, f"{OFFSETS}/{batch}")
    for batch in _unread(folder, last):
        yield _damaged(folder, f"{COMMITS}/{batch}")


def way_back(folder: Folder, held: Held) -> list[Step]:
    """The steps, in order; none if nothing is damaged. Raises CheckpointDamaged if there is no way
    that neither loses nor doubles anything."""
    return [*_named(folder, held), *_planned(folder, held)]


def _unknown(folder: Folder, last: int) -> list[int]:
    """Which of the batches that a query reads, if that one is the last that is planned, do not
    say where they end."""
    return [batch for batch in (last, last - 1) if batch >= 0 and folder.planned(batch) is None]


def _unread(folder: Folder, last: int) -> list[int]:
    """The damaged commits up to a batch, down to the newest whole one, which a query would read
    without them: it makes no more than the last batch again, as none is planned before the one in
    front of it is written."""
    older = (batch for batch in reversed(folder.numbers(COMMITS)) if batch <= last)
    return list(takewhile(lambda batch: not folder.is_written(batch), older))


def _damaged(folder: Folder, name: str) -> str:
    return f"{folder.path}/{name} is {'damaged' if folder.exists(name) else 'missing'}"


def _named(folder: Folder, held: Held) -> Iterator[Step]:
    if folder.pipeline() is not None:
        return
    pipeline = held.pipeline or str(uuid.uuid4())
    says = f"are those of pipeline {pipeline}" if held.pipeline else "are none yet"
    yield Step(f"write {METADATA}: the tables {says}", partial(folder.name, pipeline))


def _planned(folder: Folder, held: Held) -> Iterator[Step]:
    """Commits go last: without them a folder may look whole whose offsets are not right yet."""
    planned, written = folder.numbers(OFFSETS), folder.numbers(COMMITS)
    last = max([*planned, *written, *([] if held.newest is None else [held.newest])], default=None)
    if last is None:
        return
    batch = _last_known(folder, held, last)
    yield from _with(folder, held, batch)
    yield from _without(folder, OFFSETS, [n for n in planned if n > batch])
    later = [n for n in written if n > batch]
    yield from _without(folder, COMMITS, [*later, *_unread(folder, batch)])


def _last_known(folder: Folder, held: Held, last: int) -> int:
    """The newest batch behind which a query can go on, -1 to begin anew. None that is older than
    what some table holds: it would be told twice, or be skipped with all that it told."""
    least = -1 if held.newest is None else held.newest
    for batch in range(last, least - 1, -1):
        if batch < 0:
            break
        if _end(folder, held, batch) is None:
            continue
        if batch == 0 or folder.is_written(batch) or _end(folder, held, batch - 1) is not None:
            return batch
    # A commit, damaged or not, or a later batch: the first one was written, if only to no table.
    if held.newest is None and last == 0 and not folder.numbers(COMMITS):
        return -1
    raise CheckpointDamaged(
        f"Nothing in {folder.path} or in the tables says where batch {max(least, last)} ends, or"
        " where it begins.",
        "Put a copy of the folder back, or start anew: a new checkpoint and other paths.",
    )


def _end(folder: Folder, held: Held, batch: int) -> Any:
    found = folder.planned(batch)
    return held.ends.get(batch) if found is None else found.offset.to_json()


def _with(folder: Folder, held: Held, batch: int) -> Iterator[Step]:
    """The ends of a batch and of the one before it. Where the batch is written, nobody asks where
    it began, but Spark wants a file."""
    for each in _unknown(folder, batch):
        end = _end(folder, held, each) or _end(folder, held, batch)
        time = Offset.from_json(end).time
        says = f"write {OFFSETS}/{each}: it ends at {time.time}:{time.inc}"
        yield Step(says, partial(folder.plan, each, end, each - 1))


def _without(folder: Folder, log: str, batches: list[int]) -> Iterator[Step]:
    for batch in sorted(batches, reverse=True):
        name = f"{log}/{batch}"
        yield Step(f"remove {name}", partial(folder.remove, name))
