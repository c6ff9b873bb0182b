"""Defects in landing: data files, their statistics, manifests, and the commit of a changelog."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from tests.end_to_end.mutations.mutation import mutation


@mutation(
    "cdc.delta.log.transaction",
    "A batch whose `txn` is in the table is not committed again.",
    faults=("killed after a changelog's commit",) * 2,
)
def transaction_not_checked(module: Any, mark: Any) -> None:
    original = module.commit_files

    def commit_files(spark: Any, target: Any, files: Any, own: Any, *rest: Any, **more: Any) -> Any:
        mark()
        own = own._replace(name=f"{own.name} {uuid.uuid4()}")
        return original(spark, target, files, own, *rest, **{**more, "newest": None})

    module.commit_files = commit_files


@mutation("cdc.delta.landing.landed_batch", "The manifest of a batch is collected once.")
def batch_landed_twice(module: Any, mark: Any) -> None:
    original = module.LandedBatch.collect.__func__

    def collect(cls: Any, *given: Any) -> Any:
        landed, again = original(cls, *given), original(cls, *given)
        files = [*landed._manifest.files, *again._manifest.files]
        if again._manifest.files:
            mark()
        return cls(replace(landed._manifest, files=files), given[-1])

    module.LandedBatch.collect = classmethod(collect)


@mutation("cdc.tasks.landing", "The summary in a commit counts each row once.")
def manifest_counted_twice(module: Any, mark: Any) -> None:
    original = module.Manifest.of.__func__

    def of(cls: Any, *given: Any) -> Any:
        found = original(cls, *given)
        groups = list[Any]()
        for group in found.groups:
            is_counted = group.op in module._DOCUMENT_OPS
            groups.append(replace(group, rows=2 * group.rows) if is_counted else group)
            if is_counted:
                mark()
        return replace(found, groups=groups)

    module.Manifest.of = classmethod(of)


@mutation("cdc.tasks.statistics", "A maximum that is cut is rounded up.")
def maximum_too_small(module: Any, mark: Any) -> None:
    def cut_up(text: str) -> str:
        if len(text) > module._LONGEST_TEXT:
            mark()
        return text[: module._LONGEST_TEXT]

    module._cut_up = cut_up


@mutation("cdc.tasks.statistics", "The bounds of a key in a file include all its keys.")
def greatest_key_too_small(module: Any, mark: Any) -> None:
    original = module._bounds

    def bounds(parts: Any) -> Any:
        parts = [*parts]
        found = original(parts)
        if found is None or not isinstance(found[1], str) or found[0] == found[1]:
            return found
        mark()
        return found[0], found[0]

    module._bounds = bounds


@mutation(
    "cdc.delta.landing.landed_batch",
    "A mirror without a changelog gets the changes of all tasks of a batch.",
    options=("table.changelog=",),
)
def staged_rows_forgotten(module: Any, mark: Any) -> None:
    original = module.LandedBatch.__init__

    def init(self: Any, manifest: Any, storage: Any) -> None:
        copies = [file for file in manifest.files if file.is_copy]
        staged = [file for file in manifest.files if not file.is_copy]
        if staged:
            mark()
        original(self, replace(manifest, files=[*copies, *staged[1:]]), storage)

    module.LandedBatch.__init__ = init


@mutation(
    "cdc.delta.landing.landed_batch",
    "A mirror without a changelog gets the copies of all tasks of a batch.",
    options=("table.changelog=",),
)
def copies_forgotten(module: Any, mark: Any) -> None:
    original = module.LandedBatch.copies_of

    def copies_of(self: Any, folder: str) -> Any:
        found = original(self, folder)
        if found:
            mark()
        return found[1:]

    module.LandedBatch.copies_of = copies_of


@mutation("cdc.tasks.data_files", "A task writes all rows that wait before it returns its files.")
def waiting_rows_forgotten(module: Any, mark: Any) -> None:
    original = module.DataFiles.finish

    def finish(self: Any) -> Any:
        if self._waiting:
            mark()
            del self._waiting[list(self._waiting)[-1]]
        return original(self)

    module.DataFiles.finish = finish


@mutation(
    "cdc.delta.landing.landed_batch",
    "Files whose commit was tried are never removed.",
)
def committed_files_removed(module: Any, mark: Any) -> None:
    def mark_attempted(*_: Any) -> None:
        mark()

    module.LandedBatch.mark_attempted = mark_attempted
