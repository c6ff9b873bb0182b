"""Columns of the tables: the forms of a changelog, typed columns, and what holds their rest."""

from cdc.delta.columns.changelog_forms import (
    BATCH,
    CDF,
    EVENT,
    after_text,
    cdf,
    is_of,
    place,
    with_after,
)
from cdc.delta.columns.rescued import RESCUED, family_of, fields
from cdc.delta.columns.table_columns import Columns, has_room, image, of_table, with_image
from cdc.delta.columns.typed_column import REFUSED, TypedColumn, path_text

__all__ = [
    "BATCH",
    "CDF",
    "EVENT",
    "REFUSED",
    "RESCUED",
    "Columns",
    "TypedColumn",
    "after_text",
    "cdf",
    "family_of",
    "fields",
    "has_room",
    "image",
    "is_of",
    "of_table",
    "path_text",
    "place",
    "with_after",
    "with_image",
]
