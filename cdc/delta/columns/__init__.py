"""Typed columns of a table, and the column that holds the rest."""

from cdc.delta.columns.rescued import RESCUED, family_of, fields
from cdc.delta.columns.table_columns import Columns, has_room, image, of_table, with_image
from cdc.delta.columns.typed_column import REFUSED, TypedColumn, path_text

__all__ = [
    "REFUSED",
    "RESCUED",
    "Columns",
    "TypedColumn",
    "family_of",
    "fields",
    "has_room",
    "image",
    "of_table",
    "path_text",
    "with_image",
]
