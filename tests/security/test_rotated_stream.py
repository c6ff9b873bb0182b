"""A stream whose password is changed goes on, with driver, planner and tasks, without a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.delta.sink import BatchReport
from cdc.model import Namespace
from cdc.pipeline import Replication
from cdc.pipeline import config as configuration
from tests.end_to_end.in_process import wait_until
from tests.mongo.access import guarded_server
from tests.mongo.capture import filled
from tests.security.test_rotation import changed_password
from tests.slow import slow_but

ORDERS = Namespace("shop", "orders")


@pytest.mark.parametrize("first", slow_but([], ["file", "server"], soak=["server"]))
def test_a_stream_whose_password_is_changed_goes_on(
    spark: SparkSession, tmp_path: Path, first: str
) -> None:
    file, reports = tmp_path / "uri", list[BatchReport]()
    with guarded_server(tmp_path) as server:
        file.write_text(server.user(roles=[{"role": "read", "db": "shop"}], name="rotated"))
        coll = filled(server.client["shop"], "orders", range(5))
        given = [f"uri=file:{file}", f"collections={ORDERS}", "document.format=bson"]
        config = configuration.load(None, [*given, f"sink.path={tmp_path / 'lake'}"])
        replication = Replication(spark, config, on_batch=reports.append)

        def counted(op: str) -> int:
            return sum(each.counts.get(ORDERS, {}).get(op, 0) for each in list(reports))

        try:
            wait_until(lambda: counted("read") == 5, replication, reports)
            if first == "file":
                file.write_text(server.uri("rotated", "another"))
            uri = changed_password(server, "rotated", "another")
            coll.insert_one({"_id": 100})
            file.write_text(uri)
            wait_until(lambda: counted("insert") == 1, replication, reports)
        finally:
            replication.stop()
