"""Others that write the same tables at the same moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from cdc.delta.log import Target, conflict
from cdc.delta.sink import sink as sinks
from cdc.errors import TableOwnedElsewhere
from tests.delta.batches import batch, change, commits, ops, sink
from tests.slow import slow_but

LOG = "shop/orders/changelog"
_PATIENCE_SECONDS = 30


def waiting(folder: Path) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Tells that it has begun, and waits until it may go on: in a worker, which has no tests."""

    def wait(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        (folder / "began").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)
        yield from frames

    return wait


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.02)


@pytest.mark.parametrize("other", slow_but(["UPDATE"], ["UPDATE", "SET TBLPROPERTIES"]))
def test_a_write_that_another_one_got_in_the_way_of_is_made_again(
    spark: SparkSession, tmp_path: Path, other: str
) -> None:
    """Guards: what Delta calls a conflict, whichever of its kinds it is."""
    target = Target(str(tmp_path / "table"))
    target.append(spark.range(0, 2, 1, 2).selectExpr("id", "0 AS n", "0 AS m"), {})
    rows = spark.range(0, 2, 1, 1).mapInPandas(waiting(tmp_path), "id long")

    def write() -> None:
        merge = target.delta(spark).alias("t").merge(rows.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdate(set={"n": "t.n + 1"}).execute()

    errors: list[BaseException] = []

    def writing() -> None:
        try:
            conflict.repeated(write, target)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=writing)
    thread.start()
    until(lambda: (tmp_path / "began").exists() or not thread.is_alive())
    assert errors == []
    {
        "UPDATE": lambda: target.delta(spark).update(set={"m": "m + 1"}),
        "SET TBLPROPERTIES": lambda: spark.sql(
            f"ALTER TABLE {target.sql(spark)} SET TBLPROPERTIES ('others' = '1')"
        ),
    }[other]()
    (tmp_path / "go").touch()
    thread.join(_PATIENCE_SECONDS)
    assert errors == []
    m = int(other == "UPDATE")
    assert sorted(map(tuple, target.read(spark).collect())) == [(0, 1, m), (1, 1, m)]
    assert commits(target.address)[1:] == [other, "MERGE"]


def test_a_table_that_another_pipeline_makes_at_the_same_moment_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the time between the look whether it is there and its creation."""
    rows = batch(spark, [change("insert", "a", {}, time=1)], until=2)
    write, others = sinks.at_once, [sink(tmp_path, "other", mirror="")]

    def overtaken(*arguments: Any) -> None:
        if others and arguments[2]:
            others.pop().write_batch(rows, 0)
        write(*arguments)

    monkeypatch.setattr(sinks, "at_once", overtaken)
    with pytest.raises(TableOwnedElsewhere, match="Choose another path"):
        sink(tmp_path, "one", mirror="").write_batch(rows, 0)
    assert ops(tmp_path / LOG) == [("insert", "a")]
    assert commits(tmp_path / LOG) == ["STREAMING UPDATE"]
