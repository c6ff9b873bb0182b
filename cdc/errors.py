"""Every error raised on purpose, grouped by what has to happen next.

A message names what was attempted, on what (namespace, split, time), and why it failed. `remedy`
says what to do. Neither ever contains a document's values or a credential. The cause is chained
(`raise … from`) and never pasted into the text, because a driver's message may contain both.
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


# --- exit codes of programs that are not those of an error ---------------------------------------

LEFT = 6  # differences remain
INTERRUPTED = 130  # by Ctrl-C
TERMINATED = 143  # by SIGTERM


# --- transient: the same call may succeed later or on another member ----------------------------


class TransientError(CdcError):
    """The server cannot answer now. Reading again from the last offset is safe."""

    exit_code = 3


class SourceUnreachable(TransientError):
    """No suitable server answered within `server.timeout.ms`."""


# --- the operator has to decide: continuing would lose or mix data ------------------------------


class HistoryLost(CdcError):
    """The oplog no longer contains the position to read from."""

    exit_code = 4


class NotPermitted(CdcError):
    """The user lacks a privilege that the run requires."""


class LoginRefused(NotPermitted):
    """The server does not accept the user and password, or the certificate.

    A run that the server accepted before tries again, and reads again what `uri` names: somebody
    may be changing the password at that moment.
    """


class UnsuitableSource(CdcError):
    """The server or a collection cannot be captured as it is: standalone, view, time series …"""


class ImagesMissing(UnsuitableSource):
    """`images = required`, and a collection does not record pre- and post-images."""


class OplogUnsuitable(UnsuitableSource):
    """`read.by = oplog`, and changes cannot be read from the oplog."""


class OplogDiffers(CdcError):
    """`oplog.verify` found a change that the oplog and a change stream do not report alike."""


class ContentReplaced(CdcError):
    """`on.replaced = fail`, and a collection has content that no row event reported."""


class CollectionGone(CdcError):
    """`on.drop = fail` or `on.rename = fail`, and a collection was dropped or renamed."""


class ForeignOffset(CdcError):
    """This version, source or selection of collections cannot continue from the checkpoint."""


class CheckpointDamaged(CdcError):
    """A file of the checkpoint is missing or damaged."""


class CheckpointMissing(CdcError):
    """There is no checkpoint yet, and the program cannot begin without one."""


class CheckpointInUse(CdcError):
    """Another job runs on the same checkpoint."""


class DataFileLost(CdcError):
    """A data file that a task wrote is not in the folder of its table."""


class ForeignManifest(CdcError):
    """A manifest of data files is not what the tasks of the batch have written."""


class ChangelogTooShort(CdcError):
    """The log of a changelog lacks batches that a mirror or a history has not applied yet."""


class TableRestored(CdcError):
    """Somebody restored a table to an earlier version, which lacks batches of the pipeline."""


class RebuildRefused(CdcError):
    """The changelog of a mirror or a history does not contain all that the table contains."""


class TableOwnedElsewhere(CdcError):
    """A target table belongs to another pipeline (another checkpoint), or to none."""


class TooManyDeadLetters(CdcError):
    """More images than `dead.letters.limit` could not be mapped."""


class ConflictsUnresolved(CdcError):
    """A write to a table conflicted with other writers for too long."""

    exit_code = 5


class NotComparable(CdcError):
    """`verify` cannot compare: there is no time at which mirror and source are both exact."""


class NotCovered(CdcError):
    """A changelog does not contain the whole collection as of the requested time."""


class TargetNotEmpty(CdcError):
    """A restore would write into a collection that has other documents."""


# --- bad input: nothing was read or written ------------------------------------------------------


class BadOption(CdcError):
    """An option is unknown, malformed or contradicts another one.

    `option` is the name of the option if one alone is wrong, in a file with its section in front.
    `errors` are the errors that this one consists of, if several options are wrong.
    """

    exit_code = 2
    option = ""
    errors: tuple[BadOption, ...] = ()

    @classmethod
    def join(cls, errors: list[BadOption]) -> BadOption:
        """Return one error for several. Each has a line of its own in the message."""
        joined = cls("\n".join(map(str, errors)))
        joined.errors = tuple(errors)
        return joined


class BadToken(CdcError):
    """A text is not a resume token, or not a cluster time."""

    exit_code = 2


# --- about one value, never about the run -------------------------------------------------------


class UnmappableValue(CdcError):
    """A document has no image in the chosen `document.format`; its row carries the raw bytes.

    Also: no document can be made of an image; a restore leaves it out.
    """
