"""Conversion of typed columns and `_rescued` back into the document, as SQL text.

The inverse of `cdc.model.typed.typed_columns`. It uses Spark's own expressions, none of which can
raise, even in ANSI mode. A `value` is the text of an expression that is cheap to repeat: a column,
or a name that `let` has bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import types as T
from pyspark.sql.types import DataType

from cdc.delta.columns.arrow_columns import plan_of
from cdc.delta.columns.typed_column import TypedColumn
from cdc.delta.sql import literal, quoted
from cdc.model.typed import DAY, Plan

RESCUED = "_rescued"
_NO_FIELDS = "CAST(map() AS map<string,variant>)"


def document_text(columns: Sequence[TypedColumn]) -> str:
    """SQL text for the VARIANT from which a row got its columns and its `_rescued`."""
    whole = _whole(0, RESCUED, plan_of(columns), columns)
    return f"coalesce({whole}, to_variant_object({_NO_FIELDS}))"


def family_of(value: str) -> str:
    return f"schema_of_variant({value})"


def fields(value: str) -> str:
    """The fields of an object, a map by name; null for other values."""
    return f"try_variant_get({value}, '$', 'map<string,variant>')"


def to_variant(value: str, kind: DataType) -> str:
    """SQL text that converts a value of a typed column back to VARIANT; null for null.

    The number's original type and the nulls in a struct are lost.
    """
    if isinstance(kind, T.ArrayType):
        inner = f"transform({value}, each -> {to_variant('each', kind.elementType)})"
    elif isinstance(kind, T.MapType):
        inner = f"transform_values({value}, (name, each) -> {to_variant('each', kind.valueType)})"
    elif isinstance(kind, T.StructType):
        fields = {
            each.name: to_variant(f"{value}.{quoted(each.name)}", each.dataType)
            for each in kind.fields
        }
        inner = f"if({value} IS NULL, NULL, {present(fields)})"
    elif isinstance(kind, T.DateType):
        return f"CAST(timestamp_micros({DAY} * unix_date({value})) AS variant)"
    elif isinstance(kind, T.VariantType):
        return value
    elif isinstance(kind, T.FloatType):
        return f"CAST(double({value}) AS variant)"
    else:
        return f"CAST({value} AS variant)"
    return f"to_variant_object({inner})"


def _whole(number: int, rescued: str, plan: Plan, columns: Sequence[TypedColumn]) -> str:
    """The value at a place, of which `rescued` is the part that the columns lack; null if none.

    All names begin with an underscore, like no typed column except `_id`.
    """
    place = plan.places[number]
    if place.variant is not None:
        return quoted(columns[place.variant].name)
    if place.typed is not None:
        column = columns[place.typed]
        return f"coalesce({to_variant(quoted(column.name), column.type)}, {rescued})"
    value, known, rest = f"_value{number}", f"_fields{number}", f"_rest{number}"
    names = {inner: plan.places[inner].name.decode() for inner in place.inner}
    inner = {
        name: _whole(each, f"{known}[{literal(name)}]", plan, columns)
        for each, name in names.items()
    }
    listed = ", ".join(map(literal, inner))
    others = f"map_filter({known}, (name, each) -> name NOT IN ({listed}))"
    every = f"map_concat({others}, {present(inner)})"
    made = f"if(size({rest}) > 0, to_variant_object({rest}), NULL)"
    whole = let(rest, every, f"coalesce({made}, {value})")
    there = f"coalesce({fields(value)}, {_NO_FIELDS})"
    return let(value, rescued, let(known, there, whole))


def present(values: Mapping[str, str]) -> str:
    """A map of the VARIANTs that are not null."""
    pairs = [f"{literal(name)}, {value}" for name, value in values.items()]
    return f"map_filter(map({', '.join(pairs)}), (name, each) -> each IS NOT NULL)"


def let(name: str, value: str, body: str) -> str:
    """Return `body` with `name` bound to `value`.

    Spark computes an expression as often as it is written: without a binding, a path of n names
    would be written 2**n times.
    """
    return f"transform(array({value}), {name} -> {body})[0]"
