"""Conversion of a VARIANT into typed columns and `_rescued`, as SQL text that a view can keep.

The values are those of `cdc.model.typed.typed_columns`. A damaged VARIANT, which no encoder of this
project writes, ends the query. `cdc.delta.columns.rescued` is the inverse.

A `value` is the text of an expression that is cheap to repeat: a column, or a name that `let` has
bound. Each cast is null for a null, and for a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import types as T
from pyspark.sql.types import DataType

from cdc.delta.columns.arrow_columns import plan_of
from cdc.delta.columns.rescued import RESCUED, family_of, fields, let, present
from cdc.delta.columns.typed_column import TypedColumn
from cdc.delta.sql import literal, quoted
from cdc.model.typed import DAY, DOUBLE_DIGITS, DOUBLE_LIMIT, SINGLE_LIMIT, Plan

_NOTHING = "CAST(NULL AS variant)"
_FAMILY = "_family"
# Any double is restored from 17 digits, and most from fewer. Before version 19, Java's own text of
# a double may have more digits than it needs. Python's shortest text is the nearest number of so
# many digits, except for 2^89 (of the doubles that a decimal takes): that restores another double.
_TEXTS = ", ".join(
    [
        "format_string('%.14e', _number)",
        "format_string('%.15e', _number)",
        "'6.189700196426902E+26', '-6.189700196426902E+26'",
        "format_string('%.16e', _number)",
    ]
)
# Of a family of decimals, as `DECIMAL(5,2)`.
_PRECISION, _SCALE = "([0-9]+),", ",([0-9]+)"


@dataclass(frozen=True, slots=True)
class TakenText:
    """The typed columns of the documents in a query.

    Attributes:
        query: the rows of the original query with more columns, all of which begin with `_`.
        columns: the SQL text of each typed column, and of `_rescued`, over the rows of `query`.
    """

    query: str
    columns: dict[str, str]


def taken_text(query: str, document: str, columns: Sequence[TypedColumn]) -> TakenText:
    """Take typed columns from the VARIANT `document` of the rows of `query`.

    Spark computes an expression as often as it is written. So each level of the documents, and then
    the casts, are a query around the previous one.
    """
    plan = plan_of(columns)
    whole = {"_place0": document, "_fields0": fields(document)}
    level, found = plan.places[0].inner, _around(query, whole)
    while level:
        parents = {inner: number for number, each in enumerate(plan.places) for inner in each.inner}
        held = dict[str, str]()
        for number in level:
            place = plan.places[number]
            value = f"_fields{parents[number]}[{literal(place.name.decode())}]"
            held[f"_place{number}"] = value
            if place.inner:
                held[f"_fields{number}"] = fields(value)
        found = _around(found, held)
        level = range(level.stop, max((plan.places[n].inner.stop for n in level), default=0))
    casts = {
        f"_column{column}": _cast(f"_place{number}", columns[column].type)
        for number, place in enumerate(plan.places)
        for column in (place.typed, place.variant)
        if column is not None
    }
    own = {column.name: f"_column{number}" for number, column in enumerate(columns)}
    return TakenText(_around(found, casts), {**own, RESCUED: _rest(0, plan)})


def _around(query: str, more: Mapping[str, str]) -> str:
    named = ", ".join(f"{text} AS {name}" for name, text in more.items())
    return f"SELECT *, {named} FROM ({query})"


def _rest(number: int, plan: Plan) -> str:
    """What no column takes of the value at a place; null if nothing remains."""
    place, value = plan.places[number], f"_place{number}"
    if place.typed is not None:
        return f"if({_fits(value, f'_column{place.typed}')}, NULL, {value})"
    if not place.inner:
        return _NOTHING
    known = f"_fields{number}"
    inner = {plan.places[each].name.decode(): _rest(each, plan) for each in place.inner}
    left = present(inner)
    if not place.is_in_variant:
        listed = ", ".join(map(literal, inner))
        others = f"map_filter({known}, (name, each) -> name NOT IN ({listed}))"
        left = f"map_concat({others}, {left})"
    is_whole = f"{known} IS NULL"
    if number and not place.is_in_variant:
        is_whole += f" OR size({known}) = 0"
    made = let("_left", left, "if(size(_left) > 0, to_variant_object(_left), NULL)")
    return f"if({is_whole}, {value}, {made})"


def _fits(value: str, cast: str) -> str:
    return f"({cast} IS NOT NULL OR {value} IS NULL OR is_variant_null({value}))"


def _cast(value: str, kind: DataType, depth: int = 0) -> str:
    """SQL text for a VARIANT as a value of a column's type."""
    if isinstance(kind, T.VariantType):
        return value
    if isinstance(kind, T.ArrayType):
        elements = f"try_variant_get({value}, '$', 'array<variant>')"
        each = f"_each{depth}"
        pair = f"struct({each} AS value, {_cast(each, kind.elementType, depth + 1)} AS cast)"
        return _all_of(elements, each, pair, "pair.cast", depth)
    if isinstance(kind, T.MapType):
        each = f"_each{depth}"
        cast = _cast(f"{each}.value", kind.valueType, depth + 1)
        pair = f"struct({each}.key AS key, {each}.value AS value, {cast} AS cast)"
        entries = f"map_entries({fields(value)})"
        found = _all_of(entries, each, pair, "struct(pair.key, pair.cast)", depth)
        return f"map_from_entries({found})"
    if isinstance(kind, T.StructType):
        return _cast_struct(value, kind, depth)
    return let(_FAMILY, family_of(value), _cast_scalar(value, kind))


def _all_of(values: str, each: str, pair: str, result: str, depth: int) -> str:
    """An array of the results for all values; null if one of them does not fit."""
    pairs = f"_pairs{depth}"
    fit = f"forall({pairs}, pair -> {_fits('pair.value', 'pair.cast')})"
    found = f"if({fit}, transform({pairs}, pair -> {result}), NULL)"
    return let(pairs, f"transform({values}, {each} -> {pair})", found)


def _cast_struct(value: str, kind: T.StructType, depth: int) -> str:
    """A struct of an object that has no other fields, each of which fits; else null."""
    inner, casts = f"_inner{depth}", f"_casts{depth}"
    values = {each.name: f"{inner}[{literal(each.name)}]" for each in kind.fields}
    made = ", ".join(
        f"{literal(each.name)}, {_cast(values[each.name], each.dataType, depth + 1)}"
        for each in kind.fields
    )
    listed = ", ".join(map(literal, values))
    fit = [f"forall(map_keys({inner}), name -> name IN ({listed}))"]
    fit += [_fits(text, f"{casts}.{quoted(name)}") for name, text in values.items()]
    found = f"if({' AND '.join(fit)}, {casts}, NULL)"
    return let(inner, fields(value), let(casts, f"named_struct({made})", found))


def _cast_scalar(value: str, kind: DataType) -> str:
    if isinstance(kind, T.DateType):
        day = f"date_from_unix_date(int(unix_micros(_time) div {DAY}))"
        midnight = f"if(unix_micros(_time) % {DAY} = 0, {day}, NULL)"
        time = f"try_variant_get({value}, '$', 'timestamp')"
        return f"if({_FAMILY} = 'TIMESTAMP', {let('_time', time, midnight)}, NULL)"
    if isinstance(kind, T.DecimalType):
        return _cast_number(value, *_into_decimal(kind))
    if isinstance(kind, T.FloatType | T.DoubleType):
        return _cast_number(value, *_into_floating(kind))
    if isinstance(kind, T.IntegralType):
        return _cast_number(value, *_into_integer(kind))
    name = kind.simpleString()
    found = f"try_variant_get({value}, '$', '{name}')"
    return f"if({_FAMILY} = '{name.upper()}', {found}, NULL)"


def _cast_number(value: str, integer: str, double: str, decimal: str) -> str:
    """The text of a number's cast, of those for `_number`: a bigint, a double, a decimal's text."""
    families = (
        ("= 'BIGINT'", "bigint", integer),
        ("= 'DOUBLE'", "double", double),
        ("LIKE 'DECIMAL(%'", "string", decimal),
    )
    cases = [
        f"WHEN {_FAMILY} {family} THEN "
        + let("_number", f"try_variant_get({value}, '$', '{kind}')", cast)
        for family, kind, cast in families
    ]
    return f"CASE {' '.join(cases)} END"


def _into_integer(kind: DataType) -> tuple[str, str, str]:
    cast = f"try_cast(_number AS {kind.simpleString()})"
    # Spark lets 2^63 fit a bigint.
    whole = f"if(_number = rint(_number) AND _number < {2**63}D, {cast}, NULL)"
    return cast, whole, f"if({_digits(_SCALE)} = 0, {cast}, NULL)"


def _into_decimal(kind: T.DecimalType) -> tuple[str, str, str]:
    name = kind.simpleString()
    shortest = f"get(filter(array({_TEXTS}), text -> double(text) = _number), 0)"
    restored = let(
        "_cast", f"try_cast({shortest} AS {name})", "if(double(_cast) = _number, _cast, NULL)"
    )
    cast = f"try_cast(_number AS {name})"
    return cast, restored, f"if({_digits(_SCALE)} <= {kind.scale}, {cast}, NULL)"


def _into_floating(kind: DataType) -> tuple[str, str, str]:
    is_single = isinstance(kind, T.FloatType)
    limit = SINGLE_LIMIT if is_single else DOUBLE_LIMIT
    cast = f"{kind.simpleString()}(_number)"
    within = f"if(_number > -{limit} AND _number < {limit}, {cast}, NULL)"
    exact = f"if(double({cast}) = double(_number), {cast}, NULL)"
    return within, exact, f"if({_digits(_PRECISION)} <= {DOUBLE_DIGITS}, {exact}, NULL)"


def _digits(pattern: str) -> str:
    return f"int(regexp_extract({_FAMILY}, '{pattern}', 1))"
