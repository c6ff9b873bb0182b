"""Dead letters: what cannot be mapped is kept with its bytes, reported, and can be delivered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bson
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import cdf
from cdc.delta.landing.dead_letters import SCHEMA
from cdc.delta.log import Target
from cdc.delta.maintenance import Delivery, deliver
from cdc.delta.tables import Layout
from cdc.errors import TooManyDeadLetters
from cdc.model.encoding import encoder
from tests.delta.batches import batch, change, commits, sink, with_images
from tests.documents import code

# A string that is not UTF-8; drivers of old wrote such ones.
BROKEN = bson.encode({"_id": 1, "s": "xx"}).replace(b"xx", b"\xff\xfe")
MENDED = bson.encode({"_id": 1, "s": "mended"})
LETTERS = "_dead_letters"


def images(frame: DataFrame, kind: str, raw: dict[tuple[str, str], bytes]) -> DataFrame:
    """The batch with images of (position, column) made by the source's own encoder."""
    encode = encoder(kind)

    def mapped(document: bytes) -> Any:
        image = encode(document)
        is_variant = isinstance(image, tuple)
        return dict(zip(("value", "metadata"), image, strict=True)) if is_variant else image

    return with_images(frame, {place: mapped(document) for place, document in raw.items()})


def repair(spark: SparkSession, folder: Path, position: str, key: str) -> None:
    """As documented."""
    [line] = code("Dead letters", "sql")
    assert line.count("'…'") == 3
    for value in (MENDED.hex(), position, key):
        line = line.replace("'…'", f"'{value}'", 1)
    spark.sql(line.replace("/home/me/lakehouse", str(folder)))


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param("variant", "event", marks=pytest.mark.slow),
        pytest.param("json", "cdf", marks=pytest.mark.soak),
    ],
)
def test_a_document_that_cannot_be_mapped_is_a_dead_letter_until_it_is_repaired(
    spark: SparkSession, tmp_path: Path, kind: str, form: str
) -> None:
    """Guards: idempotence per batch; a newer state, and a document that only looks like a stand-in,
    are left alone by the delivery."""
    look_alike = {"$unmappable": "x", "$bson": "y"}
    rows = [
        change("insert", "a", {}, time=1),
        change("insert", "b", {}, time=2),
        change("insert", "look-alike", look_alike, time=3),
        change("update", "b", {"n": 2}, time=4),
    ]
    at = [row["position"] for row in rows]
    raw = {(at[0], "after"): BROKEN, (at[1], "after"): BROKEN, (at[3], "before"): BROKEN}
    document = "variant" if kind == "variant" else "string"
    frame = images(batch(spark, rows, until=5, document=document), kind, raw)
    report = sink(tmp_path, form=form).write_batch(frame, 0)
    sink(tmp_path, form=form).write_batch(frame, 0)
    assert sum(report.unmappable.values()) == 3

    target = Target(str(tmp_path / LETTERS))
    letters = target.read(spark)
    assert letters.schema == SCHEMA
    found = letters.orderBy("position").collect()
    assert [(row.key, row.image, bytes(row.raw)) for row in found] == [
        ("a", "after", BROKEN),
        ("b", "after", BROKEN),
        ("b", "before", BROKEN),
    ]
    assert all("UTF-8" in row.reason for row in found)

    layout = Layout.parse(str(tmp_path), {"form": form})
    assert deliver(spark, target, layout, kind, "relaxed", 0) == Delivery(0, 3)
    for where in ((at[0], "a"), (at[3], "b")):
        repair(spark, tmp_path, *where)
    assert deliver(spark, target, layout, kind, "relaxed", 0) == Delivery(2, 1)
    assert deliver(spark, target, layout, kind, "relaxed", 0) == Delivery(0, 1)

    text = F.to_json if kind == "variant" else F.col
    log = spark.read.format("delta").load(str(tmp_path / "shop/orders/changelog"))
    reported = (log if form == "cdf" else cdf(log)).select("key", "_change_type", text("document"))
    by_key = {(key, kind): image for key, kind, image in reported.collect()}
    mended = {"_id": 1, "s": "mended"}
    assert json.loads(by_key["a", "insert"]) == mended
    assert "$unmappable" in by_key["b", "insert"]
    assert json.loads(by_key["b", "update_preimage"]) == mended
    assert json.loads(by_key["b", "update_postimage"]) == {"n": 2}
    assert json.loads(by_key["look-alike", "insert"]) == look_alike
    mirror = spark.read.format("delta").load(str(tmp_path / "shop/orders/mirror"))
    documents = mirror.select("key", text("document").alias("document")).collect()
    assert {row.key: json.loads(row.document) for row in documents} == {
        "a": mended,
        "b": {"n": 2},
        "look-alike": look_alike,
    }


def test_above_the_limit_a_run_ends_and_only_the_letters_are_written(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [change("insert", "a", {}, time=1), change("insert", "b", {}, time=2)]
    raw = {(row["position"], "after"): BROKEN for row in rows}
    frame = images(batch(spark, rows, until=5), "variant", raw)
    for _ in range(2):
        with pytest.raises(TooManyDeadLetters, match="2 images"):
            sink(tmp_path, limit=1).write_batch(frame, 0)
    assert commits(tmp_path / LETTERS) == ["CREATE TABLE", "WRITE"]
    assert not (tmp_path / "shop").exists()
    assert "shop.orders: 2 images could not be mapped: dead letters" in caplog.messages
    sink(tmp_path, limit=2).write_batch(frame, 0)
    assert commits(tmp_path / LETTERS) == ["CREATE TABLE", "WRITE"]
    assert (tmp_path / "shop/orders/mirror").exists()


@pytest.mark.parametrize("with_changelog", [True, False])
def test_a_letter_that_is_repaired_before_its_batch_is_written_stays_until_then(
    spark: SparkSession, tmp_path: Path, with_changelog: bool
) -> None:
    """Guards: a letter that counts as delivered to tables which get the placeholder afterwards."""
    first = change("insert", "z", {"_id": 1}, time=1)
    row = change("insert", "a", {}, time=6)
    frame = images(batch(spark, [row], until=7), "variant", {(row["position"], "after"): BROKEN})
    template = {} if with_changelog else {"changelog": ""}
    layout, target = Layout.parse(str(tmp_path), template), Target(str(tmp_path / LETTERS))

    def made(**options: Any) -> Any:
        return sink(tmp_path, with_changelog=with_changelog, **options)

    made().write_batch(batch(spark, [first], until=5), 0)
    with pytest.raises(TooManyDeadLetters):
        made(limit=0).write_batch(frame, 1)
    repair(spark, tmp_path, row["position"], "a")
    assert deliver(spark, target, layout, "variant", "relaxed", 0) == Delivery(0, 1)
    made().write_batch(frame, 1)
    elsewhere = Layout.parse(str(tmp_path), {"changelog": "{db}/{coll}/begins"})
    for each in (layout, elsewhere):
        assert deliver(spark, target, each, "variant", "relaxed", 0).delivered == (
            0 if each is elsewhere else 1
        ), "a changelog that does not exist yet may be about to get a batch that is not complete"
        if each is layout:
            spark.sql(f"UPDATE delta.`{tmp_path / LETTERS}` SET delivered = NULL")
    assert deliver(spark, target, elsewhere, "variant", "relaxed", 1) == Delivery(1, 0)
    mirror = spark.read.format("delta").load(str(tmp_path / "shop/orders/mirror"))
    document = mirror.where("key = 'a'").select(F.to_json("document")).collect()[0][0]
    assert json.loads(document) == {"_id": 1, "s": "mended"}
