"""How the changes of a run are read, and how those of the oplog are verified by a change stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cdc.model import Change, StreamSplit, timestamp
from cdc.model.bson import ARRAY, DOCUMENT, elements, encode_document, encode_field
from cdc.model.oplog.operation import NeedsChangeStream

# Columns that do not depend on the images that a change stream could return.
_WITHOUT_IMAGES = (
    *("op", "position", "cluster_time", "cluster_inc", "wall_time", "db", "coll"),
    *("key", "document_key", "txn"),
)


@dataclass(frozen=True, slots=True)
class ReadMethod:
    """The options that decide how slices are read.

    Attributes:
        by: the option `read.by`.
        verify: the option `oplog.verify`, a share from 0 to 1.
        on_difference: the option `oplog.on.difference`.
    """

    by: str = "auto"
    verify: float = 0.0
    on_difference: str = "fail"

    @property
    def reads_oplog(self) -> bool:
        return self.by != "change_stream"

    @property
    def requires_oplog(self) -> bool:
        """Whether a slice that the oplog does not have ends the run."""
        return self.by == "oplog"

    def verifies(self, split: StreamSplit) -> bool:
        """Whether a slice is compared with a change stream.

        The choice depends on nothing but the slice's times and its shard, so a replayed batch
        chooses the same slices.
        """
        times = f"{timestamp.text(split.after)} {timestamp.text(split.upto)}"
        digest = hashlib.sha256(f"{split.shard} {times}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.verify * 2**64


class Differs(NeedsChangeStream):
    """A row of the oplog is not that of the change stream; the text names both positions."""

    def __init__(self, difference: str) -> None:
        super().__init__("a difference from the change stream", difference)


class Comparison:
    """Compares the rows of a slice with those that a change stream gives, in order.

    A row of the change stream that is not exact lacks an image that the oplog may have. Of such a
    row, only the columns are compared that do not depend on images. The `after` of an update is
    compared without repeated fields, see `without_repeated_fields`.

    Args:
        others: the rows of the change stream, in order. They are read as far as they are needed.
    """

    def __init__(self, others: Iterator[Change]) -> None:
        self._others = others

    def require_same(self, rows: Iterable[Change]) -> None:
        """Compare the next rows of the slice. Raises Differs at the first difference."""
        for row in rows:
            _require_same(row, next(self._others, None))

    def require_end(self) -> None:
        """Require that the change stream has no more rows. Raises Differs."""
        other = next(self._others, None)
        if other is not None:
            raise Differs(f"only the change stream has the change at {other.position}")


def _require_same(row: Change, other: Change | None) -> None:
    if other is None:
        raise Differs(f"only the oplog has the change at {row.position}")
    compared = Change._fields if other.exact else _WITHOUT_IMAGES
    columns = [name for name in compared if not _is_same(row, other, name)]
    if columns:
        raise Differs(
            f"{', '.join(columns)} of the change at {row.position} in the oplog differ from the"
            f" change at {other.position} in the change stream"
        )


def _is_same(row: Change, other: Change, name: str) -> bool:
    own, expected = getattr(row, name), getattr(other, name)
    if own == expected or name != "after" or row.op != "update" or None in (own, expected):
        return bool(own == expected)
    return without_repeated_fields(own) == without_repeated_fields(expected)


def without_repeated_fields(document: bytes) -> bytes:
    """Return a document with only the last of all fields of one name, at each level.

    An update by a pipeline may move a field to the end. The diff then has the field among the new
    ones. In the after-image of its change stream, MongoDB 6.0 appends the new fields without
    removing those of that name; the stored document has each once.
    """
    return _without_repeated(document, is_array=False)


def _without_repeated(document: bytes, is_array: bool) -> bytes:
    fields = elements(document, 0, len(document))
    last = {each.name: number for number, each in enumerate(fields)}
    kept = list[bytes]()
    for number, each in enumerate(fields):
        value = document[each.start : each.stop]
        if each.kind in (DOCUMENT, ARRAY):
            value = _without_repeated(value, each.kind == ARRAY)
        if is_array or last[each.name] == number:
            kept.append(encode_field(each.kind, each.name, value))
    return encode_document(kept)
