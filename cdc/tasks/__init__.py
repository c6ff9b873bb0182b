"""What runs in a Spark task: a split becomes rows, and rows become Arrow batches or data files."""

from cdc.tasks.data_files import DataFile, DataFiles, Part, has_foreign_files, remove
from cdc.tasks.landing import MANIFEST, Manifest, land
from cdc.tasks.summary import Group, Mark, merge
from cdc.tasks.task import discover_once, discover_source, query_source, record_batches

__all__ = [
    "MANIFEST",
    "DataFile",
    "DataFiles",
    "Group",
    "Manifest",
    "Mark",
    "Part",
    "discover_once",
    "discover_source",
    "has_foreign_files",
    "land",
    "merge",
    "query_source",
    "record_batches",
    "remove",
]
