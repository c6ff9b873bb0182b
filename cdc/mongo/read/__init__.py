"""Reading a split: a key range as of T, or a slice of the change stream.

In: a split. Out: raw documents or events, each once, in order.
Guaranteed: a slice is complete, or an error is raised.
"""

from cdc.model.oplog import ReadMethod
from cdc.mongo.read import change_stream, cursor, oplog
from cdc.mongo.read.batch_size import BatchSize
from cdc.mongo.read.event_run import Located, Run
from cdc.mongo.read.images import IMAGES, Event
from cdc.mongo.read.oplog import Note
from cdc.mongo.read.range_scan import Documents, reads_at_a_time
from cdc.mongo.read.shards.stream_order import fields_error
from cdc.mongo.read.split_reading import read_range, read_slice

__all__ = [
    "IMAGES",
    "BatchSize",
    "Documents",
    "Event",
    "Located",
    "Note",
    "ReadMethod",
    "Run",
    "change_stream",
    "cursor",
    "fields_error",
    "oplog",
    "read_range",
    "read_slice",
    "reads_at_a_time",
]
