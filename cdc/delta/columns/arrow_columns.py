"""Conversion of VARIANTs into typed columns and the rest, by a function over Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from cdc.arrow import typed_columns
from cdc.delta.columns.typed_column import TypedColumn
from cdc.model.typed import Array, Decimals, Integer, Kind, Map, Plan, Scalar, Struct

_SCALARS: dict[type[DataType], Kind] = {
    T.StringType: Scalar.STRING,
    T.BinaryType: Scalar.BINARY,
    T.BooleanType: Scalar.BOOLEAN,
    T.ByteType: Integer(8),
    T.ShortType: Integer(16),
    T.IntegerType: Integer(32),
    T.LongType: Integer(64),
    T.FloatType: Scalar.FLOAT,
    T.DoubleType: Scalar.DOUBLE,
    T.DateType: Scalar.DATE,
    T.TimestampType: Scalar.TIMESTAMP,
    T.VariantType: Scalar.VARIANT,
}


def taken(document: Column, columns: Sequence[TypedColumn], rest: str) -> Column:
    """A struct of the columns and of `rest`, the remaining VARIANT; for a null all are null."""
    result = StructType([column.field() for column in columns]).add(rest, T.VariantType())
    plan, kind = plan_of(columns), to_arrow_type(result, timezone="UTC")
    # Without type hints: Spark would derive the kind of function from them.
    function = arrow_udf(  # type: ignore[call-overload]
        lambda documents: typed_columns.take_columns(documents, plan, kind), result
    )
    found: Column = function(document)
    return found


def take_columns(
    documents: pa.StructArray, columns: Sequence[TypedColumn], kind: pa.StructType
) -> pa.StructArray:
    """Convert VARIANTs into a struct of type `kind`: typed columns and the rest. Runs in a task."""
    return typed_columns.take_columns(documents, plan_of(columns), kind)


def plan_of(columns: Iterable[TypedColumn]) -> Plan:
    return Plan.of((column.path, kind_of(column.type)) for column in columns)


def kind_of(kind: DataType) -> Kind:
    """The type as `cdc.model.typed` names it."""
    if isinstance(kind, T.ArrayType):
        return Array(kind_of(kind.elementType))
    if isinstance(kind, T.MapType):
        return Map(kind_of(kind.valueType))
    if isinstance(kind, T.StructType):
        return Struct(tuple(kind.names), tuple(kind_of(each.dataType) for each in kind.fields))
    if isinstance(kind, T.DecimalType):
        return Decimals(kind.precision, kind.scale)
    return _SCALARS[type(kind)]
