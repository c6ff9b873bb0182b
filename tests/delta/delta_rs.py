"""The tables as delta-rs reads them: an engine without Spark and Java, written by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql.types import VariantVal


def by_key(path: Path, column: str) -> dict[str, Any]:
    """The values of a column. Of a VARIANT the engine gives the two binaries that it consists of;
    they are decoded here."""
    query = QueryBuilder().register("t", DeltaTable(str(path)))
    rows = pa.table(query.execute(f"SELECT key, {column} AS value FROM t").read_all()).to_pylist()
    assert len({row["key"] for row in rows}) == len(rows), "a key twice"
    return {row["key"]: decoded(row["value"]) for row in rows}


def decoded(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"metadata", "value"}:
        return VariantVal(value["value"], value["metadata"]).toPython()
    return value
