"""The tables as delta-rs reads them: an engine without Spark and Java, written by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql.types import VariantVal


def read(path: Path, query: str) -> list[dict[str, Any]]:
    """The rows of a query of the table `t`."""
    engine = QueryBuilder().register("t", DeltaTable(str(path)))
    return pa.table(engine.execute(query).read_all()).to_pylist()


def by_key(path: Path, column: str) -> dict[str, Any]:
    """The values of a column. Of a VARIANT the engine gives the two binaries that it consists of;
    they are decoded here."""
    rows = read(path, f"SELECT key, {column} AS value FROM t")
    assert len({row["key"] for row in rows}) == len(rows), "a key twice"
    return {row["key"]: decoded(row["value"]) for row in rows}


def decoded(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"metadata", "value"}:
        return VariantVal(value["value"], value["metadata"]).toPython()
    return value


def rows(path: Path) -> list[str]:
    """All rows in an order, as texts of their values by the names of the columns."""
    found = read(path, "SELECT * FROM t")
    return sorted(repr({name: decoded(row[name]) for name in sorted(row)}) for row in found)


def history(path: Path, count: int) -> list[dict[str, Any]]:
    """What the newest commits state, the newest first."""
    return DeltaTable(str(path)).history(count)
