"""A run that verifies the oplog, and meets a row that a change stream reports in another way.

The server gives the cause: MongoDB 6.0 repeats a field that an update by a pipeline moved, and a
projection of a change stream then has its earlier value. See docs/project/limits.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bson
import pytest
from pymongo.database import Database
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

from cdc.model import Namespace
from cdc.pipeline import Config, Replication
from tests.end_to_end.in_process import STALL_SECONDS, replicated
from tests.mongo.capture import filled

_EARLIER, _STORED = 2, 6
_REASON = "a difference from the change stream"


@pytest.mark.slow
def test_a_difference_ends_the_run_with_both_positions_or_falls_back_when_told(
    database: Database[dict[str, Any]], spark: SparkSession, pipeline: Callable[..., Config]
) -> None:
    coll = filled(database, "a", [2])
    deep: dict[str, Any] = {"n": 3, "pad": "x" * 100}
    coll.insert_one({"_id": 1, "pad": "x" * 100, "deep": {"moved": _EARLIER, **deep}})
    namespace = Namespace(database.name, "a")
    given = (str(namespace), "fields=deep.moved", "oplog.verify=1")
    config = pipeline(*given)
    replicated(spark, config)
    coll.update_one({"_id": 2}, {"$inc": {"n": 1}})
    moved = {"_id": 1, "pad": "$pad", "deep": {"n": "$deep.n", "pad": "$deep.pad"}}
    moved["deep"]["moved"] = _STORED
    coll.update_one({"_id": 1}, [{"$replaceWith": moved}])

    failed = Replication(spark, config, available_now=True)
    with pytest.raises(StreamingQueryException, match=r"after of the change at 82\w+ in the oplog"):
        failed.query.awaitTermination(STALL_SECONDS)
    with pytest.raises(StreamingQueryException, match=r"differ from the change at 82"):
        failed.stop()
    assert changes(spark, config, namespace) == []

    told = Replication(
        spark, pipeline(*given, "oplog.on.difference=change_stream"), available_now=True
    )
    told.query.awaitTermination(STALL_SECONDS)
    status = told.status()
    told.stop()
    assert status.streamed == {_REASON: 1}
    assert status.to_json()["changeStreamSlices"] == {_REASON: 1}
    other, own = changes(spark, config, namespace)
    assert bson.decode(other["after"]) == {"_id": 2}
    assert bson.decode(own["after"])["deep"] == {"moved": _EARLIER}, "the server repeats no field"


def changes(spark: SparkSession, config: Config, namespace: Namespace) -> list[Row]:
    table = config.table("changelog", namespace)
    assert table is not None
    return table.target.read(spark).where("op = 'update'").orderBy("position").collect()
