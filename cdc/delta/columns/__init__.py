"""Columns of the tables: the forms of a changelog, typed columns, and what holds their rest."""

from cdc.delta.columns.changelog_forms import (
    BATCH,
    EVENT,
    FORMS,
    after_text,
    cdf,
    debezium,
    in_form,
    is_of,
    place,
    with_after,
)
from cdc.delta.columns.image import ID, Image, id_text
from cdc.delta.columns.rescued import RESCUED, family_of, fields
from cdc.delta.columns.table_columns import Columns, has_room, of_table
from cdc.delta.columns.taken_text import taken_text
from cdc.delta.columns.typed_column import REFUSED, TypedColumn, is_storable, path_text

__all__ = [
    "BATCH",
    "EVENT",
    "FORMS",
    "ID",
    "REFUSED",
    "RESCUED",
    "Columns",
    "Image",
    "TypedColumn",
    "after_text",
    "cdf",
    "debezium",
    "family_of",
    "fields",
    "has_room",
    "id_text",
    "in_form",
    "is_of",
    "is_storable",
    "of_table",
    "path_text",
    "place",
    "taken_text",
    "with_after",
]
