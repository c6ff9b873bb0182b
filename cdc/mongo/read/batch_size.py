"""How many events of a change stream are asked for at once.

A server fills a reply with up to 16 MiB of events and then adds a token, which holds the `_id` of
the last event in twice its bytes. Of `_id`s of more than some 8 KB the two may exceed what a reply
can hold, however small each event is: the getMore fails with 10334, and its cursor is gone. An
event that fits beside its own token comes when it is asked for alone.
"""

from __future__ import annotations

from typing import Final

# What a server puts into one reply at most, and what is aimed at once a reply has been too large.
_FULL: Final = 16 * 2**20
_AIM: Final = 4 * 2**20


class BatchSize:
    """For the cursors that are opened on one slice, one after the other: `most` events in each
    reply, until one is refused as too large.

    The cursors have to deliver the same events in the same order. The next one gets the replies
    that came before the refusal again, then one event at a time until the refused reply is passed,
    and then replies of a quarter of what the server would put into them.
    """

    def __init__(self, most: int) -> None:
        self._most, self._aim = most, 2 * _AIM
        # Events after which a reply ended: of an earlier cursor up to where it failed, and of this.
        self._known, self._ends = list[int](), list[int]()
        # From there on, how many events are asked for alone, and up to how many bytes of them.
        self._alone, self._alone_bytes = 0, 0
        self._refused = 0
        self.begin()

    def begin(self) -> None:
        """A cursor is opened at the beginning of the slice."""
        self._ends, self._count, self._at, self._asked = list[int](), 0, 0, 0
        self._alone, self._alone_bytes = self._refused, _FULL
        self._size = 1 if self._refused else self._most

    def next(self) -> int:
        """How many events the next reply may hold."""
        while self._at < len(self._known) and self._known[self._at] <= self._count:
            self._at += 1
        is_known = self._at < len(self._known)
        self._asked = self._known[self._at] - self._count if is_known else self._size
        return self._asked

    def came(self, events: int, size: int) -> None:
        """A reply of so many events and bytes has come."""
        if not events or self._most == 1:  # less cannot be asked for
            return
        self._count += events
        self._ends.append(self._count)
        if not self._refused or self._at < len(self._known):
            return
        self._alone, self._alone_bytes = self._alone - events, self._alone_bytes - size
        if self._alone <= 0 or self._alone_bytes <= 0:
            self._size = max(1, min(self._most, 2 * events, self._aim * events // size))

    def shrink(self) -> bool:
        """A reply was refused as too large. False if a single event had been asked for: then that
        is too large itself. Else a cursor that begins anew asks for less at this place."""
        if self._asked <= 1:
            return False
        self._known, self._refused = self._ends, self._asked
        self._aim = max(1, self._aim // 2)
        return True
