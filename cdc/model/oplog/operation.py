"""Operations of oplog entries.

An entry contains one operation, or operations of a transaction in `o.applyOps`. A large transaction
has several entries. Each of them names the one before in `prevOpTime`, and all but the last have
`o.partialTxn`. All operations of a transaction have the time of the last entry, which commits it.
Their numbers count through all entries, and also the operations on collections that are not
captured.

Source: document_source_change_stream_unwind_transaction.cpp of the server, version 6.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model import Namespace

_TRANSACTIONS: Final = "admin.$cmd"
_FIRST: Final = Timestamp(0, 0)
# Fields of an entry whose meaning for a change stream is known.
_KNOWN: Final = frozenset(
    (
        *("op", "ns", "ui", "o", "o2", "ts", "t", "v", "wall", "prevOpTime"),
        # Of retryable writes, which are events like other writes.
        *("lsid", "txnNumber", "stmtId", "needsRetryImage"),
    )
)
_KNOWN_IN_TRANSACTION: Final = frozenset(("op", "ns", "ui", "o", "o2"))
_NEEDED: Final = frozenset(("ns", "ui", "o"))


class NeedsChangeStream(Exception):
    """A change stream must read this slice; `reason` is a few words without values of documents.

    The text is `detail`, or the reason if there is none. Reasons are counted, so they are few.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class PreImageKey(NamedTuple):
    """The `_id` of a recorded pre-image: the entry's time, and the operation's number in it."""

    uuid: bytes
    time: Timestamp
    number: int


class Operation(NamedTuple):
    """One operation on one document.

    Attributes:
        fields: the operation's own `op`, `ns`, `ui`, `o` and `o2`.
        entry: the entry that commits it.
        number: its number in the transaction; 0 outside transactions.
        recorded: the time of the entry that contains it, and its number there.
    """

    fields: RawBSONDocument
    entry: RawBSONDocument
    number: int
    recorded: tuple[Timestamp, int]

    @property
    def namespace(self) -> Namespace:
        return Namespace.parse(self.fields["ns"])

    @property
    def pre_image(self) -> PreImageKey | None:
        """The key of its pre-image; None if it has none, because it is an insert."""
        if self.fields["op"] == "i":
            return None
        return PreImageKey(bytes(self.fields["ui"]), *self.recorded)


FindEntry = Callable[[Timestamp], RawBSONDocument | None]


def unfold(entry: RawBSONDocument, find_entry: FindEntry) -> Iterator[Operation]:
    """Yield the operations that an entry commits, in order; none if a later entry commits them.

    Args:
        entry: the entry.
        find_entry: returns the entry of that time; None if the oplog does not have it.

    Raises NeedsChangeStream.
    """
    if entry["op"] != "c":
        _require_known(entry, _KNOWN)
        yield Operation(entry, entry, 0, (entry["ts"], 0))
        return
    _require_transaction(entry)
    if "partialTxn" in entry["o"]:
        return
    number = 0
    for part in _list_parts(entry, find_entry):
        for place, fields in enumerate(part["o"]["applyOps"]):
            if fields["op"] == "c":
                raise NeedsChangeStream("DDL")
            _require_known(fields, _KNOWN_IN_TRANSACTION)
            yield Operation(fields, entry, number, (part["ts"], place))
            number += 1


def _list_parts(entry: RawBSONDocument, find_entry: FindEntry) -> list[RawBSONDocument]:
    """Return the entries of a transaction in order."""
    parts = [entry]
    while (time := parts[-1]["prevOpTime"]["ts"]) != _FIRST:
        before = find_entry(time)
        if before is None:
            raise NeedsChangeStream("a transaction that began before the oplog")
        _require_transaction(before)
        parts.append(before)
    return parts[::-1]


def _require_transaction(entry: RawBSONDocument) -> None:
    command = entry["o"]
    if entry["ns"] != _TRANSACTIONS:
        raise NeedsChangeStream("DDL")
    if not {"commitTransaction", "abortTransaction", "prepare"}.isdisjoint(command):
        raise NeedsChangeStream("a prepared transaction")
    _require_known(entry, _KNOWN)
    if not {"txnNumber", "lsid", "prevOpTime"}.issubset(entry):
        raise NeedsChangeStream("a command that is no transaction")
    if "applyOps" not in command or not {"applyOps", "partialTxn", "count"}.issuperset(command):
        raise NeedsChangeStream("a command that is no transaction")


def _require_known(fields: Mapping[str, Any], known: frozenset[str]) -> None:
    if not known.issuperset(fields):
        raise NeedsChangeStream("an oplog entry with an unknown field")
    if fields["op"] not in ("i", "u", "d", "c"):
        raise NeedsChangeStream("an unknown kind of oplog entry")
    if not _NEEDED.issubset(fields) and fields["op"] != "c":
        raise NeedsChangeStream("an oplog entry without a usual field")
