"""Values and pure rules: no I/O, no clock, no Spark.

In: what others have read. Out: namespaces, offsets, splits, change rows, merge keys, coverage.
Guaranteed: `hand_over` holds every transition of an offset; equal input gives equal output.
"""

from cdc.model import resume_token, timestamp
from cdc.model.capture_filter import PASSES, Excerpt, by, passes
from cdc.model.change import (
    GAP,
    RESYNC,
    ROW_EVENTS,
    VOID,
    WATERMARK,
    Change,
    Encode,
    control_rows,
    event_row,
    read_row,
    transaction,
    updated,
    void_row,
)
from cdc.model.connection_string import (
    CONNECTION_STRING,
    not_quoting,
    require_connection_string,
    require_given,
)
from cdc.model.coverage import MARKING, Coverage, Happening, Mark, Span, What, happenings
from cdc.model.hand_over import Replaced, advance, begin_again, begun_again, reselect, withheld
from cdc.model.match_expression import Expression
from cdc.model.merge_key import document_key_json, merge_key
from cdc.model.offset import (
    NEVER,
    Again,
    Copying,
    Offset,
    Scan,
    Times,
    are_the_same,
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
    "Change",
    "ControlSplit",
    "Copying",
    "Coverage",
    "Encode",
    "Excerpt",
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
    "are_the_same",
    "begin_again",
    "beginning",
    "begun_again",
    "by",
    "control_rows",
    "decode_key",
    "document_key_json",
    "encode_key",
    "event_row",
    "full_name",
    "happenings",
    "key_of",
    "literal",
    "merge_key",
    "not_quoting",
    "passes",
    "read_row",
    "require_connection_string",
    "require_given",
    "reselect",
    "resume_token",
    "streaming",
    "timestamp",
    "transaction",
    "updated",
    "void_row",
    "withheld",
]
