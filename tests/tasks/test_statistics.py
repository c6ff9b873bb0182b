"""Statistics of data files: bounds that never exclude a value that is there."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cdc.tasks.data_files import DataFiles, Part
from cdc.tasks.statistics import round_down, round_up
from cdc.tasks.storage import Storage

# As Spark compares text: by its bytes.
_LETTERS = st.sampled_from("ab\u00e9\uffff\U0001f600\U0010ffff")
_TEXT = st.one_of(
    st.text(max_size=70, alphabet=_LETTERS), st.text(min_size=31, max_size=35, alphabet=_LETTERS)
)


@given(text=st.one_of(st.text(max_size=80), _TEXT))
def test_the_bounds_of_text_enclose_it_by_its_bytes(text: str) -> None:
    low, high = round_down(text), round_up(text)
    assert low.encode() <= text.encode()
    assert high is None or text.encode() <= high.encode()
    assert len(low) <= 32
    assert high is None or len(high) <= 33


@given(micros=st.integers(min_value=-(10**15), max_value=10**16))
def test_the_bounds_of_a_timestamp_enclose_it(micros: int) -> None:
    """Guards: a maximum that is cut to milliseconds lies before the value."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    time = epoch + datetime.timedelta(microseconds=micros)
    low, high = (
        datetime.datetime.fromisoformat(each) for each in (round_down(time), round_up(time))
    )
    assert low <= time <= high
    assert high - low <= datetime.timedelta(milliseconds=1)


def statistics(folder: Path, **columns: pa.Array) -> dict[str, Any]:
    files = DataFiles(2**20, Storage())
    files.add(Part(str(folder), pa.RecordBatch.from_pydict(columns)))
    [file] = files.finish()
    found: dict[str, Any] = json.loads(file.statistics)
    return found


def test_only_columns_with_an_order_that_all_readers_share_have_bounds(tmp_path: Path) -> None:
    """Guards: NaN is the greatest number to Spark and none to Parquet."""
    parts = [pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")]
    image = pa.struct(parts)
    found = statistics(
        tmp_path,
        number=pa.array([3, None, -4], pa.int32()),
        real=pa.array([1.0, float("nan"), 2.0]),
        flag=pa.array([True, False, None]),
        raw=pa.array([b"a", b"b", None]),
        after=pa.array([{"value": b"a", "metadata": b"b"}, None, None], image),
        nothing=pa.array([None, None, None], pa.string()),
        txn=pa.array([{"n": 5}, None, {"n": None}], pa.struct([("n", pa.int64())])),
    )
    assert found == {
        "numRecords": 3,
        "minValues": {"number": -4, "txn": {"n": 5}},
        "maxValues": {"number": 3, "txn": {"n": 5}},
        "nullCount": {"number": 1, "real": 0, "flag": 1, "nothing": 3, "txn": {"n": 2}},
    }


def test_parquet_compares_only_the_values_whose_bounds_a_commit_states(tmp_path: Path) -> None:
    """Guards: time spent on the bounds of documents, which no reader uses."""
    parts = [pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")]
    rows = {
        "key": pa.array(["1"]),
        "after": pa.array([{"value": b"a", "metadata": b"b"}], pa.struct(parts)),
        "tags": pa.array([["z"]]),
        "txn": pa.array([{"n": 5}]),
        "a.b": pa.array([3]),
    }
    files = DataFiles(2**20, Storage())
    files.add(Part(str(tmp_path), pa.RecordBatch.from_pydict(rows)))
    [file] = files.finish()
    group = pq.ParquetFile(file.path).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    compared = [each.path_in_schema for each in columns if each.statistics is not None]
    assert compared == ["key", "txn.n", "a.b"]


def test_the_bounds_of_a_file_are_those_of_all_its_row_groups(tmp_path: Path) -> None:
    """Guards also: more rows in memory than a row group has bytes."""
    files = DataFiles(2**40, Storage())
    big = "x" * 2**20
    for number in range(80):  # more than one row group
        rows = {"key": [f"{number:03}"], "big": [big]}
        files.add(Part(str(tmp_path), pa.RecordBatch.from_pydict(rows)))
    [file] = files.finish()
    found = json.loads(file.statistics)
    assert (found["minValues"]["key"], found["maxValues"]["key"]) == ("000", "079")
    assert found["numRecords"] == file.rows == 80
    groups = pq.ParquetFile(file.path).metadata
    sizes = [groups.row_group(each).total_byte_size for each in range(groups.num_row_groups)]
    assert len(sizes) == 6
    assert max(sizes) <= 16 * 2**20
    # Parquet has no bounds of so long a text.
    assert "big" not in found["maxValues"]


def test_names_with_dots_and_values_inside_of_lists_are_nobody_elses(tmp_path: Path) -> None:
    """Guards: bounds of `a.b` that are taken for those of the field `b` of `a`."""
    inner = pa.struct([("b", pa.int64()), ("c.d", pa.int64())])
    found = statistics(
        tmp_path,
        **{
            "tags": pa.array([["z"], None], pa.list_(pa.string())),
            "named": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "a": pa.array([{"b": 100, "c.d": 1}, {"b": 101, "c.d": 2}], inner),
            "a.b": pa.array([3, 4], pa.int64()),
        },
    )
    assert found["minValues"] == {"a": {"b": 100, "c.d": 1}, "a.b": 3}
    assert found["maxValues"] == {"a": {"b": 101, "c.d": 2}, "a.b": 4}
    assert found["nullCount"] == {"a": {"b": 0, "c.d": 0}, "a.b": 0}


def test_a_time_that_python_has_not_has_no_bound(tmp_path: Path) -> None:
    kind = pa.timestamp("us", tz="UTC")
    last = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, datetime.UTC)
    assert round_up(last) is None
    assert round_down(datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)) == "0001-01-01T00:00:00.000Z"
    beyond = pa.array([0, 2**62], pa.int64()).cast(kind)
    assert statistics(tmp_path, beyond=beyond)["maxValues"] == {}


_PIECES = ("", "a", "b", "\u00e9", "\uffff", "\U0001f600", "\U0010ffff", "x" * 31, "y" * 33)
_ROWS = 60


def columns_of_all_kinds(seed: int) -> dict[str, pa.Array]:
    """Columns of few and of odd values, some of them null."""
    random = Random(seed)

    def values(make: Callable[[], Any]) -> list[Any]:
        few = [make() for _ in range(random.randint(1, 5))]
        return [random.choice([None, *few]) for _ in range(_ROWS)]

    def text() -> str:
        return "".join(random.choice(_PIECES) for _ in range(random.randint(0, 4)))

    made: dict[str, pa.Array] = {}
    zone = pa.timestamp("us", tz="UTC")
    for n in range(8):
        micros = [10**15, 10**9, 10**6, 3][n % 4]
        kinds = {
            "text": (text, pa.string()),
            "time": (lambda m=micros: random.randint(-m, 2 * m), zone),  # type: ignore[misc]
            "long": (lambda: random.choice([-(2**63), 2**63 - 1, 0, random.randint(-9, 9)]), None),
            "int": (lambda: random.randint(-(2**31), 2**31 - 1), pa.int32()),
            "real": (lambda: random.choice([float("nan"), -0.0, 1.5, float("inf")]), pa.float64()),
        }
        for name, (make, kind) in kinds.items():
            made[f"{name}{n}"] = pa.array(values(make), kind or pa.int64())
    return made


def test_the_statistics_are_those_of_delta_or_wider(spark: SparkSession, tmp_path: Path) -> None:
    """Guards: a bound that Delta's readers use and that excludes a value of the file."""
    columns = columns_of_all_kinds(seed=7)
    mine = statistics(tmp_path / "mine", **columns)
    setting = "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols"
    spark.conf.set(setting, "-1")
    try:
        frame = spark.createDataFrame(pa.table(columns)).coalesce(1)
        frame.write.format("delta").save(str(tmp_path / "theirs"))
    finally:
        spark.conf.unset(setting)
    log = (tmp_path / "theirs/_delta_log/00000000000000000000.json").read_text().splitlines()
    [added] = [json.loads(line)["add"] for line in log if "add" in json.loads(line)]
    theirs = json.loads(added["stats"])
    assert mine["numRecords"] == theirs["numRecords"] == _ROWS
    assert mine["nullCount"] == theirs["nullCount"]
    assert {"minValues", "maxValues"} <= theirs.keys()
    assert mine["minValues"].keys() <= theirs["minValues"].keys()
    exact = 0
    for name, least in mine["minValues"].items():
        greatest = mine["maxValues"][name]
        present = [each for each in columns[name].to_pylist() if each is not None]
        assert order(least) <= min(map(order, present)), name
        assert order(greatest) >= max(map(order, present)), name
        if name.startswith(("int", "long")):
            bounds = theirs["minValues"][name], theirs["maxValues"][name]
            assert (least, greatest) == bounds, name
            exact += 1
        else:
            assert order(least) <= order(theirs["minValues"][name]), name
    assert exact == 16


def order(value: Any) -> Any:
    """A value, or a bound of it, as Delta's readers compare it."""
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", value):
        return datetime.datetime.fromisoformat(value)
    return value.encode() if isinstance(value, str) else value
