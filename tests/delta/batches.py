"""Batches as the source makes them, written by hand: what the sinks' tests feed to `Sink`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc.delta.landing import Destinations, obstacles
from cdc.delta.sink import BatchReport, Sink
from cdc.delta.tables import KEYS, Layout
from cdc.tasks import MANIFEST, Storage, land
from tests.delta import delta_rs

SCHEMA = """op string, position string, cluster_time timestamp, cluster_inc int,
    wall_time timestamp, db string, coll string, key string, document_key string, before string,
    after string, update_description string,
    txn struct<lsid: string, number: bigint, shard: string>, description string, exact boolean"""


def position(time: int, event: int = 0) -> str:
    """Sorts like a token: `event` 0 is the high-water mark, before all events of its time."""
    return f"82{time:08X}000000012B0229296E04" + (f"{event:04X}" if event else "")


def change(
    op: str,
    key: str | None,
    after: Any = None,
    *,
    time: int,
    event: int | None = None,
    ns: tuple[str | None, str | None] = ("shop", "orders"),
    description: Any = None,
) -> dict[str, Any]:
    """A row at cluster time `time`:1. A `read` is at the high-water mark unless set otherwise."""
    if event is None:
        event = 0 if op in ("read", "watermark") else 1
    return {
        "op": op,
        "position": position(time, event),
        "cluster_time": datetime.fromtimestamp(time, UTC),
        "cluster_inc": 1,
        "wall_time": None,
        "db": ns[0],
        "coll": ns[1],
        "key": key,
        "document_key": None if key is None else json.dumps({"_id": key}),
        "before": None,
        "after": None if after is None else json.dumps(after),
        "update_description": None,
        "txn": None,
        "description": None if description is None else json.dumps(description),
        "exact": not (isinstance(description, dict) and "exactFrom" in description),
    }


def batch(
    spark: SparkSession,
    rows: Sequence[dict[str, Any]],
    *,
    until: int,
    copying: dict[str, Any] | None = None,
    copied: Sequence[str] = (),
    reported: dict[str, Any] | None = None,
    following: str = ".+",
    document: str = "variant",
) -> DataFrame:
    """The rows and their watermark row, over two partitions, in no order to rely on."""
    said = {
        "time": f"{until}:1",
        "copying": copying or {},
        "copied": list(copied),
        "reported": {"collections": ".+", "swept": None, "but": [], **(reported or {})},
        "collections": following,
        "offset": None,
    }
    watermark = change("watermark", None, time=until, ns=(None, None), description=said)
    frame = spark.createDataFrame([watermark, *reversed(rows)], SCHEMA).repartition(2)
    images = {"variant": F.try_parse_json, "binary": F.encode, "string": F.col}[document]
    for image in ("before", "after"):
        arguments = (image, "UTF-8") if document == "binary" else (image,)
        frame = frame.withColumn(image, images(*arguments))
    return frame


def sink(
    base: Path,
    pipeline: str = "one",
    *,
    with_changelog: bool = True,
    with_mirror: bool = True,
    overrides: Sequence[Mapping[str, Any]] = (),
    limit: int | None = None,
    by_spark: bool = False,
    interval: float | None = None,
    applies: bool = True,
    **table: Any,
) -> Sink:
    """With these keys of `[table]`, `_` for a dot where they have one.

    Rows land by tasks where that is possible, unless `by_spark`. Mirrors and histories are written
    with each batch, unless there is an `interval`.
    """
    off = {} if with_changelog else {"changelog": ""}
    off |= {} if with_mirror else {"mirror": ""}
    dotted = {name if name in KEYS else name.replace("_", "."): table[name] for name in table}
    keys = off | dotted
    layout = Layout.parse(str(base), keys, overrides)
    spark = SparkSession.getActiveSession()
    assert spark is not None, "a test of sinks has a session"
    kind = Sink if by_spark or any(obstacles(spark, layout)) else LandingSink
    return kind(
        *(pipeline, layout),
        clock=lambda: 1000.5,
        dead_letters_limit=limit,
        interval=interval,
        applies=applies,
    )


class LandingSink(Sink):
    """A sink that gets batches as `replicate` does: their rows lie in data files.

    The frame's own tasks land its rows.
    """

    def __init__(self, pipeline: str, layout: Layout, **others: Any) -> None:
        super().__init__(pipeline, layout, rows=StructType(), **others)
        self._layout = layout

    def write_batch(self, batch: DataFrame, batch_id: int) -> BatchReport:
        spark, self._rows = batch.sparkSession, batch.schema
        destinations = Destinations.discover(spark, self._layout, True)
        manifests = landed(batch, destinations, batch_id)
        return super().write_batch(manifests, batch_id)


def landed(batch: DataFrame, destinations: Destinations, batch_id: int = 0) -> DataFrame:
    """What tasks yield that read these rows."""
    text = destinations.text()

    def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        divide = partial(Destinations.parse(text).divide, batch_id)
        yield land(rows, divide, 2**27, Storage()).to_arrow()

    return batch.mapInArrow(task, MANIFEST)


def commits(path: Path | str) -> list[str]:
    """The operations in a table's log, oldest first; none if there is no table."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return [each["operation"] for each in reversed(DeltaTable(str(path)).history())]


# An engine without Spark reads in a tenth of the time.
def content(path: Path | str) -> dict[str, Any]:
    """A mirror with variant documents, as key -> document."""
    return delta_rs.by_key(Path(path), "document")


def ops(path: Path | str) -> list[tuple[str, str | None]]:
    """A changelog as (op, key), in its order."""
    rows = delta_rs.read(Path(path), "SELECT op, key FROM t ORDER BY position, key NULLS FIRST")
    return [(row["op"], row["key"]) for row in rows]
