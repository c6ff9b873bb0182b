"""Delta tables of a pipeline: layout, location, schema, ownership, and what is known of each."""

from cdc.delta.tables import small_write_settings, writes
from cdc.delta.tables.catalog_view import drop_view, live_view, put_view, text_of_view
from cdc.delta.tables.evolution import MOST_COLUMNS, count_families, grow, main_type
from cdc.delta.tables.known_table import Begin, KnownTable, begin_of, configured_image
from cdc.delta.tables.layout import (
    FAIL,
    HARD,
    KEEP,
    KEYS,
    KINDS,
    MATCH,
    OLD_NAMES,
    SOFT,
    Layout,
    Options,
    Table,
)
from cdc.delta.tables.ownership import (
    PIPELINE,
    existing,
    identity,
    present,
    require_ours,
    require_unoccupied,
)
from cdc.delta.tables.pipeline_tables import Tables

__all__ = [
    "FAIL",
    "HARD",
    "KEEP",
    "KEYS",
    "KINDS",
    "MATCH",
    "MOST_COLUMNS",
    "OLD_NAMES",
    "PIPELINE",
    "SOFT",
    "Begin",
    "KnownTable",
    "Layout",
    "Options",
    "Table",
    "Tables",
    "begin_of",
    "configured_image",
    "count_families",
    "drop_view",
    "existing",
    "grow",
    "identity",
    "live_view",
    "main_type",
    "present",
    "put_view",
    "require_ours",
    "require_unoccupied",
    "small_write_settings",
    "text_of_view",
    "writes",
]
