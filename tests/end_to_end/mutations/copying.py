"""Defects in the copy of a collection: key ranges, the time at which they are read, rewinding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.end_to_end.mutations.mutation import mutation

# Ranges cannot be read at their time: each attempt is likely to be refused, half a second later.
_UNREADABLE_TIMES = {
    "failCommands": ["find"],
    "errorCode": 246,
    "blockConnection": True,
    "blockTimeMS": 500,
    "namespace": "{namespace}",
    "mode": {"activationProbability": 0.4},
}


@mutation("cdc.mongo.read.snapshot", "All ranges of a batch are read as of T1.")
def range_read_as_of_now(module: Any, mark: Any) -> None:
    original = module.scan

    def scan(member: Any, rest: Any, concern: Any) -> Any:
        mark()
        newest = {"level": "majority", "afterClusterTime": rest.split.at}
        return original(member, rest, newest)

    module.scan = scan


@mutation("cdc.mongo.collections.incarnation", "A range contains its lower key.")
def first_document_of_a_range_left_out(module: Any, mark: Any) -> None:
    original = module.UnreadRange.__init__

    def init(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        mark()
        self.is_begun = True

    module.UnreadRange.__init__ = init


@mutation(
    "cdc.mongo.plan.splits",
    "The ranges of a batch reach up to its frontier key.",
    options=("snapshot.splits.per.batch=3",),
)
def last_range_of_a_batch_not_read(module: Any, mark: Any) -> None:
    original = module.scan_splits

    def scan_splits(*arguments: Any) -> Any:
        splits = original(*arguments)
        if len(splits) > 1:
            mark()
        return splits[: max(1, len(splits) - 1)]

    module.scan_splits = scan_splits


@mutation("cdc.model.hand_over", "The frontier key is the end of what was copied.")
def frontier_moves_too_far(module: Any, mark: Any) -> None:
    original = module._add_scan

    def add_scan(offset: Any, scan: Any) -> Any:
        if scan.upper != module.MAX_KEY:
            mark()
        return original(offset, replace(scan, upper=module.MAX_KEY))

    module._add_scan = add_scan


@mutation(
    "cdc.mongo.read.rewind",
    "A range that cannot be read at T1 is read later, and the changes since T1 are undone.",
    failing=_UNREADABLE_TIMES,
)
def changes_not_undone(module: Any, mark: Any) -> None:
    def undo(*_: Any) -> None:
        mark()

    module.Undoing.undo = undo
