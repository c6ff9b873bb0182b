"""Values and pure rules: no I/O, no clock, no Spark.

In: what others have read. Out: namespaces, offsets, splits, change rows, merge keys, coverage.
Guaranteed: `hand_over` contains every transition of an offset; equal input gives equal output.
"""

from cdc.model import resume_token, timestamp
from cdc.model.capture_filter import PASSES, CaptureFilter, filter_marks
from cdc.model.change import (
    GAP,
    RESYNC,
    ROW_EVENTS,
    VOID,
    WATERMARK,
    Change,
    Encode,
    control_rows,
    describe_update,
    event_row,
    read_row,
    transaction,
    void_row,
)
from cdc.model.connection_string import (
    CONNECTION_STRING,
    quotable_name,
    require_connection_string,
    require_uri,
)
from cdc.model.coverage import MARKING, Coverage, Happening, Mark, Span, What, marks_of_row
from cdc.model.hand_over import (
    Replaced,
    advance,
    begin_again,
    list_recopied,
    list_withheld,
    mark_read,
    pass_gap,
    reselect,
    silence,
)
from cdc.model.match_expression import Expression
from cdc.model.merge_key import document_key_json, merge_key
from cdc.model.offset import (
    NEVER,
    Again,
    Copying,
    Offset,
    Scan,
    Times,
    are_equal,
    beginning,
    decode_key,
    encode_key,
    streaming,
)
from cdc.model.resume_token import Token
from cdc.model.selection import Namespace, Selection, full_name
from cdc.model.split import (
    MAX_KEY,
    MIN_KEY,
    ControlSplit,
    KeyRange,
    SnapshotSplit,
    Split,
    StreamSplit,
    key_of,
    literal,
)
from cdc.model.timestamp import Timestamp
from cdc.model.watermark import Watermark

__all__ = [
    "CONNECTION_STRING",
    "GAP",
    "MARKING",
    "MAX_KEY",
    "MIN_KEY",
    "NEVER",
    "PASSES",
    "RESYNC",
    "ROW_EVENTS",
    "VOID",
    "WATERMARK",
    "Again",
    "CaptureFilter",
    "Change",
    "ControlSplit",
    "Copying",
    "Coverage",
    "Encode",
    "Expression",
    "Happening",
    "KeyRange",
    "Mark",
    "Namespace",
    "Offset",
    "Replaced",
    "Scan",
    "Selection",
    "SnapshotSplit",
    "Span",
    "Split",
    "StreamSplit",
    "Times",
    "Timestamp",
    "Token",
    "Watermark",
    "What",
    "advance",
    "are_equal",
    "begin_again",
    "beginning",
    "control_rows",
    "decode_key",
    "describe_update",
    "document_key_json",
    "encode_key",
    "event_row",
    "filter_marks",
    "full_name",
    "key_of",
    "list_recopied",
    "list_withheld",
    "literal",
    "mark_read",
    "marks_of_row",
    "merge_key",
    "pass_gap",
    "quotable_name",
    "read_row",
    "require_connection_string",
    "require_uri",
    "reselect",
    "resume_token",
    "silence",
    "streaming",
    "timestamp",
    "transaction",
    "void_row",
]
