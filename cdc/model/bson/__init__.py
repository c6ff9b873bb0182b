"""BSON read element by element, and written as Extended JSON."""

from cdc.model.bson import decimal128, element, extended_json
from cdc.model.bson.element import (
    ARRAY,
    BINARY,
    BOOL,
    DATE,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    MAX_DEPTH,
    NULL,
    OBJECT_ID,
    STRING,
    TIMESTAMP,
    Element,
    elements,
)
from cdc.model.bson.extended_json import Json, value

__all__ = [
    "ARRAY",
    "BINARY",
    "BOOL",
    "DATE",
    "DECIMAL128",
    "DOCUMENT",
    "DOUBLE",
    "INT32",
    "INT64",
    "MAX_DEPTH",
    "NULL",
    "OBJECT_ID",
    "STRING",
    "TIMESTAMP",
    "Element",
    "Json",
    "decimal128",
    "element",
    "elements",
    "extended_json",
    "value",
]
