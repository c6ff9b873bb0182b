"""Defects in what follows changelogs: mirrors, histories, live views."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.end_to_end.mutations.mutation import mutation


@mutation(
    "cdc.delta.followers.pending_batches",
    "A follower applies whole batches, and leaves none out.",
    options=("sink.mirror.interval=4",),
)
def batch_skipped(module: Any, mark: Any) -> None:
    original = module.PendingBatches.up_to

    def up_to(self: Any, last: int) -> Any:
        found = original(self, last)
        if len(found) > 1:
            mark()
        return found[-1:]

    module.PendingBatches.up_to = up_to


@mutation(
    "cdc.delta.followers.pending_batches",
    "After a restart a follower finds the batches that its table lacks.",
    options=("sink.mirror.interval=4",),
    faults=("job killed",) * 2,
)
def pending_batches_not_recovered(module: Any, mark: Any) -> None:
    def find(self: Any, *_: Any) -> None:
        mark()

    module.PendingBatches.find = find


@mutation(
    "cdc.delta.followers.pending",
    "The last batch that a table states is the last that it contains.",
)
def table_states_a_later_batch(module: Any, mark: Any) -> None:
    original = module.join

    def join(*arguments: Any) -> Any:
        mark()
        batch = original(*arguments)
        return module.replace(batch, number=batch.number + 1)

    module.join = join


@mutation(
    "cdc.delta.followers.merges.last_changes",
    "Of each key the change with the greatest position counts.",
)
def first_change_of_a_key_wins(module: Any, mark: Any) -> None:
    original = module._last

    def last(rows: Any) -> Any:
        first = rows.sort_by([("key", "ascending"), ("position", "ascending")])
        keys = first.column("key").to_pylist()
        firsts = [
            number for number, key in enumerate(keys) if number == 0 or keys[number - 1] != key
        ]
        if len(firsts) < len(keys):
            mark()
        return original(first.take(firsts))

    module._last = last


@mutation("cdc.delta.followers.merges.last_changes", "A delete removes the row of its key.")
def deletes_ignored(module: Any, mark: Any) -> None:
    original = module._last

    def last(rows: Any) -> Any:
        found = original(rows)
        is_kept = module.pc.not_equal(found.column("op"), "delete")
        if not module.pc.all(is_kept).as_py():
            mark()
        return found.filter(is_kept)

    module._last = last


@mutation(
    "cdc.delta.followers.merges.key_search",
    "A new deletion vector includes the rows of the one before.",
)
def deletion_vector_forgotten(module: Any, mark: Any) -> None:
    original = module.read_vector

    def read_vector(folder: Any, vector: Any) -> Any:
        if original(folder, vector):
            mark()
        return module.BitMap()

    module.read_vector = read_vector


@mutation(
    "cdc.delta.followers.merges.file_merge",
    "The positions in a mirror are those of the last changes.",
)
def position_of_a_mirror_not_renewed(module: Any, mark: Any) -> None:
    original = module.mirror_rows

    def mirror_rows(rows: Any, image: Any) -> Any:
        mark()
        found = original(rows, image)
        number = found.schema.get_field_index("_position")
        earlier = module.pa.array(["82"] * len(found))
        return found.set_column(number, "_position", earlier)

    module.mirror_rows = mirror_rows


@mutation(
    "cdc.delta.followers.merges.scd2_merge",
    "A delete ends the version of its document.",
    options=("table.history={db}/{coll}/history",),
)
def delete_ends_no_version(module: Any, mark: Any) -> None:
    original = module.change_events

    def change_events(changes: Any, keys: Any) -> Any:
        mark()
        return original(changes.where("op <> 'delete'"), keys)

    module.change_events = change_events


@mutation(
    "cdc.delta.reading.live_view",
    "A live view includes the batches that its mirror lacks.",
    reads_live=True,
)
def tail_not_in_the_live_view(module: Any, mark: Any) -> None:
    class Nothing(module.PendingBatches):  # type: ignore[misc, name-defined]
        def up_to(self, last: int) -> Any:
            mark()
            return []

    module.PendingBatches = Nothing


@mutation(
    "cdc.delta.reading.live_view",
    "In a live view a delete of the tail removes the mirror's row.",
    reads_live=True,
)
def deleted_documents_in_the_live_view(module: Any, mark: Any) -> None:
    original = module.mirror.last_changes

    def last_changes(rows: Any, key: Any) -> Any:
        mark()
        return original(rows, key).where("_op <> 'delete'")

    module.mirror = SimpleNamespace(**{**vars(module.mirror), "last_changes": last_changes})
