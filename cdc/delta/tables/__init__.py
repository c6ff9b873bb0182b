"""Delta tables of a pipeline: layout, location, schema, ownership, and what is known of each."""

from cdc.delta.tables import small_write_settings, writes
from cdc.delta.tables.catalog_view import live_view, put_view, text_of_view
from cdc.delta.tables.evolution import MOST_COLUMNS, count_families, grow, main_type
from cdc.delta.tables.kind import Kind
from cdc.delta.tables.known_table import BEFORE_ALL, Begin, KnownTable, begin_of
from cdc.delta.tables.layout import (
    FAIL,
    HARD,
    KEEP,
    KEYS,
    MATCH,
    OLD_NAMES,
    ROW_KINDS,
    SOFT,
    TRACK,
    Layout,
    Options,
    Table,
)
from cdc.delta.tables.layout_history import LayoutHistory
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
    "BEFORE_ALL",
    "FAIL",
    "HARD",
    "KEEP",
    "KEYS",
    "MATCH",
    "MOST_COLUMNS",
    "OLD_NAMES",
    "PIPELINE",
    "ROW_KINDS",
    "SOFT",
    "TRACK",
    "Begin",
    "Kind",
    "KnownTable",
    "Layout",
    "LayoutHistory",
    "Options",
    "Table",
    "Tables",
    "begin_of",
    "count_families",
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
