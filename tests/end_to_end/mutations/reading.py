"""Defects in how changes are read: slices, the oplog, change streams, transactions, shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.end_to_end.mutations.mutation import MANY, SHARDS, STREAM, mutation

# Each attempt to read a change stream is likely to fail after some replies.
_FAILING_CURSORS = {
    "failCommands": ["getMore"],
    "closeConnection": True,
    "mode": {"activationProbability": 0.2},
}
# Shards report their transactions late, so batches end in the middle of some.
_SLOW_TRANSACTIONS = {
    "failCommands": ["find"],
    "namespace": "config.transactions",
    "blockConnection": True,
    "blockTimeMS": 100,
    "mode": "alwaysOn",
}


@mutation(
    "cdc.mongo.plan.slicing",
    "The slices of a batch are adjacent: together they contain each event once.",
    options=("stream.parallelism=4",),
    faults=("job killed",),
)
def slice_boundary_dropped(module: Any, mark: Any) -> None:
    original = module.Slicer.slice_split

    def slice_split(self: Any, split: Any) -> Any:
        first, *others = original(self, split)
        if others:
            mark()
        later = (module.Timestamp(each.after.time, each.after.inc + 1) for each in others)
        return [first, *(replace(e, after=t) for e, t in zip(others, later, strict=True))]

    module.Slicer.slice_split = slice_split


@mutation("cdc.mongo.read.oplog_reading", "Events at the lower time T0 are of the batch before.")
def lower_time_read_again(module: Any, mark: Any) -> None:
    original = module._condition

    def condition(split: Any) -> Any:
        mark()
        return {**original(split), "ts": {"$gte": split.after, "$lte": split.upto}}

    module._condition = condition


@mutation("cdc.mongo.read.oplog_reading", "Events at the upper time T1 belong to the batch.")
def upper_time_left_out(module: Any, mark: Any) -> None:
    original = module._condition

    def condition(split: Any) -> Any:
        mark()
        return {**original(split), "ts": {"$gt": split.after, "$lt": split.upto}}

    module._condition = condition


@mutation(
    "cdc.mongo.read.cursor",
    "Only an event or a token after T1, or an empty reply at it, completes a slice.",
    read_by=STREAM,
    faults=("job killed",),
)
def stream_complete_at_its_first_reply(module: Any, mark: Any) -> None:
    def update_progress(self: Any, *_: Any) -> None:
        if not self.complete:
            mark()
        self.complete = True

    module.Cursor._update_progress = update_progress


@mutation(
    "cdc.mongo.read.cursor",
    "A stream is opened at T0, and its events at that time are dropped.",
    read_by=STREAM,
)
def events_at_the_opening_kept(module: Any, mark: Any) -> None:
    original = module.Cursor.__init__

    def init(self: Any, member: Any, split: Any, *rest: Any) -> None:
        mark()
        before = module.Timestamp(split.after.time, split.after.inc - 1)
        original(self, member, replace(split, after=before), *rest)

    module.Cursor.__init__ = init


@mutation(
    "cdc.mongo.read.change_stream",
    "A cursor that goes on after a failure skips the positions that were yielded.",
    read_by=STREAM,
    faults=("job killed", "a while"),
    failing=_FAILING_CURSORS,
)
def stream_repeated_after_a_failure(module: Any, mark: Any) -> None:
    original = module._read_fitting

    def read_fitting(member: Any, split: Any, images: Any, state: Any, at_once: bool) -> Any:
        if state.position != split.after_position:
            mark()
        state.position = split.after_position
        return original(member, split, images, state, at_once)

    module._read_fitting = read_fitting


@mutation(
    "cdc.mongo.query.event_filter",
    "While a collection is copied, only changes below the frontier key are emitted.",
)
def frontier_ignored(module: Any, mark: Any) -> None:
    original = module.rows_below

    def rows_below(copying: Any) -> Any:
        condition = original(copying)
        if condition is not None:
            mark()
            del condition["$expr"]
        return condition

    module.rows_below = rows_below


@mutation(
    "cdc.mongo.read.oplog_events",
    "An update's diff is applied to the image that was recorded for this update.",
)
def diff_applied_to_an_earlier_image(module: Any, mark: Any) -> None:
    original, first = module._event, dict[Any, Any]()

    def event(operation: Any, images: Any) -> Any:
        if operation.fields["op"] != "u" or operation.pre_image is None:
            return original(operation, images)
        place = id(images), bytes(operation.fields["o2"].raw)
        if place in first and first[place] != images.get(operation.pre_image):
            mark()
        image = first.setdefault(place, images.get(operation.pre_image))
        return module.change_event(operation, image)

    module._event = event


@mutation(
    "cdc.kernel.oplog_reply",
    "A pre-image belongs to the operation with its time and number.",
    faults=("job killed",),
)
def image_of_another_document(module: Any, mark: Any) -> None:
    original = module.Operations._attach

    def attach(self: Any, images: Any) -> Any:
        found = original(self, images)
        at = module.loading.oplog().operations
        [updates] = (self._table[:, at.IMAGE] != at.NONE).nonzero()
        if len(updates) > 1:
            mark()
            columns = slice(at.IMAGE, at.IMAGE + 2)
            self._table[updates[:2], columns] = self._table[updates[1::-1], columns]
        return found

    module.Operations._attach = attach


@mutation(
    "cdc.model.oplog.operation",
    "A large transaction consists of all its entries, which `prevOpTime` links.",
)
def earlier_entries_of_a_transaction_lost(module: Any, mark: Any) -> None:
    def list_parts(entry: Any, _: Any) -> Any:
        if entry["prevOpTime"]["ts"] != module._FIRST:
            mark()
        return [entry]

    module._list_parts = list_parts


@mutation(
    "cdc.model.change",
    "`txn` names the transaction of a change.",
    faults=("a while", "a while"),
)
def transaction_not_named(module: Any, mark: Any) -> None:
    def find_transaction(event: Any, _: str) -> None:
        if "lsid" in event:
            mark()

    module._find_transaction = find_transaction


@mutation("cdc.model.oplog.diff", "`update_description` describes the whole diff.")
def new_fields_not_described(module: Any, mark: Any) -> None:
    def describe_diff(diff: bytes) -> Any:
        parsed = module._parse_document(diff)
        if parsed.inserted:
            mark()
        parsed.inserted.clear()
        description = module._Description()
        description.add_document(parsed, ())
        return description.encode()

    module.describe_diff = describe_diff


@mutation(
    "cdc.mongo.topology.config_metadata",
    "A shard leaves out the documents that it did not own at T.",
    source=SHARDS,
    read_by="auto",
    keeps_orphans=True,
)
def ownership_ignored(module: Any, mark: Any) -> None:
    def version(*_: Any) -> None:
        mark()

    module.Metadata.version = version


@mutation(
    "cdc.mongo.topology.commit_point",
    "A batch contains the later events of transactions across shards that a read at T sees.",
    source=SHARDS,
    read_by="auto",
    failing=_SLOW_TRANSACTIONS,
    faults=("a while", "a while"),
)
def late_events_forgotten(module: Any, mark: Any) -> None:
    original = module.late_times

    def late_times(parts: Any, time: Any) -> Any:
        if original(parts, time):
            mark()
        return ()

    module.late_times = late_times


@mutation(
    "cdc.mongo.topology.commit_point",
    "T stays before each transaction across shards that is not decided.",
    # Some batches that copy read a document that such a transaction changes.
    source=MANY,
    read_by="auto",
)
def undecided_transactions_not_awaited(module: Any, mark: Any) -> None:
    original = module._before_undecided

    def before_undecided(shard: str, member: Any, time: Any) -> Any:
        if original(shard, member, time) != time:
            mark()
        return time

    module._before_undecided = before_undecided
