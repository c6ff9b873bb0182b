"""The reference rules of typed columns: which values a column type takes without loss."""

from cdc.model.typed import casts, typed_columns
from cdc.model.typed.casts import (
    DAY,
    DOUBLE_DIGITS,
    DOUBLE_LIMIT,
    MOST_DIGITS,
    SINGLE_LIMIT,
    Array,
    Decimals,
    Integer,
    Kind,
    Map,
    Scalar,
    Struct,
)
from cdc.model.typed.families import list_families
from cdc.model.typed.typed_columns import Plan

__all__ = [
    "DAY",
    "DOUBLE_DIGITS",
    "DOUBLE_LIMIT",
    "MOST_DIGITS",
    "SINGLE_LIMIT",
    "Array",
    "Decimals",
    "Integer",
    "Kind",
    "Map",
    "Plan",
    "Scalar",
    "Struct",
    "casts",
    "list_families",
    "typed_columns",
]
