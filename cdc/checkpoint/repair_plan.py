"""Repair of a damaged checkpoint: return to the last known batch.

A batch is known if the checkpoint or a table records its end; each commit to a table contains the
end of its batch. A batch that some tables contain is planned again with the same end, and those
tables skip it. A batch that no table contains may be planned with another end. No table changes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from cdc.checkpoint.checkpoint import REPAIR
from cdc.checkpoint.folder import COMMITS, METADATA, OFFSETS, Folder
from cdc.errors import CheckpointDamaged
from cdc.model import Offset


@dataclass(frozen=True, slots=True)
class TableBatches:
    """The batches in the tables of one pipeline.

    Attributes:
        pipeline: The id of the pipeline; None if it is unknown and there is no table.
        newest: The newest batch in any table; None if there is none.
        ends: The end of each batch whose offset is recorded by the newest commit of a table.
    """

    pipeline: str | None
    newest: int | None
    ends: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one file.

    After an interruption between any two steps, a job refuses to start or continues correctly.
    """

    description: str
    run: Callable[[], None]


def require_whole(folder: Folder) -> None:
    """Raise an error unless a query can continue from the checkpoint.

    Raises CheckpointDamaged, which names the file, if a file is damaged or missing. Raises
    ForeignOffset if the files are complete but of another source or release.
    """
    for damage in find_damage(folder):
        raise CheckpointDamaged(f"{damage}, so the position to continue from is unknown.", REPAIR)


def find_damage(folder: Folder) -> Iterator[str]:
    """Describe the damage of each file that a query reads at its start.

    A query reads the file with its id, the last two planned batches and the last written one.
    """
    last = max([*folder.numbers(OFFSETS), *folder.numbers(COMMITS)], default=None)
    if folder.pipeline() is None and (last is not None or folder.exists(METADATA)):
        yield _describe_damage(folder, METADATA)
    if last is None:
        return
    for batch in _unreadable_plans(folder, last):
        yield _describe_damage(folder, f"{OFFSETS}/{batch}")
    for batch in _unreadable_commits(folder, last):
        yield _describe_damage(folder, f"{COMMITS}/{batch}")


def plan_repair(folder: Folder, tables: TableBatches) -> list[Step]:
    """The steps of a repair, in order; none if nothing is damaged.

    Args:
        folder: The damaged checkpoint.
        tables: What the tables of the pipeline record.

    Raises CheckpointDamaged if every repair could lose or duplicate changes.
    """
    return [*_metadata_steps(folder, tables), *_batch_steps(folder, tables)]


def _unreadable_plans(folder: Folder, last: int) -> list[int]:
    """The batches without a readable end, among the two that a query reads at its start.

    Args:
        last: The last planned batch.
    """
    return [batch for batch in (last, last - 1) if batch >= 0 and folder.read_plan(batch) is None]


def _unreadable_commits(folder: Folder, last: int) -> list[int]:
    """The damaged commits up to batch `last`, down to the newest readable one.

    Without the damaged files a query reads that newest one. It then repeats the last batch at most,
    because Spark plans a batch only after it has written the previous one.
    """
    older = (batch for batch in reversed(folder.numbers(COMMITS)) if batch <= last)
    return list(takewhile(lambda batch: not folder.is_written(batch), older))


def _describe_damage(folder: Folder, name: str) -> str:
    return f"{folder.path}/{name} is {'damaged' if folder.exists(name) else 'missing'}"


def _metadata_steps(folder: Folder, tables: TableBatches) -> Iterator[Step]:
    if folder.pipeline() is not None:
        return
    pipeline = tables.pipeline or str(uuid.uuid4())
    reason = f"the tables belong to pipeline {pipeline}" if tables.pipeline else "there is no table"
    yield Step(f"write {METADATA}: {reason}", partial(folder.write_pipeline, pipeline))


def _batch_steps(folder: Folder, tables: TableBatches) -> Iterator[Step]:
    """The steps for offsets, then those for commits.

    A folder without its commits could look complete while its offsets are still wrong.
    """
    planned, written = folder.numbers(OFFSETS), folder.numbers(COMMITS)
    last = max(
        [*planned, *written, *([] if tables.newest is None else [tables.newest])], default=None
    )
    if last is None:
        return
    batch = _last_known(folder, tables, last)
    yield from _write_plans(folder, tables, batch)
    yield from _remove_files(folder, OFFSETS, [n for n in planned if n > batch])
    later = [n for n in written if n > batch]
    yield from _remove_files(folder, COMMITS, [*later, *_unreadable_commits(folder, batch)])


def _last_known(folder: Folder, tables: TableBatches, last: int) -> int:
    """The newest batch after which a query can continue; -1 to begin from the start.

    Never older than the newest batch in a table. Otherwise the following batches would be emitted
    twice, or the tables would skip batches with new content.
    """
    least = -1 if tables.newest is None else tables.newest
    for batch in range(last, least - 1, -1):
        if batch < 0:
            break
        if _end(folder, tables, batch) is None:
            continue
        if batch == 0 or folder.is_written(batch) or _end(folder, tables, batch - 1) is not None:
            return batch
    # A commit, damaged or not, or a later batch shows that batch 0 was written, even if it changed
    # no table.
    if tables.newest is None and last == 0 and not folder.numbers(COMMITS):
        return -1
    raise CheckpointDamaged(
        f"The start or the end of batch {max(least, last)} is recorded neither in {folder.path} nor"
        " in any table.",
        "Restore a copy of the folder, or start again with a new checkpoint and other paths.",
    )


def _end(folder: Folder, tables: TableBatches, batch: int) -> Any:
    plan = folder.read_plan(batch)
    return tables.ends.get(batch) if plan is None else plan.offset.to_json()


def _write_plans(folder: Folder, tables: TableBatches, batch: int) -> Iterator[Step]:
    """Write the missing ends of a batch and of the one before it.

    The start of a written batch does not matter, but Spark needs a file for it.
    """
    for each in _unreadable_plans(folder, batch):
        end = _end(folder, tables, each) or _end(folder, tables, batch)
        time = Offset.from_json(end).time
        description = f"write {OFFSETS}/{each}: it ends at {time.time}:{time.inc}"
        yield Step(description, partial(folder.write_plan, each, end, each - 1))


def _remove_files(folder: Folder, log: str, batches: list[int]) -> Iterator[Step]:
    for batch in sorted(batches, reverse=True):
        name = f"{log}/{batch}"
        yield Step(f"remove {name}", partial(folder.remove, name))
