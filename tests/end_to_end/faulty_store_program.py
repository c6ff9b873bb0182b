"""Replicates into an object store whose requests fail, with a JVM of its own."""

from __future__ import annotations

import json
import logging
import random
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pymongo import MongoClient
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from cdc.errors import CdcError
from cdc.model import ROW_EVENTS, Namespace
from cdc.pipeline import Config, session, verify
from cdc.pipeline import config as configuration
from tests.end_to_end.object_store_program import run

_NAME = Namespace("faulty", "orders")
_RATE = 0.05
# One copies; the others have changes.
_ROUNDS = 3


def main(uri: str, checkpoint: str, endpoint: str, seed: str, seconds: str) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    options = [
        *(f"source.uri={uri}", f'source.collections=["{_NAME}"]', f"storage.endpoint={endpoint}"),
        *("sink.path=s3a://lake/of/it", f"sink.checkpoint={checkpoint}", "sink.mirror.interval=0"),
        *("storage.access.key=env:S3_ACCESS", "storage.secret.key=env:S3_SECRET"),
        "sink.write.by=tasks",
    ]
    config = configuration.load(None, options)
    spark = session("faulty store", "local[2]", config=config)
    orders = MongoClient[dict[str, Any]](uri)[_NAME.db][_NAME.coll]
    chance, failed = random.Random(int(seed)), Counter[str]()
    _switch(endpoint, _RATE)
    ends = time.monotonic() + float(seconds)
    rounds = 0
    while rounds < _ROUNDS or time.monotonic() < ends:
        _write(orders, chance)
        failed += _try(spark, config)
        rounds += 1
    _switch(endpoint, 0.0)
    run(spark, config)
    changelog = config.table("changelog", _NAME)
    assert changelog
    rows = changelog.target.read(spark)
    changes = rows.where(F.col("op").isin(*ROW_EVENTS))
    found: dict[str, Any] = {
        "rounds": rounds,
        "failed": failed,
        "equal": verify(spark, config, _NAME, False).is_equal,
        "changes": {row.op: row["count"] for row in changes.groupBy("op").count().collect()},
        "positions": changes.select("position").distinct().count(),
        "copied": rows.where("op = 'read'").count(),
    }
    Path(checkpoint, "found.json").write_text(json.dumps(found))


def _switch(endpoint: str, rate: float) -> None:
    urllib.request.urlopen(f"{endpoint}/faults/{rate}").close()


def _write(orders: Any, chance: random.Random) -> None:
    """Insert 20 documents, change 10, delete 10."""
    keys = [each["_id"] for each in orders.find({}, {"_id": 1})]
    changed = chance.sample(keys, 20)
    first = max(keys) + 1
    orders.insert_many([{"_id": first + number, "n": 0} for number in range(20)])
    for key in changed[10:]:
        orders.update_one({"_id": key}, {"$inc": {"n": 1}})
    for key in changed[:10]:
        orders.delete_one({"_id": key})


def _try(spark: Any, config: Config) -> Counter[str]:
    """Replicate what there is; return the name of the error, if it fails."""
    try:
        run(spark, config)
    except (CdcError, PySparkException, Py4JError, OSError) as error:
        return Counter([type(error).__name__])
    return Counter()


if __name__ == "__main__":
    main(*sys.argv[1:])
