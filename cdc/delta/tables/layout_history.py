"""Which layouts a pipeline has had, and which tables they lacked for some batches.

A table that a batch has no row for gets no commit. So a table cannot show whether it was quiet or
whether the configuration lacked it for a while. The history shows it. It is stored in the
checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from cdc.delta.log import Target
from cdc.delta.tables.layout import Layout, Table
from cdc.errors import BadOption
from cdc.model import Namespace


@dataclass(frozen=True)
class LayoutHistory:
    """The layouts of a pipeline, each as text with the first batch that was written by it.

    Args:
        base: where the tables are now. A layout without a base of its own has this one.
        entries: the layouts. A text that cannot be read counts as a layout without any table.
    """

    base: str = ""
    entries: tuple[tuple[int, str], ...] = ()

    def extended(self, batch: int, layout: Layout, moves: bool = False) -> LayoutHistory:
        """Return the history for a run that begins with that batch and has that layout.

        It replaces layouts by which no batch was written. `moves` says that the checkpoint lies
        among the tables, so that both are moved together.
        """
        base, *tables, _storage = json.loads(layout.text())
        text = json.dumps(["" if moves else base, *tables])
        before = [each for each in self.entries if each[0] < batch]
        if not before or before[-1][1] != text:
            before.append((batch, text))
        return replace(self, entries=tuple(before))

    def was_away(
        self, kind: str, table: Table, namespace: Namespace, after: int, before: int
    ) -> bool:
        """Whether a collection had another table, or none, between two batches.

        `after` is the last batch that the table contains. If the layout of that batch has it
        elsewhere, the table was moved since, and the others are taken to be where it is now.
        """
        between = [
            layout
            for layout, (begin, end) in self._spans(before)
            if max(begin, after + 1) < min(end, before)
        ]
        if not between:
            return False
        own = next((layout for layout, (b, e) in self._spans(before) if b <= after < e), None)
        was_moved = own is not None and not _leads_to(own.layout, kind, namespace, table)
        return any(
            not _leads_to(each.moved if was_moved else each.layout, kind, namespace, table)
            for each in between
        )

    def has_lacked(self, kind: str, namespace: Namespace, after: int, before: int) -> bool:
        """Whether a collection had no table of that kind for a batch between these two."""
        return any(
            max(begin, after + 1) < min(end, before)
            and (each.layout is None or each.layout.table(kind, namespace) is None)
            for each, (begin, end) in self._spans(before)
        )

    def _spans(self, before: int) -> Iterator[tuple[_Recorded, tuple[int, int]]]:
        """Yield each layout with its first batch, and that of the next one, or `before`."""
        begins = [*(batch for batch, _ in self.entries), before]
        return zip(self._layouts, pairwise(begins), strict=True)

    @cached_property
    def _layouts(self) -> list[_Recorded]:
        return [_Recorded.parse(text, self.base) for _, text in self.entries]


class _Recorded(NamedTuple):
    """A layout where its tables were, and the same one where the tables are now; None: unknown."""

    layout: Layout | None
    moved: Layout | None

    @classmethod
    def parse(cls, text: str, now: str) -> _Recorded:
        try:
            base, *tables = json.loads(text)
            return cls(Layout.parse(base or now, *tables), Layout.parse(now, *tables))
        except (TypeError, ValueError, BadOption):
            return cls(None, None)


def _leads_to(layout: Layout | None, kind: str, namespace: Namespace, table: Table) -> bool:
    found = layout.table(kind, namespace) if layout else None
    return found is not None and not _places(found.target).isdisjoint(_places(table.target))


def _places(target: Target) -> set[str]:
    return {place for place in (target.address, target.former) if place}
