"""A manifest that the tasks of its batch cannot have made is refused, and nothing is touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from cdc.delta.landing import Destinations
from cdc.delta.sink import Sink
from cdc.delta.tables import Layout
from cdc.errors import ForeignManifest
from cdc.tasks import MANIFEST
from tests.delta.batches import batch, change, landed

LOG, MIRROR = "shop/orders/changelog", "shop/orders/mirror"
Row = dict[str, Any]


class Written(NamedTuple):
    """A lakehouse after batch 0, and the manifests of batch 0 and 1."""

    base: Path
    sink: Sink
    first: list[Row]
    second: list[Row]


def write_first(spark: SparkSession, base: Path) -> Written:
    """Write batch 0, and the data files of batch 1."""
    layout = Layout.parse(str(base), {})
    places = Destinations.discover(spark, layout, True)

    def manifests(number: int) -> list[Row]:
        rows = [change("read", key, {"n": 1}, time=number + 1) for key in ("a", f"b{number}")]
        rows.append(change("insert", "c", {}, time=number + 1, ns=("shop", "other")))
        found = landed(batch(spark, rows, until=number + 1), places, number)
        return [row.asDict() for row in found.collect()]

    columns = batch(spark, [], until=1).schema
    written = Written(
        base,
        Sink("one", layout, clock=lambda: None, rows=columns),
        manifests(0),
        manifests(1),
    )
    written.sink.write_batch(spark.createDataFrame(written.first, MANIFEST), 0)
    return written


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """For all forgeries: what is refused changes nothing."""
    return write_first(spark, tmp_path_factory.mktemp("forged") / "lake")


@pytest.fixture
def written(lake: Written) -> Written:
    return lake._replace(second=[{**row} for row in lake.second])


def files_of(rows: list[Row], kind: str = LOG) -> tuple[Row, list[Row], Row]:
    """A row with a file in that folder, all files of the row, and the file."""
    for row in rows:
        files = json.loads(row["files"])
        for file in files:
            if file["folder"].endswith(kind):
                return row, files, file
    raise AssertionError("no task wrote there")


def with_file(written: Written, kind: str = LOG, **changes: Any) -> None:
    """Change one file of a manifest, and let what it names then exist with the same bytes."""
    row, files, file = files_of(written.second, kind)
    original = Path(file["folder"], file["name"])
    file |= changes
    place = Path(file["folder"], file["name"])
    if place != original:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(original, place)
    row["files"] = json.dumps(files)


def name_a_file_of_the_batch_before(written: Written) -> None:
    row, files, file = files_of(written.second)
    files[files.index(file)] = files_of(written.first)[2]
    row["files"] = json.dumps(files)


def name_a_file_twice(written: Written) -> None:
    row, files, file = files_of(written.second)
    row["files"] = json.dumps([*files, file])


def name_a_file_of_another_task(written: Written) -> None:
    (one, files), (_, others) = ((row, json.loads(row["files"])) for row in written.second)
    one["files"] = json.dumps([*files, *others])


OUTSIDE = f"cdc-{uuid4()}.parquet"
FORGED: dict[str, tuple[Callable[[Written], object], str]] = {
    "a folder outside": (
        lambda written: with_file(written, folder=str(written.base.parent / "else")),
        "is in no folder for rows of this batch",
    ),
    "the folder of another kind": (
        lambda written: with_file(written, folder=str(written.base / MIRROR)),
        "is in no folder for rows of this batch",
    ),
    "a copy that is none": (
        lambda written: with_file(written, is_copy=True),
        "is in no folder for copies of this batch",
    ),
    "a mirror's file as one of a changelog": (
        lambda written: with_file(written, MIRROR, is_copy=False, folder=str(written.base / LOG)),
        "rows of another batch",
    ),
    "a table that the batch does not write": (
        lambda written: with_file(written, folder=str(written.base / "shop/new/changelog")),
        "is in no folder for rows of this batch",
    ),
    "a name that leads out of the folder": (
        lambda written: with_file(written, name=f"../../../../{OUTSIDE}"),
        "is no name of a data file",
    ),
    "a name of others": (
        lambda written: with_file(written, name="part-0.parquet"),
        "is no name of a data file",
    ),
    "a name with an end of a line": (
        lambda written: with_file(written, name=f"{OUTSIDE}\n"),
        "is no name of a data file",
    ),
    "a file of the batch before": (name_a_file_of_the_batch_before, "rows of another batch than 1"),
    "a file twice": (name_a_file_twice, "is there 2 times"),
    "a file in two manifests": (name_a_file_of_another_task, "is there 2 times"),
    "a manifest twice": (
        lambda written: written.second.append(written.second[0]),
        "partition 0 of batch 1 has two",
    ),
    "a manifest of the batch before": (
        lambda written: written.second.append({**written.first[0], "part": 7}),
        "it is of batch 0, and not of 1",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_manifest_is_refused_and_nothing_is_committed_or_removed(
    spark: SparkSession, written: Written, what: str
) -> None:
    """Guards: rows of somebody else in a table, rows that are there twice, and a clean-up that
    removes what a manifest only names."""
    forge, reason = FORGED[what]
    forge(written)
    before = set(written.base.parent.rglob("*"))
    commits = set(written.base.rglob("_delta_log/*.json"))
    with pytest.raises(ForeignManifest, match=reason) as caught:
        written.sink.write_batch(spark.createDataFrame(written.second, MANIFEST), 1)
    assert "Remedy" in str(caught.value)
    assert set(written.base.rglob("_delta_log/*.json")) == commits
    assert before <= set(written.base.parent.rglob("*"))


def test_the_manifests_that_the_tasks_made_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    """So what refuses the forged ones is what was changed in them."""
    written = write_first(spark, tmp_path / "lake")
    report = written.sink.write_batch(spark.createDataFrame(written.second, MANIFEST), 1)
    assert sum(sum(each.values()) for each in report.counts.values()) == 3
