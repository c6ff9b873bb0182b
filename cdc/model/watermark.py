"""What a sink is told of a batch as a whole: the description of its `watermark` row.

It follows from the two offsets of the batch alone, so a replay says the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdc.model import timestamp
from cdc.model.offset import Offset, encode_key
from cdc.model.selection import Namespace, Selection
from cdc.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class Watermark:
    """After the batch all that is told is complete up to `time`.

    `copying` are the unfinished copies, by the frontier below which they are told (opaque; `below`
    is None where the copy has not begun). Only the one begun and those to be begun *again* are in
    it, not what the sweep has not come to.
    `copied` are the collections of which all is told since this batch and was not before it: their
    copy is complete, or they were found to be gone. What a sink got of them is the collection as of
    `time`, if no range was void and nothing was lost; also where it got nothing.
    `selection`, `swept` and `apart` say of what the batch told all changes, `following` is the
    selection behind it: see `tells` and `leaves`.
    `offset` is the batch's end as the checkpoint has it (opaque, JSON): who keeps it with the rows
    can tell what the batch was where the checkpoint is damaged.
    """

    time: Timestamp
    copying: Mapping[Namespace, Any]
    copied: frozenset[Namespace]
    selection: Selection
    following: Selection
    swept: str | None
    apart: frozenset[Namespace]
    offset: Any

    @classmethod
    def of(cls, start: Offset, end: Offset) -> Watermark:
        """Of the batch between two offsets."""
        copying: dict[Namespace, Any] = {each.namespace: {"below": None} for each in end.again}
        if end.copying is not None:
            copying[end.copying.namespace] = {"below": encode_key(end.copying.below)}
        scanned = {scan.copying.namespace for scan in end.scans}
        selection, following = Selection.parse(start.selection), Selection.parse(end.selection)
        unfinished = end.apart
        copied = {
            name
            for name in (start.apart | scanned) - unfinished
            if end.has_reached(name) and following.matches(name)
        }
        return cls(
            time=end.time,
            copying=copying,
            copied=frozenset(copied),
            selection=selection,
            following=following,
            swept=start.swept,
            apart=start.apart,
            offset=end.to_json(),
        )

    def tells(self, namespace: Namespace) -> bool:
        """Whether the batch held every change of the namespace in its time. Those of the others are
        told from their copy on, or not at all."""
        is_reached = self.swept is None or str(namespace) <= self.swept
        return is_reached and namespace not in self.apart and self.selection.matches(namespace)

    def leaves(self, namespace: Namespace) -> bool:
        """Whether the namespace is told up to this batch, and not behind it."""
        is_same = self.selection == self.following
        return not is_same and self.tells(namespace) and not self.following.matches(namespace)

    def text(self) -> str:
        """JSON for the row."""
        told = {
            "collections": self.selection.text,
            "swept": self.swept,
            "but": sorted(map(str, self.apart)),
        }
        said = {
            "time": timestamp.text(self.time),
            "copying": {str(name): at for name, at in self.copying.items()},
            "copied": sorted(map(str, self.copied)),
            "told": told,
            "collections": self.following.text,
            "offset": self.offset,
        }
        return json.dumps(said, ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Watermark:
        """The inverse of `text`."""
        said = json.loads(text)
        told = said["told"]
        return cls(
            time=timestamp.parse(said["time"]),
            copying={Namespace.parse(name): at for name, at in said["copying"].items()},
            copied=frozenset(map(Namespace.parse, said["copied"])),
            selection=Selection.parse(told["collections"]),
            following=Selection.parse(said["collections"]),
            swept=told["swept"],
            apart=frozenset(map(Namespace.parse, told["but"])),
            offset=said["offset"],
        )
