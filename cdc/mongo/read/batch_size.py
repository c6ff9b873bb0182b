"""Number of events requested in one reply of a change stream.

A server fills a reply with up to 16 MiB of events and then adds a token. The token contains the
`_id` of the last event in twice its bytes. If `_id`s have more than about 8 KB, events and token
together may exceed the limit of a reply, however small each event is. The getMore then fails with
10334, and its cursor is gone. An event that fits together with its own token can be read by a
request for that event alone.
"""

from __future__ import annotations

from typing import Final

# The bytes of events that a server puts into one reply at most, and the bytes that replies should
# have after one was too large.
_FULL: Final = 16 * 2**20
_AIM: Final = 4 * 2**20


class BatchSize:
    """The number of events in each reply, for all cursors that are opened on one split in turn.

    It is `most` until the server refuses a reply as too large. The cursors must return the same
    events in the same order. After a refusal, the next cursor gets the earlier replies again. Then
    it requests single events until it has passed the refused reply. After that, a reply has about a
    quarter of the bytes that the server would put into it, and half as many after each further
    refusal.
    """

    def __init__(self, most: int) -> None:
        self._most, self._aim = most, 2 * _AIM
        # Numbers of events at the end of each reply: of the cursor that failed, and of this one.
        self._known_ends, self._ends = list[int](), list[int]()
        # After those replies: how many events are requested singly, and at most how many bytes.
        self._singles, self._single_bytes = 0, 0
        self._refused = 0
        self.begin()

    def begin(self) -> None:
        """Record that a cursor is opened at the beginning of the split."""
        self._ends, self._count, self._next_end, self._requested = list[int](), 0, 0, 0
        self._singles, self._single_bytes = self._refused, _FULL
        self._size = 1 if self._refused else self._most

    def next(self) -> int:
        """Return the largest number of events for the next reply."""
        while (
            self._next_end < len(self._known_ends)
            and self._known_ends[self._next_end] <= self._count
        ):
            self._next_end += 1
        is_known = self._next_end < len(self._known_ends)
        self._requested = self._known_ends[self._next_end] - self._count if is_known else self._size
        return self._requested

    def record_reply(self, events: int, size: int) -> None:
        """Record a reply of `events` events and `size` bytes."""
        if not events or self._most == 1:  # a request for fewer is not possible
            return
        self._count += events
        self._ends.append(self._count)
        if not self._refused or self._next_end < len(self._known_ends):
            return
        self._singles, self._single_bytes = self._singles - events, self._single_bytes - size
        if self._singles <= 0 or self._single_bytes <= 0:
            self._size = max(1, min(self._most, 2 * events, self._aim * events // size))

    def shrink(self) -> bool:
        """Record that a reply was refused as too large.

        Returns whether a new cursor will request less at this place. False means that a single
        event was requested, so that event is too large itself.
        """
        if self._requested <= 1:
            return False
        self._known_ends, self._refused = self._ends, self._requested
        self._aim = max(1, self._aim // 2)
        return True
