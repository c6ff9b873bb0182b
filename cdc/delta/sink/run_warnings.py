"""What a run warns of in the rows of its batches: dead letters, and rows that are not exact."""

from __future__ import annotations

import logging

from cdc.delta.landing import BatchSummary
from cdc.errors import TooManyDeadLetters
from cdc.model import Namespace

_log = logging.getLogger(__name__)


class RunWarnings:
    """Counts and warns, over all batches of a run.

    Args:
        limit: how many dead letters there may be; None: any number.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit, self._dead_letters = limit, 0
        self._warned: set[Namespace] = set()

    def count_dead_letters(self, summary: BatchSummary) -> None:
        """Count the dead letters of a batch.

        Raises TooManyDeadLetters above the limit: they are written then, and nothing else is.
        """
        for namespace, images in sorted(summary.unmappable.items()):
            _log.warning("%s: %d images could not be mapped: dead letters", namespace, images)
        self._dead_letters += sum(summary.unmappable.values())
        if self._limit is not None and self._dead_letters > self._limit:
            raise TooManyDeadLetters(
                f"{self._dead_letters} images of this run could not be mapped, which is more than"
                f" the {self._limit} of dead.letters.limit.",
                "See the reasons in the table of dead letters; raise the limit to go on, the"
                " changes follow with placeholders for those images.",
            )

    def warn_inexact(self, summary: BatchSummary) -> None:
        """Warn of rows that are not exact, once for each collection."""
        for namespace in sorted(summary.inexact.keys() - self._warned):
            self._warned.add(namespace)
            _log.warning(
                "%s: %d rows are marked exact = false: images are missing, or were taken later; let"
                " the server record them (changeStreamPreAndPostImages)",
                namespace,
                summary.inexact[namespace],
            )
