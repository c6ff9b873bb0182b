"""Deletion vectors in the forms that Delta writes them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap
from pyspark.sql import SparkSession

from cdc.delta.log import UnknownVector, read_vector, write_vectors
from cdc.tasks import Folder, Storage, open_folder


def folder(path: Path) -> Folder:
    return open_folder(str(path), Storage())


BITMAPS = {
    "one": BitMap([0]),
    "far": BitMap([2**32 - 1]),
    "sparse": BitMap(range(0, 2_000_000, 1000)),
    "dense": BitMap(range(100_000)),
    "half": BitMap(range(0, 200_000, 2)),
}


def test_vectors_are_read_as_they_were_written(tmp_path: Path) -> None:
    name, found = write_vectors(folder(tmp_path), BITMAPS)
    assert [each.name for each in tmp_path.iterdir()] == [name]
    for key, bitmap in BITMAPS.items():
        assert read_vector(folder(tmp_path), found[key]) == bitmap
        assert found[key]["cardinality"] == len(bitmap)
    assert read_vector(folder(tmp_path), None) == BitMap()


def test_a_vector_that_delta_wrote_marks_the_rows_that_it_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: another alphabet, another order of bytes, a bitmap with runs."""
    rows = spark.range(0, 100_000, 1, 1)
    writer = rows.write.format("delta").option("delta.enableDeletionVectors", "true")
    writer.save(str(tmp_path))
    spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id % 3 = 0 OR id BETWEEN 5000 AND 40000")
    [vector] = (add["deletionVector"] for add in added(tmp_path, 1))
    expected = {n for n in range(100_000) if n % 3 == 0 or 5000 <= n <= 40_000}
    assert set(read_vector(folder(tmp_path), vector)) == expected


def test_a_vector_within_the_log_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Guards: the padding of a vector whose length is no multiple of four."""
    delta: Any = spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]
    for bitmap in (BitMap([1, 2, 70_000]), BitMap([5])):
        data = struct.pack("<iqi", 1681511377, 1, 0) + bitmap.serialize()
        action = delta.actions.DeletionVectorDescriptor.inlineInLog(data, len(bitmap))
        fields = {
            "storageType": action.storageType(),
            "pathOrInlineDv": action.pathOrInlineDv(),
            "sizeInBytes": action.sizeInBytes(),
        }
        assert read_vector(folder(tmp_path), fields) == bitmap


def test_a_damaged_vector_is_an_error(tmp_path: Path) -> None:
    """Guards: rows that come back, or that disappear, because a file was cut or overwritten."""
    name, found = write_vectors(folder(tmp_path), {"a": BitMap([1, 5])})
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(data[:-6] + bytes([data[-6] ^ 1]) + data[-5:])
    with pytest.raises(ValueError, match="damaged"):
        read_vector(folder(tmp_path), found["a"])
    path.write_bytes(data[:-3])
    with pytest.raises(ValueError, match="damaged"):
        read_vector(folder(tmp_path), found["a"])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_vector(folder(tmp_path), found["a"])


def test_a_vector_of_an_unknown_form_is_refused(tmp_path: Path) -> None:
    for fields in ({"storageType": "p", "pathOrInlineDv": "file:/x", "sizeInBytes": 34},):
        with pytest.raises(UnknownVector):
            read_vector(folder(tmp_path), fields)


def added(table: Path, version: int) -> list[dict[str, Any]]:
    lines = (table / f"_delta_log/{version:020}.json").read_text().splitlines()
    return [action["add"] for line in lines if "add" in (action := json.loads(line))]
