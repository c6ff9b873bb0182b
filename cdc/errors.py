"""Every error this project raises on purpose, sorted by what has to happen next.

A message names what was attempted and on what (namespace, split, time); `remedy` says what to do.
Neither ever holds a document's values or a credential. The cause is chained (`raise … from`),
never pasted into the text: a driver's message may hold both.
"""

from __future__ import annotations


class CdcError(Exception):
    """Base of all deliberate errors. `str(error)` is the message, then the remedy if any."""

    exit_code = 1

    def __init__(self, message: str, remedy: str | None = None) -> None:
        # Both go to Exception.args so that the error survives pickling between Spark's processes.
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} Remedy: {self.remedy}" if self.remedy else self.message


# --- transient: the same call, made again later or on another member, may succeed ---------------


class TransientError(CdcError):
    """The server could not answer now. Reading again from the last offset is safe."""

    exit_code = 3


class SourceUnreachable(TransientError):
    """No suitable server answered within `server.timeout.ms`."""


# --- the operator has to decide: going on alone would lose or mix data -------------------------


class HistoryLost(CdcError):
    """The oplog no longer reaches back to the position to read from."""

    exit_code = 4


class NotPermitted(CdcError):
    """The user lacks a privilege that the run cannot do without."""


class LoginRefused(NotPermitted):
    """The server does not take user and password, or certificate. In a run that it has let in
    before, they may just be being changed: then what `uri` leads to is read again."""


class UnsuitableSource(CdcError):
    """The server or a collection cannot be captured as it is: standalone, view, time series …"""


class ImagesMissing(UnsuitableSource):
    """`images = required`, and a collection does not record pre- and post-images."""


class ContentReplaced(CdcError):
    """`on.replaced = fail`, and a collection holds content that no row event told of."""


class CollectionGone(CdcError):
    """`on.drop = fail` or `on.rename = fail`, and a collection was dropped or renamed."""


class ForeignOffset(CdcError):
    """A checkpoint that this version, source or selection of collections cannot continue from."""


class CheckpointDamaged(CdcError):
    """A file of the checkpoint is missing, or not what was written."""


class CheckpointInUse(CdcError):
    """Another job runs on the same checkpoint."""


class TableOwnedElsewhere(CdcError):
    """A target table belongs to another pipeline (another checkpoint), or to none."""


class TooManyDeadLetters(CdcError):
    """More images than `dead.letters.limit` could not be mapped."""


class ConflictsUnresolved(CdcError):
    """Other writers of a table got in the way of a write for too long."""

    exit_code = 5


class NotComparable(CdcError):
    """`verify` cannot decide: mirror and source have no common time at which both are exact."""


class NotCovered(CdcError):
    """A changelog does not hold all that a collection was at the time asked for."""


class TargetNotEmpty(CdcError):
    """A restore would write into a collection that holds something else."""


# --- bad input: nothing was read or written ------------------------------------------------------


class BadOption(CdcError):
    """An option is unknown, malformed or contradicts another one."""

    exit_code = 2


class BadToken(CdcError):
    """Text that is not a resume token or not a cluster time."""

    exit_code = 2


# --- about one value, never about the run -------------------------------------------------------


class UnmappableValue(CdcError):
    """A document that has no image in the chosen `document.format`: the row keeps its raw bytes.
    Or an image that no document was made into: a restore leaves it out."""
