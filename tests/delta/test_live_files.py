"""The data files of a table, as actions of its log state them."""

from __future__ import annotations

import json

import pytest

from cdc.delta.log import LiveFile


@pytest.mark.parametrize(
    ("path", "is_elsewhere"),
    [
        ("part-0.parquet", False),
        ("ab/part%200.parquet", False),
        ("s3://bucket/part-0.parquet", True),
        ("file:/lake/part-0.parquet", True),
        ("/lake/part-0.parquet", True),
        ("../part-0.parquet", True),
        ("a/%2E%2E/../part-0.parquet", True),
    ],
)
def test_a_file_in_another_folder_is_recognized(path: str, is_elsewhere: bool) -> None:
    """Guards: another file of the same name, or one outside of the table, that is read instead."""
    assert LiveFile.of({"path": path, "stats": None}).is_elsewhere == is_elsewhere


@pytest.mark.parametrize("tight", ["", ',"tightBounds":true', ',"tightBounds": false'])
def test_a_file_that_loses_rows_keeps_its_bounds_digit_by_digit(tight: str) -> None:
    """Guards: a bound of 38 digits that Python rounds: readers would pass over rows of the file."""
    least = "12345678901234567890123456789012345.67"
    text = f'{{"numRecords":3,"minValues":{{"total":{least},"s":"\\"tightBounds\\":true"}}{tight}}}'
    file = LiveFile.of({"path": "a", "stats": text, "tags": None})
    found = file.without_rows({"cardinality": 1})["add"]
    assert f'"total":{least}' in found["stats"]
    parsed = json.loads(found["stats"], parse_float=str)
    assert parsed["tightBounds"] is False
    assert parsed["minValues"] == {"total": least, "s": '"tightBounds":true'}
    assert found["deletionVector"] == {"cardinality": 1}
    assert "tags" not in found
