"""A VARIANT as a value of a Spark type, if that loses nothing.

A value fits if its family is that of the type, and it can be told back from it: a number by its
value (`3.0` is a bigint), whatever its own type was. Nothing is parsed: text is no number.

All of it is SQL text: Spark's own expressions, none of which can raise, under ANSI mode either.
A `value` is the text of something cheap to name again and again, a column or what `let` has bound.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types as T
from pyspark.sql.types import DataType

from cdc.delta.target import literal, quoted

_DAY = 86_400_000_000
_INTEGER_BITS: dict[type[DataType], int] = {
    T.ByteType: 8,
    T.ShortType: 16,
    T.IntegerType: 32,
    T.LongType: 64,
}
# Below this every integer is told back from it.
_FLOATING: dict[type[DataType], int] = {T.FloatType: 2**24, T.DoubleType: 2**53}
# A decimal of so many digits is told back from a double.
_DIGITS = 15
# What `schema_of_variant` calls a value that is one of the type as it is.
_ITSELF: dict[type[DataType], str] = {
    T.StringType: "STRING",
    T.BooleanType: "BOOLEAN",
    T.BinaryType: "BINARY",
    T.TimestampType: "TIMESTAMP",
}


def fitted(value: str, kind: DataType, family: str | None = None) -> str:
    """The VARIANT `value` as `kind`; null if it does not fit, and for null.

    In an array, a map or a struct each element has to fit; a struct has no other fields than those
    of its type. An element that is null fits. `family` is `family_of(value)`, if it is at hand.
    """
    if isinstance(kind, T.VariantType):
        return value
    if isinstance(kind, T.ArrayType):
        return _array(value, kind)
    if isinstance(kind, T.MapType):
        return _map(value, kind)
    if isinstance(kind, T.StructType):
        return _struct(value, kind)
    if family is None:
        return let("family", family_of(value), fitted(value, kind, "family"))
    if isinstance(kind, T.DateType):
        return _date(value, family)
    if type(kind) in _ITSELF:
        return f"if({family} = '{_ITSELF[type(kind)]}', {_cast(value, kind)}, NULL)"
    return _number(value, kind, family)


def family_of(value: str) -> str:
    return f"schema_of_variant({value})"


def told_back(value: str, kind: DataType) -> str:
    """The VARIANT that `fitted` made `value` of, but for a number's own type and a struct's nulls;
    null for null."""
    if isinstance(kind, T.ArrayType):
        inner = f"transform({value}, each -> {told_back('each', kind.elementType)})"
    elif isinstance(kind, T.MapType):
        inner = f"transform_values({value}, (name, each) -> {told_back('each', kind.valueType)})"
    elif isinstance(kind, T.StructType):
        told = {
            each.name: told_back(f"{value}.{quoted(each.name)}", each.dataType)
            for each in kind.fields
        }
        inner = f"if({value} IS NULL, NULL, {present(told)})"
    elif isinstance(kind, T.DateType):
        return f"CAST(timestamp_micros({_DAY} * unix_date({value})) AS variant)"
    elif isinstance(kind, T.VariantType):
        return value
    elif isinstance(kind, T.FloatType):
        return f"CAST(double({value}) AS variant)"
    else:
        return f"CAST({value} AS variant)"
    return f"to_variant_object({inner})"


def is_missing(value: str) -> str:
    """Whether there is no value, or it is the VARIANT's null. Never null itself."""
    return f"({value} IS NULL OR is_variant_null({value}))"


def fields(value: str) -> str:
    """The fields of an object, a map by their names; null for what is no object."""
    return f"try_variant_get({value}, '$', 'map<string,variant>')"


def present(values: Mapping[str, str]) -> str:
    """A map of those of the VARIANTs that are not null."""
    pairs = [f"{literal(name)}, {value}" for name, value in values.items()]
    return f"map_filter(map({', '.join(pairs)}), (name, each) -> each IS NOT NULL)"


def let(name: str, value: str, body: str) -> str:
    """`body`, in which `name` is `value`. Spark would work out again what is written twice, and a
    path of n names would be written 2**n times."""
    return f"transform(array({value}), {name} -> {body})[0]"


def _cast(value: str, kind: DataType) -> str:
    return f"try_variant_get({value}, '$', '{kind.simpleString()}')"


def _date(value: str, family: str) -> str:
    # By the number: a cast from timestamp to date goes by the session's time zone.
    micros = f"unix_micros({_cast(value, T.TimestampType())})"
    is_midnight = f"{family} = 'TIMESTAMP' AND {micros} % {_DAY} = 0"
    return f"if({is_midnight}, date_from_unix_date(int({micros} div {_DAY})), NULL)"


def _number(value: str, kind: DataType, family: str) -> str:
    cast, double = _cast(value, kind), _cast(value, T.DoubleType())
    # What a variant's decimal is without the zeros at its end: DECIMAL(digits,scale).
    digits, scale = (
        f"try_cast(regexp_extract({family}, '{pattern}', 1) AS int)"
        for pattern in ("([0-9]+),", ",([0-9]+)")
    )
    from_integer, from_double = "TRUE", f"double({cast}) = {double}"
    if type(kind) in _FLOATING:
        from_integer = f"abs({double}) < {_FLOATING[type(kind)]}"
        from_decimal = f"{digits} <= {_DIGITS} AND {from_double}"
    elif isinstance(kind, T.DecimalType):
        from_decimal = f"{scale} <= {kind.scale}"
    else:
        # Spark takes 2**63 for the largest bigint, and that, as a double, is 2**63 again.
        from_double += f" AND {double} < {2 ** (_INTEGER_BITS[type(kind)] - 1)}D"
        from_decimal = f"{scale} = 0"
    fits = (
        f"CASE {family} WHEN 'BIGINT' THEN {from_integer} WHEN 'DOUBLE' THEN {from_double}"
        f" ELSE startswith({family}, 'DECIMAL') AND {from_decimal} END"
    )
    return f"if({fits}, {cast}, NULL)"


def _array(value: str, kind: T.ArrayType) -> str:
    fits = f"forall(elements, each -> {_element_fits('each', kind.elementType)})"
    found = f"transform(elements, each -> {fitted('each', kind.elementType)})"
    elements = f"try_variant_get({value}, '$', 'array<variant>')"
    return let("elements", elements, f"if({fits}, {found}, NULL)")


def _map(value: str, kind: T.MapType) -> str:
    fits = f"forall(map_values(entries), each -> {_element_fits('each', kind.valueType)})"
    found = f"transform_values(entries, (name, each) -> {fitted('each', kind.valueType)})"
    return let("entries", fields(value), f"if({fits}, {found}, NULL)")


def _struct(value: str, kind: T.StructType) -> str:
    names = ", ".join(map(literal, kind.names))
    fits = [f"forall(map_keys(entries), name -> name IN ({names}))"]
    found = []
    for each in kind.fields:
        value_of = f"entries[{literal(each.name)}]"
        fits.append(let("each", value_of, _element_fits("each", each.dataType)))
        found += [literal(each.name), let("each", value_of, fitted("each", each.dataType))]
    body = f"if({' AND '.join(fits)}, named_struct({', '.join(found)}), NULL)"
    return let("entries", fields(value), body)


def _element_fits(value: str, kind: DataType) -> str:
    return f"({is_missing(value)} OR {fitted(value, kind)} IS NOT NULL)"
