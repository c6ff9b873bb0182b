"""Watermark: the summary of a batch, in the description of its `watermark` row.

It depends only on the two offsets of the batch, so a replay produces the same.
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
    """Summary of a batch: after it, all that has been emitted is complete up to `time`.

    Attributes:
        time: the cluster time at the end of the batch.
        copying: the unfinished copies, each with the frontier below which it is emitted. The
            frontier is opaque; `below` is None if the copy has not begun. Only the copy that has
            begun and those that are to begin *again* are listed, not what the sweep has not
            reached.
        copied: the collections that are complete since this batch. Their copy ended in it, or they
            no longer exist. If no range was void and nothing was lost, the rows that a sink got of
            a collection are the collection as of `time`, even if there were none.
        selection: the selection of the batch. With `swept` and `apart` it determines of which
            collections the batch contains all changes: see `contains_changes`.
        following: the selection after the batch: see `is_deselected`.
        swept: see the offset; as it was before the batch.
        apart: see the offset; as it was before the batch.
        offset: the end of the batch as in the checkpoint (opaque, JSON). A sink that stores it with
            the rows can identify the batch if the checkpoint is damaged.
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
        """Return the watermark of the batch between two offsets."""
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

    def contains_changes(self, namespace: Namespace) -> bool:
        """Whether the batch contains every change of the namespace in its time.

        The changes of other namespaces are emitted only after their copy, or never.
        """
        is_reached = self.swept is None or str(namespace) <= self.swept
        return is_reached and namespace not in self.apart and self.selection.matches(namespace)

    def is_deselected(self, namespace: Namespace) -> bool:
        """Whether the namespace is captured up to the end of this batch, and not after it."""
        is_same = self.selection == self.following
        return (
            not is_same
            and self.contains_changes(namespace)
            and not self.following.matches(namespace)
        )

    def text(self) -> str:
        """JSON for the row."""
        scope = {
            "collections": self.selection.text,
            "swept": self.swept,
            "but": sorted(map(str, self.apart)),
        }
        data = {
            "time": timestamp.text(self.time),
            "copying": {str(name): at for name, at in self.copying.items()},
            "copied": sorted(map(str, self.copied)),
            "reported": scope,
            "collections": self.following.text,
            "offset": self.offset,
        }
        return json.dumps(data, ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Watermark:
        """The inverse of `text`, also of the previous release, which named a field otherwise."""
        data = json.loads(text)
        scope = data["reported"] if "reported" in data else data["told"]
        return cls(
            time=timestamp.parse(data["time"]),
            copying={Namespace.parse(name): at for name, at in data["copying"].items()},
            copied=frozenset(map(Namespace.parse, data["copied"])),
            selection=Selection.parse(scope["collections"]),
            following=Selection.parse(data["collections"]),
            swept=scope["swept"],
            apart=frozenset(map(Namespace.parse, scope["but"])),
            offset=data["offset"],
        )
