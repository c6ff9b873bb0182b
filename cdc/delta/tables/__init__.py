"""Delta tables of a pipeline: location, schema, ownership, commit metadata."""

from cdc.delta.tables import conflict, small_write_settings
from cdc.delta.tables.catalog_view import drop_view, live_view, put_view, text_of_view
from cdc.delta.tables.commit_log import newest_entry, read_log
from cdc.delta.tables.commit_metadata import (
    NO_BATCH,
    Commit,
    State,
    keep,
    merging,
    newest_commit,
    settings,
)
from cdc.delta.tables.conflict import at_once
from cdc.delta.tables.deletion_vectors import UnknownVector, read_vector, write_vectors
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
from cdc.delta.tables.live_files import LiveFile, LiveFiles, added_files
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
from cdc.delta.tables.transaction import ChangedFiles, UnsuitableTable, added

__all__ = [
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
    "ChangedFiles",
    "Commit",
    "Layout",
    "LiveFile",
    "LiveFiles",
    "LogCheckpoints",
    "Options",
    "State",
    "Table",
    "Tables",
    "Target",
    "UnknownVector",
    "UnsuitableTable",
    "added",
    "added_files",
    "at_once",
    "begin_of",
    "conflict",
    "drop_view",
    "escape_glob",
    "existing",
    "families_of",
    "grow",
    "identity",
    "is_local",
    "keep",
    "live_view",
    "main_type",
    "merging",
    "newest_commit",
    "newest_entry",
    "present",
    "put_view",
    "read_log",
    "read_vector",
    "require_ours",
    "require_unoccupied",
    "settings",
    "small_write_settings",
    "text_of_view",
    "under",
    "write_vectors",
]
