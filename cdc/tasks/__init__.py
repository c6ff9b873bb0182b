"""What runs in a Spark task: a split becomes rows, and rows become Arrow batches or data files."""

from cdc.tasks.data_files import (
    DELTA_LOG,
    DataFile,
    DataFiles,
    Part,
    is_data_file,
    is_foreign,
    remove,
    write_parts,
)
from cdc.tasks.folders import Folder, local_path, open_folder, probe_file
from cdc.tasks.landing import MANIFEST, Manifest, foreign_manifest, land, share_names
from cdc.tasks.storage import (
    S3_SCHEMES,
    STORAGE_KEYS,
    Storage,
    explain,
    is_remote,
    parse_location,
    scheme_of,
)
from cdc.tasks.summary import Group, Mark, find_placeholders, merge
from cdc.tasks.task import (
    discover_once,
    discover_source,
    explain_change_streams,
    query_source,
    record_batches,
)

__all__ = [
    "DELTA_LOG",
    "MANIFEST",
    "S3_SCHEMES",
    "STORAGE_KEYS",
    "DataFile",
    "DataFiles",
    "Folder",
    "Group",
    "Manifest",
    "Mark",
    "Part",
    "Storage",
    "discover_once",
    "discover_source",
    "explain",
    "explain_change_streams",
    "find_placeholders",
    "foreign_manifest",
    "is_data_file",
    "is_foreign",
    "is_remote",
    "land",
    "local_path",
    "merge",
    "open_folder",
    "parse_location",
    "probe_file",
    "query_source",
    "record_batches",
    "remove",
    "scheme_of",
    "share_names",
    "write_parts",
]
