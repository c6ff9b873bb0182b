"""A pipeline that has run a few times, for tests that start it again from where it stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from cdc.cli import replicate
from cdc.demo import ReplicaSet
from cdc.model import Namespace
from cdc.pipeline import Config
from cdc.pipeline import config as configuration
from tests.delta.lakehouse import left_over, made

_DOCUMENTS = 20


class Past:
    """A pipeline that has run three times; `copied` is another one that stands where it stands, but
    for the commits of tables that were not made."""

    def __init__(
        self, spark: SparkSession, uri: str, orders: Namespace, folder: Path, *settings: str
    ) -> None:
        self.spark, self._uri, self.orders, self.folder = spark, uri, orders, folder
        self._settings = settings

    def options(self, folder: Path) -> list[str]:
        """Of the pipeline, if its tables lie there."""
        given = [f"uri={self._uri}", f"collections={self.orders}", f"sink.path={folder}"]
        return [*given, *self._settings]

    def config(self, folder: Path, *more: str) -> Config:
        return configuration.load(None, [*self.options(folder), *more])

    def once(self, config: Config) -> None:
        replicate.run(config, True, Console(file=StringIO()))

    @property
    def last(self) -> int:
        return max(int(path.name) for path in (self.folder / "_checkpoint/offsets").glob("[0-9]*"))

    def copied(
        self,
        into: Path,
        without: Callable[[str], bool] = lambda table: False,
        since: int | None = None,
    ) -> Config:
        """Without what the batches from `since` on, by default the last, wrote into some tables."""
        first = self.last if since is None else since
        commits = [
            each
            for each in made(self.folder)
            if not (without(each.table) and self._batch(each.file(self.folder)) >= first)
        ]
        left_over(self.folder, into, commits)
        return self.config(into)

    def _batch(self, commit: Path) -> int:
        infos = [json.loads(line).get("commitInfo") for line in commit.read_text().splitlines()]
        reported = [info["userMetadata"] for info in infos if info and "userMetadata" in info]
        return int(json.loads(reported[0])["batch"]) if reported else -1


@contextmanager
def past_of(
    spark: SparkSession, mongod: ReplicaSet, orders: Namespace, folder: Path, *settings: str
) -> Iterator[Past]:
    """Three batches: a copy, and two of changes."""
    with mongod.client() as client:
        database = client[orders.db]
        images = {"enabled": True}
        written = database.create_collection(orders.coll, changeStreamPreAndPostImages=images)
        written.insert_many({"_id": number, "n": 0} for number in range(_DOCUMENTS))
        past = Past(spark, mongod.uri, orders, folder, "heartbeat.interval=1", *settings)
        config = past.config(folder)
        past.once(config)
        for _ in range(2):
            written.update_many({"_id": {"$lt": 5}}, {"$inc": {"n": 1}})
            written.delete_one({"_id": past.last + 10})
            past.once(config)
        yield past
        client.drop_database(orders.db)
