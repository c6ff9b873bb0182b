"""Change events rebuilt from entries of the oplog and recorded pre-images.

In: an entry and the pre-images of its operations. Out: the events that a change stream reports.
Guaranteed: an event equals the server's, or NeedsChangeStream is raised.
"""

from cdc.model.oplog.diff import apply_diff, describe_diff
from cdc.model.oplog.event import change_event
from cdc.model.oplog.operation import (
    FindEntry,
    NeedsChangeStream,
    Operation,
    PreImageKey,
    unfold,
)
from cdc.model.oplog.read_method import Comparison, Differs, ReadMethod, without_repeated_fields

__all__ = [
    "Comparison",
    "Differs",
    "FindEntry",
    "NeedsChangeStream",
    "Operation",
    "PreImageKey",
    "ReadMethod",
    "apply_diff",
    "change_event",
    "describe_diff",
    "unfold",
    "without_repeated_fields",
]
