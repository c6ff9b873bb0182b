"""The judge of long runs finds each kind of damage: that it found none is worth as much as that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.model import Namespace
from cdc.pipeline import Config
from tests.end_to_end.in_process import replicated
from tests.end_to_end.sustained.judged import judged
from tests.mongo.capture import filled

# Each of other rows.
_DAMAGES = {
    "changelog": (
        "DELETE FROM {0} WHERE op = 'update' AND key = '1'",
        "INSERT INTO {0} SELECT * FROM {0} WHERE op = 'update' AND key = '2'",
        "UPDATE {0} SET after = before WHERE op = 'update' AND key = '3'",
        "UPDATE {0} SET exact = false WHERE op = 'update' AND key = '4'",
        "UPDATE {0} SET key = '99' WHERE op = 'delete'",
    ),
    "mirror": (
        "DELETE FROM {0} WHERE key = '7'",
        "UPDATE {0} SET key = '99' WHERE key = '8'",
    ),
}
_FOUND = [
    "1 rows stand more than once",
    # What was reported twice, what comes after the update that led elsewhere, the delete of nobody.
    "3 rows do not follow from the one before of their key",
    "1 rows are not exact",
    "2 changes are missing",
    "2 changes never happened",
    "2 documents are not in the mirror",
    "1 documents in the mirror are not the source's",
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_judge_finds_each_damage_and_nothing_before_there_is_any(
    spark: SparkSession,
    mongo: MongoClient[dict[str, Any]],
    database: Database[dict[str, Any]],
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    orders = Namespace(database.name, "orders")
    config = pipeline(str(orders), "split.size.mb=64")
    filled(database, "orders", range(10))
    replicated(spark, config)
    until = changed(database)
    replicated(spark, config)

    assert judged(spark, mongo, config, orders, until, tmp_path) == (8, [])
    for kind, damages in _DAMAGES.items():
        table = config.table(kind, orders)
        assert table is not None
        for damage in damages:
            spark.sql(damage.format(table.target.sql(spark)))
    assert judged(spark, mongo, config, orders, until, tmp_path) == (8, _FOUND)


def changed(database: Database[dict[str, Any]]) -> Timestamp:
    """Until when."""
    orders = database["orders"]
    for key in (1, 2, 3, 4):
        orders.update_one({"_id": key}, {"$set": {"n": 1}})
    orders.replace_one({"_id": 3}, {"n": 2})
    orders.delete_one({"_id": 5})
    orders.insert_one({"_id": 11})
    orders.update_one({"_id": 11}, {"$set": {"n": 1}})
    return database.command("ping")["operationTime"]  # type: ignore[no-any-return]
