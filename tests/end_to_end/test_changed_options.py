"""What becomes of a pipeline whose options are other ones than those it ran with before: what the
documents say of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cdc.cli import backfill, follow, replicate, verify
from cdc.demo import ReplicaSet
from cdc.model import Namespace
from tests.end_to_end.past import Past, past_of

pytestmark = pytest.mark.slow

# All at once: each by itself changes nothing of what is reported.
AT_ANY_TIME = (
    "missing.collections=wait",
    "mode=latest",
    "images=required",
    "on.replaced=fail",
    "on.oversize=fail",
    "on.history.lost=skip",
    "oplog.window.warn=0",
    "split.size.mb=1",
    "snapshot.splits.per.batch=1",
    "stream.parallelism=1",
    "max.events.per.batch=2",
    "max.mb.per.batch=1",
    "server.timeout.ms=20000",
    "heartbeat.interval=2",
    "retry.seconds=30",
    "sink.trigger=1 seconds",
    "sink.stop.seconds=5",
    "sink.dead.letters.limit=5",
    "table.on.drop=keep",
    "table.on.rename=keep",
    "table.history={db}/{coll}/history",
)
REFUSED = {
    "document.format=json": (2, "document.format"),
    "images=off": (2, "images"),
    "shards.direct=true": (1, "shards.direct"),
    "table.form=cdf": (2, "form"),
    "table.delete=soft": (2, "delete"),
}


@pytest.fixture(scope="module")
def past(
    spark: SparkSession, mongod: ReplicaSet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Past]:
    folder = tmp_path_factory.mktemp("past") / "lakehouse"
    with past_of(spark, mongod, Namespace("changed", "orders"), folder) as past:
        yield past


@pytest.fixture
def again(past: Past, tmp_path: Path) -> Any:
    """Calls a program on a copy of the pipeline, with other options."""
    past.copied(tmp_path / "lakehouse")

    def call(program: Any, *more: str, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
        options = [*past.options(tmp_path / "lakehouse"), *more]
        given = [item for option in options for item in ("-o", option)]
        done = CliRunner().invoke(program.main, [*given, *arguments])
        return done.exit_code, done.output

    return call


def test_what_may_change_at_any_time_changes_nothing_of_what_is_reported(
    past: Past, mongod: ReplicaSet, again: Any
) -> None:
    _write(mongod, past)
    code, said = again(replicate, *AT_ANY_TIME, arguments=("--available-now",))
    assert code == 0, said
    code, said = again(verify)
    assert code == 0, said


@pytest.mark.parametrize("option", REFUSED)
def test_what_may_not_change_is_refused_and_writes_nothing(
    past: Past, mongod: ReplicaSet, again: Any, tmp_path: Path, option: str
) -> None:
    _write(mongod, past)
    before = set(tmp_path.rglob("_delta_log/*.json"))
    code, said = again(replicate, option, arguments=("--available-now",))
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert (code, len(errors)) == (REFUSED[option][0], 1), said
    assert REFUSED[option][1] in errors[0]
    assert "Remedy:" in errors[0]
    assert set(tmp_path.rglob("_delta_log/*.json")) == before


def test_a_source_of_another_name_is_refused(past: Past, again: Any) -> None:
    with ReplicaSet(name="other") as other:
        with other.client() as client:
            client[past.orders.db][past.orders.coll].insert_one({})
        code, said = again(replicate, f"uri={other.uri}", arguments=("--available-now",))
    assert code == 1, said
    assert "The checkpoint was written for 'rs0'" in said


def test_a_mirror_at_another_place_is_filled_by_a_backfill(
    past: Past, mongod: ReplicaSet, again: Any
) -> None:
    _write(mongod, past)
    elsewhere = "table.mirror={db}/{coll}/elsewhere"
    assert again(replicate, elsewhere, arguments=("--available-now",))[0] == 0
    assert again(verify, elsewhere)[0] == 6
    which = ("--collection", str(past.orders), "--into", "mirror", "--repair")
    code, said = again(backfill, elsewhere, arguments=which)
    assert code == 0, said
    assert again(verify, elsewhere)[0] == 0


def test_a_changelog_that_was_taken_out_for_a_while_rebuilds_no_mirror(
    past: Past, mongod: ReplicaSet, again: Any
) -> None:
    """Guards: a right mirror that is replaced by what a changelog with a hole gives."""
    for options in (("table.changelog=",), ()):
        _write(mongod, past)
        code, said = again(replicate, *options, arguments=("--available-now",))
        assert code == 0, said
    code, said = again(follow, arguments=("--rebuild", "--collection", str(past.orders)))
    assert code != 0
    assert "the configuration had none for it for a while" in said
    assert again(verify)[0] == 0


def _write(mongod: ReplicaSet, past: Past) -> None:
    with mongod.client() as client:
        client[past.orders.db][past.orders.coll].update_many(
            {"_id": {"$lt": 8}}, {"$inc": {"n": 1}}
        )
