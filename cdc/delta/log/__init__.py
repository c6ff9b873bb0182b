"""One Delta table: its place, its log, and the commits that change it."""

from cdc.delta.log import conflict
from cdc.delta.log.commit_log import LogEntry, newest_entry, read_log
from cdc.delta.log.commit_metadata import NO_BATCH, Commit, State, merging, settings
from cdc.delta.log.conflict import at_once
from cdc.delta.log.deletion_vectors import UnknownVector, read_vector, write_vectors
from cdc.delta.log.live_files import LiveFile, LiveFiles, files_of_batches
from cdc.delta.log.log_checkpoints import CHECKPOINT_INTERVAL, LogCheckpoints
from cdc.delta.log.needed_files import list_unneeded
from cdc.delta.log.newest_commit import (
    NewestCommit,
    find_contained,
    find_newest,
    keep,
    newest_commit,
    require_contained,
)
from cdc.delta.log.snapshot import Size, schema_of, stated_size
from cdc.delta.log.suitable_table import UnsuitableTable, require_changeable, require_suitable
from cdc.delta.log.table_reader import (
    LocalReader,
    NeedsSpark,
    SparkReader,
    TableReader,
    is_readable_locally,
    open_table,
    read_local_log,
)
from cdc.delta.log.target import Target, escape_glob, hadoop, is_local, under
from cdc.delta.log.transaction import (
    ChangedFiles,
    NewTable,
    TableExists,
    Transaction,
    added,
    commit_files,
    create_table,
    replace_table,
)

__all__ = [
    "CHECKPOINT_INTERVAL",
    "NO_BATCH",
    "ChangedFiles",
    "Commit",
    "LiveFile",
    "LiveFiles",
    "LocalReader",
    "LogCheckpoints",
    "LogEntry",
    "NeedsSpark",
    "NewTable",
    "NewestCommit",
    "Size",
    "SparkReader",
    "State",
    "TableExists",
    "TableReader",
    "Target",
    "Transaction",
    "UnknownVector",
    "UnsuitableTable",
    "added",
    "at_once",
    "commit_files",
    "conflict",
    "create_table",
    "escape_glob",
    "files_of_batches",
    "find_contained",
    "find_newest",
    "hadoop",
    "is_local",
    "is_readable_locally",
    "keep",
    "list_unneeded",
    "merging",
    "newest_commit",
    "newest_entry",
    "open_table",
    "read_local_log",
    "read_log",
    "read_vector",
    "replace_table",
    "require_changeable",
    "require_contained",
    "require_suitable",
    "schema_of",
    "settings",
    "stated_size",
    "under",
    "write_vectors",
]
