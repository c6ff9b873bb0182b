"""What is reported of a copy's end, and of which times a changelog gives the collection.

The rule is put together here from the rows as the sink does it, without Spark; what it says is
compared with reads of the server at those times.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.database import Database

from cdc.model import (
    MARKING,
    Coverage,
    Effect,
    Mark,
    Namespace,
    Offset,
    Watermark,
    marks_of_row,
    resume_token,
    timestamp,
)
from tests.mongo.abilities import abilities
from tests.mongo.capture import (
    Batch,
    Capture,
    Contents,
    Document,
    contents,
    filled,
    repeated,
    replayed,
)
from tests.slow import slow_but

Begin = Callable[..., Capture]


def copied(batch: Batch) -> list[str]:
    return sorted(name.coll for name in Watermark.of(batch.start, batch.end).copied)


def test_the_end_of_each_copy_is_reported_once_and_of_empty_collections_too(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: one that is dropped in the midst of its copy, or before it is copied again."""
    for name in ("a", "c"):
        filled(database, name, range(30))
    filled(database, "b", [])
    pipeline = capture("[abcd]", splits_per_batch=2)
    pipeline.batch()
    assert pipeline.offset.copying is not None
    pipeline.run()
    assert [copied(batch) for batch in pipeline.batches if copied(batch)] == [["a", "b"], ["c"]]
    filled(database, "d", range(5))
    pipeline.run()
    database["a"].aggregate([{"$out": "c"}])
    assert pipeline.batch().end.again
    database.drop_collection("c")
    reported = [copied(batch) for batch in pipeline.run()]
    assert [name for names in reported for name in names] == ["c"]


def test_a_range_that_was_void_is_reported_to_a_sink_only(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "b", range(15))
    for option, ops in (("false", set()), ("true", {"void"})):
        pipeline = capture("b", emit_watermark=option)
        batch = pipeline.read(pipeline.plan(), meanwhile=partial(database["b"].rename, "away"))
        assert {row.op for row in batch.rows} == ops
        database["away"].rename("b")


class Covered:
    """The coverage of each collection's changelog, batch by batch."""

    def __init__(self) -> None:
        self.of: dict[Namespace, tuple[Timestamp, Coverage]] = {}

    def add(self, batch: Batch, names: list[Namespace]) -> None:
        said = Watermark.of(batch.start, batch.end)
        rows = [*batch.rows, *batch.resyncs]
        found = [
            each
            for row in rows
            if row.op in MARKING
            for each in marks_of_row(
                row.op, row.db, row.coll, row.position, _time(row), row.description
            )
        ]
        void = {(row.db, row.coll) for row in rows if row.op == "void"}
        for name in names:
            is_copied = name in said.copied and name not in void
            marks = [each.mark for each in found if each.concerns(name)]
            last, before = self.of.get(name, (None, Coverage()))
            if last is not None and said.is_deselected(name):
                marks.append(Mark(resume_token.position_after(said.time), said.time, Effect.LOST))
            if not (marks or is_copied or any((row.db, row.coll) == name for row in rows)):
                continue  # no commit
            after = before.after(
                last,
                marks,
                is_complete=said.contains_changes(name),
                is_copying=False,
                copied_from=said.time if is_copied else None,
            )
            self.of[name] = said.time, after


def _time(row: Any) -> Timestamp:
    return Timestamp(row.cluster_time // 1_000_000, row.cluster_inc)


def test_of_which_time_there_are_no_changes_is_reported_and_not_covered(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: content that is replaced while another collection is copied waits for that copy."""
    a, c = filled(database, "a", range(15)), filled(database, "c", range(60))
    pipeline = capture("[abc]", splits_per_batch=2, emit_watermark="true")
    while pipeline.offset.copying is None or pipeline.offset.copying.namespace.coll != "c":
        pipeline.batch()
    c.aggregate([{"$match": {"_id": {"$lt": 15}}}, {"$set": {"n": 7}}, {"$out": "a"}])
    cut, inside = pipeline.batch().end.time, []
    while pipeline.offset.again:
        a.update_one({"_id": 3}, {"$inc": {"n": 1}})
        inside.append(database.command("ping")["operationTime"])
        pipeline.batch()
    begun = pipeline.batches[-1]
    missing = json.dumps({"from": timestamp.text(cut), "to": timestamp.text(begun.end.time)})
    assert [(row.coll, row.description) for row in pipeline.resyncs] == [
        ("a", None),
        ("a", missing),
    ]
    assert begun.start.time > cut
    assert not [row for row in pipeline.rows if row.coll == "a" and row.op == "update"]

    end = Offset.from_json(json.loads(json.dumps(begun.end.to_json())))
    pipeline.batches.pop()
    again = pipeline.restarted(f"{database.name}.[abc]", splits_per_batch=2, emit_watermark="true")
    again.offset = begun.start
    replay = again.read(end)
    can = abilities(database.client)
    assert replay.resyncs == begun.resyncs
    assert repeated(replay.rows, can) == repeated(begun.rows, can)

    a.update_one({"_id": 3}, {"$inc": {"n": 1}})
    again.run()
    covered, name = Covered(), Namespace(database.name, "a")
    for batch in again.batches:
        covered.add(batch, [name])
    until, coverage = covered.of[name]
    missed = [cut, *(at for at in inside if at < begun.end.time)]
    assert len(missed) > 2
    assert not [at for at in missed if coverage.at(at, until)]
    assert coverage.at(timestamp.before(cut), until)
    assert coverage.at(begun.end.time, until)
    assert [row.op for row in again.rows if row.coll == "a" and row.op == "update"] == ["update"]
    assert again.replayed(a) == contents(a)


class Life:
    """What happens to the collections of a database; and what they held at which time."""

    def __init__(self, database: Database[Document], seed: int) -> None:
        self.database, self.random = database, random.Random(seed)
        self.held: list[tuple[Timestamp, str, Contents]] = []
        self.happened: dict[str, int] = {}

    def go_on(self) -> None:
        """Writes and DDL, at times that nothing else was written at."""
        for _ in range(self.random.randint(1, 3)):
            name = self.random.choice("abcd")
            ways = [self._write] * 5 + [self._drop, self._rename, self._out]
            self.random.choice(ways)(self.database[name])
            self._look()

    def _look(self) -> None:
        at = self.database.command("ping")["operationTime"]
        self.held += [(at, name, contents(self.database[name], at)) for name in "abcd"]

    def _write(self, coll: Any) -> None:
        n = self.random.randrange(20)
        if self.random.random() < 0.3:
            coll.delete_one({"_id": n})
        else:
            coll.replace_one({"_id": n}, {"n": self.random.random()}, upsert=True)

    def _drop(self, coll: Any) -> None:
        coll.drop()

    def _rename(self, coll: Any) -> None:
        if coll.name in self.database.list_collection_names():
            to = self.random.choice(["elsewhere", *set("abcd") - {coll.name}])
            coll.rename(to, dropTarget=True)

    def _out(self, coll: Any) -> None:
        coll.aggregate([{"$match": {"_id": {"$lt": 9}}}, {"$out": self.random.choice("abcd")}])


@pytest.mark.parametrize("seed", slow_but([3], [3, 21], soak=[21]))
def test_what_a_changelog_covers_is_the_collection_at_each_time(
    capture: Begin, database: Database[Document], seed: int
) -> None:
    """Guards: collections that are not reached, void, dropped in their copy, replaced, taken out
    and put back."""
    if not abilities(database.client).reads_at_a_time:
        return
    for name in "abc":
        filled(database, name, range(15))
    names = [Namespace(database.name, name) for name in "abcd"]
    life, covered = Life(database, seed), Covered()
    mode = "latest" if seed == 3 else "initial"
    pipeline = capture("[abcd]", splits_per_batch=1, mode=mode, emit_watermark="true")
    for step in range(60):
        if step in (25, 35):  # `d` and `c` are taken out, and put back
            chosen = r"[ab]" if step == 25 else "[abcd]"
            pipeline = pipeline.restarted(
                f"{database.name}.{chosen}", splits_per_batch=1, mode=mode, emit_watermark="true"
            )
        if life.random.random() < 0.7:
            life.go_on()
        meanwhile = life.go_on if life.random.random() < 0.3 else lambda: None
        covered.add(pipeline.read(pipeline.plan(), meanwhile), names)
    for batch in pipeline.run():
        covered.add(batch, names)
    reported, proven = [*pipeline.resyncs, *pipeline.rows], 0
    for at, name, held in life.held:
        end, coverage = covered.of.get(Namespace(database.name, name), (at, Coverage()))
        if span := coverage.at(at, end):
            since = resume_token.high_water_mark(span.since) if span.from_nothing else ""
            rows = [
                row for row in reported if since < row.position <= resume_token.position_after(at)
            ]
            assert replayed(rows, database.name, name) == held, (name, at, coverage.text(end))
            proven += 1
    assert proven > 100, f"{proven} of {len(life.held)}"
