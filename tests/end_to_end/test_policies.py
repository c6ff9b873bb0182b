"""`on.drop` and `on.rename` on a real stream, while a client goes on writing under those names."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.database import Database
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet
from cdc.pipeline import Config, Replication
from cdc.pipeline import config as configuration
from tests.end_to_end.in_process import STALL_SECONDS, WRITERS_PAUSE, wait_until
from tests.mongo.capture import filled
from tests.slow import slow_but

# Written to again and again; and others, which nobody touches.
HOT, QUIET = range(10), range(100, 110)
DDL = ("drop", "rename")
Contents = dict[str, dict[str, Any]]


@contextmanager
def writing(uri: str, database: str, names: list[str]) -> Iterator[None]:
    """Whole documents only: the images of these do not depend on what is recorded."""
    stop, chance = threading.Event(), random.Random(7)

    def write() -> None:
        with MongoClient[dict[str, Any]](uri) as client:
            while not stop.is_set():
                collection, key = client[database][chance.choice(names)], chance.choice(HOT)
                if chance.random() < 0.3:
                    collection.delete_one({"_id": key})
                else:
                    document = {"_id": key, "n": chance.randrange(10**9)}
                    collection.replace_one({"_id": key}, document, upsert=True)
                time.sleep(WRITERS_PAUSE)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Stream:
    """A pipeline with these policies, by collection."""

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        database: Database[dict[str, Any]],
        base: Path,
    ) -> None:
        self.spark, self.uri, self.database, self.base = spark, uri, database, base
        self.reports: list[BatchReport] = []

    def config(self, policies: dict[str, dict[str, str]]) -> Config:
        names = [f"{self.database.name}.{coll}" for coll in policies]
        lines = [f'[source]\nuri = "{self.uri}"\ncollections = {names}']
        lines += [f'document.format = "bson"\n[sink]\npath = "{self.base / "lake"}"']
        for name, policy in zip(names, policies.values(), strict=True):
            options = [f'"{option}" = "{value}"' for option, value in policy.items()]
            lines += ["[[override]]", f'match = "{name}"', *options]
        file = self.base / "pipeline.toml"
        file.write_text("\n".join(lines))
        return configuration.load(str(file))

    def start(self, policies: dict[str, dict[str, str]]) -> Replication:
        return Replication(self.spark, self.config(policies), on_batch=self.reports.append)

    def wait_for(self, replication: Replication) -> None:
        """Until all is written that has happened by now, and copied."""
        with self.database.client.start_session() as session:
            self.database.command("ping", session=session)
            now = session.operation_time
        assert now is not None

        def is_there() -> bool:
            return any(each.watermark and each.watermark >= now for each in self.reports)

        wait_until(lambda: is_there() and not self.reports[-1].copying, replication, self.reports)

    def happen(self, ddl: str, coll: str) -> None:
        if ddl == "drop":
            self.database[coll].drop()
        else:
            self.database[coll].rename(f"once_{coll}")

    def content(self, coll: str) -> Contents:
        return {str(each["_id"]): each for each in self.database[coll].find()}

    def mirror(self, coll: str) -> Contents:
        rows = self.table(coll, "mirror").collect()
        assert len({row.key for row in rows}) == len(rows)
        return {row.key: bson.decode(row.document) for row in rows}

    def reported(
        self, coll: str, *, until: Timestamp | None = None, kept: bool = False
    ) -> Contents:
        """What the changelog makes of the collection, up to that time."""
        found: Contents = {}
        second = F.unix_seconds("cluster_time").alias("second")
        rows = self.table(coll, "changelog").select("*", second).orderBy("position")
        for row in rows.collect():
            if until and Timestamp(row.second, row.cluster_inc) > until:
                break
            if row.op in DDL and not kept:
                found.clear()
            elif row.after is not None:
                found[row.key] = bson.decode(row.after)
            elif row.op == "delete":
                found.pop(row.key, None)
        return found

    def table(self, coll: str, kind: str) -> Any:
        return self.spark.read.format("delta").load(
            f"{self.base}/lake/{self.database.name}/{coll}/{kind}"
        )


@pytest.fixture
def stream(
    spark: SparkSession, mongod: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path
) -> Stream:
    return Stream(spark, mongod.uri, database, tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ddl", slow_but([], DDL, soak=["rename"]))
def test_what_is_dropped_or_renamed_under_load_is_taken_out_or_kept_as_it_was(
    stream: Stream, ddl: str
) -> None:
    policies = {"orders": {f"on.{ddl}": "truncate"}, "others": {f"on.{ddl}": "keep"}}
    for coll in policies:
        filled(stream.database, coll, [*HOT, *QUIET])
    replication = stream.start(policies)
    with writing(stream.uri, stream.database.name, [*policies]):
        stream.wait_for(replication)
        for coll in policies:
            stream.happen(ddl, coll)
        stream.wait_for(replication)
    stream.wait_for(replication)
    replication.stop()
    orders, others = stream.mirror("orders"), stream.mirror("others")
    assert orders == stream.reported("orders") == stream.content("orders")
    assert others == stream.reported("others", kept=True)
    assert {str(key) for key in QUIET} <= others.keys()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ddl", slow_but([], DDL, soak=["drop"]))
def test_a_drop_or_rename_that_must_not_be_ends_the_run_under_load_and_another_policy_goes_on(
    stream: Stream, ddl: str
) -> None:
    filled(stream.database, "orders", [*HOT, *QUIET])
    filled(stream.database, "others", [*HOT])
    with writing(stream.uri, stream.database.name, ["orders", "others"]):
        replication = stream.start({"orders": {f"on.{ddl}": "fail"}, "others": {}})
        stream.wait_for(replication)
        stream.happen(ddl, "orders")
        with pytest.raises(StreamingQueryException, match=f"on.{ddl} = fail"):
            replication.query.awaitTermination(STALL_SECONDS)
        with pytest.raises(StreamingQueryException, match=f"on.{ddl} = fail"):
            replication.stop()  # the mirror gets the batches before that one
        written = stream.reports[-1].watermark
        assert stream.mirror("orders") == stream.reported("orders", until=written)
        replication = stream.start({"orders": {f"on.{ddl}": "truncate"}, "others": {}})
        stream.wait_for(replication)
    stream.wait_for(replication)
    replication.stop()
    for coll in ("orders", "others"):
        assert stream.mirror(coll) == stream.content(coll) == stream.reported(coll), coll
