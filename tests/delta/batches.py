"""Batches as the source makes them, written by hand: what the sinks' tests feed to `Sink`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from deltalake import DeltaTable
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.variant_utils import VariantBuilder

from cdc.delta.landing import Destinations, obstacles
from cdc.delta.sink import BatchReport, Sink
from cdc.delta.tables import KEYS, Layout, LayoutHistory
from cdc.tasks import MANIFEST, Storage, land
from tests.delta import delta_rs

SCHEMA = """op string, position string, cluster_time timestamp, cluster_inc int,
    wall_time timestamp, db string, coll string, key string, document_key string,
    before {document}, after {document}, update_description string,
    txn struct<lsid: string, number: bigint, shard: string>, description string, exact boolean"""


def position(time: int, event: int = 0) -> str:
    """Sorts like a token: `event` 0 is the high-water mark, before all events of its time."""
    return f"82{time:08X}000000012B0229296E04" + (f"{event:04X}" if event else "")


def time_of(found: str) -> int:
    """The time of such a position."""
    return int(found[2:10], 16)


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
    """The rows and their watermark row, over two partitions, in no order to rely on.

    The images are made here, not by Spark: a frame that needs no job is what makes tests cheap.
    """
    said = {
        "time": f"{until}:1",
        "copying": copying or {},
        "copied": list(copied),
        "reported": {"collections": ".+", "swept": None, "but": [], **(reported or {})},
        "collections": following,
        "offset": None,
    }
    watermark = change("watermark", None, time=until, ns=(None, None), description=said)
    every = [watermark, *reversed(rows)]
    image = _FORMS[document]
    dealt = [{**row, **_images(row, image)} for part in (0, 1) for row in every[part::2]]
    return _frame(spark, dealt, _schema(document))


def with_images(frame: DataFrame, images: Mapping[tuple[str, str], Any]) -> DataFrame:
    """A batch with other images, in Arrow's form, by (position, column)."""
    rows = _TABLES[frame].to_pylist()
    for row in rows:
        row |= {name: images.get((row["position"], name), row[name]) for name in _IMAGES}
    return _frame(frame.sparkSession, rows, frame.schema)


# Frames that were made of a table become one again without a job.
_TABLES = WeakKeyDictionary[DataFrame, pa.Table]()


def _frame(spark: SparkSession, rows: list[dict[str, Any]], schema: StructType) -> DataFrame:
    table = pa.Table.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    frame = spark.createDataFrame(table, schema)
    _TABLES[frame] = table
    return frame


def _variant(text: str) -> dict[str, bytes]:
    value, metadata = VariantBuilder().build(text)
    return {"value": value, "metadata": metadata}


_IMAGES = ("before", "after")
_FORMS: dict[str, Callable[[str], Any]] = {"variant": _variant, "binary": str.encode, "string": str}


def _images(row: Mapping[str, Any], image: Callable[[str], Any]) -> dict[str, Any]:
    texts = {name: row[name] for name in _IMAGES}
    return {name: None if text is None else image(text) for name, text in texts.items()}


@cache
def _schema(document: str) -> StructType:
    return StructType.fromDDL(SCHEMA.format(document=document))


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
    waits: Callable[[], bool] = lambda: False,
    gap: Callable[[], float] = lambda: 0.0,
    layouts: LayoutHistory | None = None,
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
        waits=waits,
        gap=gap,
        layouts=layouts,
    )


class LandingSink(Sink):
    """A sink that gets batches as `replicate` does: their rows lie in data files.

    What tasks do with the rows is done here: see `landed`.
    """

    def __init__(self, pipeline: str, layout: Layout, **others: Any) -> None:
        super().__init__(pipeline, layout, rows=StructType(), **others)
        self._layout, self.parts = layout, 2

    def write_batch(self, batch: DataFrame, batch_id: int) -> BatchReport:
        spark, self._rows = batch.sparkSession, batch.schema
        destinations = Destinations.discover(spark, self._layout, True)
        manifests = landed(batch, destinations, batch_id, self.parts)
        return super().write_batch(manifests, batch_id)


def landed(
    batch: DataFrame, destinations: Destinations, batch_id: int = 0, parts: int = 2
) -> DataFrame:
    """What so many tasks yield that read these rows, each an equal part of them.

    They run in this process, unless Spark has to make the rows first.
    """
    if batch not in _TABLES:
        return landed_by_tasks(batch, destinations, batch_id)
    table, text = _TABLES[batch], destinations.text()
    size, manifests = -(-len(table) // parts), []
    for part, start in enumerate(range(0, parts * size, size)):
        divide = partial(Destinations.parse(text).divide, batch_id)
        rows = table[start : start + size].to_batches()
        manifests.append(land(rows, divide, 2**27, Storage()).to_arrow(batch_id, part))
    return batch.sparkSession.createDataFrame(pa.Table.from_batches(manifests), MANIFEST)


def landed_by_tasks(batch: DataFrame, destinations: Destinations, batch_id: int = 0) -> DataFrame:
    """What tasks of Spark yield that read these rows."""
    text = destinations.text()

    def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        divide = partial(Destinations.parse(text).divide, batch_id)
        manifest = land(rows, divide, 2**27, Storage())
        yield manifest.to_arrow(batch_id, context.partitionId())

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
