"""Delta tables of a pipeline: location, schema, ownership, commit metadata."""

from cdc.delta.tables import conflict, small_write_settings
from cdc.delta.tables.catalog_view import drop_view, live_view, put_view, text_of_view
from cdc.delta.tables.changelog_forms import (
    BATCH,
    CDF,
    EVENT,
    after_text,
    cdf,
    is_of,
    place,
    with_after,
)
from cdc.delta.tables.commit_metadata import (
    CHANGES,
    COPY,
    NO_BATCH,
    Commit,
    State,
    history,
    keep,
    merging,
    newest_commit,
    settings,
)
from cdc.delta.tables.conflict import at_once
from cdc.delta.tables.evolution import MOST_COLUMNS, families_of, grow, main_type
from cdc.delta.tables.known_table import Begin, begin_of
from cdc.delta.tables.layout import (
    FAIL,
    HARD,
    KEEP,
    KEYS,
    KINDS,
    MATCH,
    SOFT,
    Layout,
    Options,
    Table,
)
from cdc.delta.tables.log_checkpoints import LogCheckpoints
from cdc.delta.tables.ownership import (
    PIPELINE,
    existing,
    identity,
    present,
    require_ours,
    require_unoccupied,
)
from cdc.delta.tables.pipeline_tables import Tables
from cdc.delta.tables.target import Target, escape_glob, is_local, under
from cdc.delta.tables.transaction import UnsuitableTable

__all__ = [
    "BATCH",
    "CDF",
    "CHANGES",
    "COPY",
    "EVENT",
    "FAIL",
    "HARD",
    "KEEP",
    "KEYS",
    "KINDS",
    "MATCH",
    "MOST_COLUMNS",
    "NO_BATCH",
    "PIPELINE",
    "SOFT",
    "Begin",
    "Commit",
    "Layout",
    "LogCheckpoints",
    "Options",
    "State",
    "Table",
    "Tables",
    "Target",
    "UnsuitableTable",
    "after_text",
    "at_once",
    "begin_of",
    "cdf",
    "conflict",
    "drop_view",
    "escape_glob",
    "existing",
    "families_of",
    "grow",
    "history",
    "identity",
    "is_local",
    "is_of",
    "keep",
    "live_view",
    "main_type",
    "merging",
    "newest_commit",
    "place",
    "present",
    "put_view",
    "require_ours",
    "require_unoccupied",
    "settings",
    "small_write_settings",
    "text_of_view",
    "under",
    "with_after",
]
