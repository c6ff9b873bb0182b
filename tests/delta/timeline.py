"""What may happen to the documents of a namespace, and which versions that makes: by going through
it from its beginning to its end, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from cdc.model import DROPPED, RENAMED, REPLACED
from tests.delta.batches import position

OPS = ("read", "read", "insert", "update", "update", "replace", "delete", "delete")
ENDS = (DROPPED, RENAMED, REPLACED, REPLACED)


@dataclass(frozen=True, order=True)
class Event:
    """Of a document, (n, m) or none, or without a key of the whole namespace: why it was empty."""

    time: int
    place: int  # within the time
    key: str
    op: str
    document: tuple[int, int] | None = None

    @property
    def position(self) -> str:
        return position(self.time, self.place)


@dataclass
class Version:
    start: str
    end: str | None
    document: tuple[int, int]


def timeline(random: Random, events: int) -> list[Event]:
    """Of two keys. Documents of few values, so that one is often what it was before."""
    reported = {}
    for time in range(1, events + 1):
        op = random.choice(OPS + ENDS)
        key = "" if op in ENDS else random.choice("ab")
        document = (random.randrange(2), random.randrange(2))
        # Documents are read as of the time at which they began to be copied again, or later.
        at = (time - random.randrange(2), 0) if op == "read" else (time, int(op != REPLACED))
        event = Event(*at, key, op, None if op in ("delete", *ENDS) else document)
        reported[event.position, key] = event
    return sorted(reported.values())


def versions(events: Iterable[Event], key: str, *, tracked: bool = False) -> list[Version]:
    """Those of one key, oldest first. `tracked`: only another n begins one."""
    found: list[Version] = []
    is_open = is_copied_again = False
    for event in sorted(each for each in events if each.key in ("", key)):
        last = found[-1] if found else None
        if event.document is None:
            if last and is_open:
                last.end = event.position
            is_copied_again = event.op == REPLACED and (is_open or is_copied_again)
            is_open = False
            continue
        compared = slice(1 if tracked else 2)
        is_same = last is not None and last.document[compared] == event.document[compared]
        may_go_on = (
            event.op == "read" if is_copied_again else is_open and (tracked or event.op == "read")
        )
        if last and is_same and may_go_on:
            last.end, last.document = None, event.document
        else:
            if last and is_open:
                last.end = event.position
            found.append(Version(event.position, None, event.document))
        is_open, is_copied_again = True, False
    return found
