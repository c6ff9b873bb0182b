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

from cdc.delta.log import Target
from cdc.delta.tables.layout import Layout, Table
from cdc.model import Namespace

_MOST = 100


@dataclass(frozen=True)
class LayoutHistory:
    """The layouts of a pipeline, each as text with the first batch that was written by it.

    Args:
        base: where the tables are now. A layout without a base of its own has this one.
        entries: the layouts.
    """

    base: str = ""
    entries: tuple[tuple[int, str], ...] = ()

    @classmethod
    def parse(cls, text: str, base: str) -> LayoutHistory:
        """The inverse of `text`. An empty or damaged text gives a history without layouts."""
        try:
            entries = tuple((int(batch), str(layout)) for batch, layout in json.loads(text))
        except (TypeError, ValueError):
            entries = ()
        return cls(base, entries)

    def text(self) -> str:
        return json.dumps(self.entries)

    def extended(self, batch: int, layout: Layout, moves: bool = False) -> LayoutHistory:
        """Return the history for a run that begins with that batch and has that layout.

        It replaces layouts by which no batch was written. `moves` says that the checkpoint lies
        among the tables, so that both are moved together.
        """
        base, *tables, _storage = json.loads(layout.text())
        text = json.dumps(["" if moves else base, *tables])
        before = [each for each in self.entries if each[0] < batch]
        if not before or before[-1][1] != text:
            before = [*before[1 - _MOST :], (batch, text)]
        return replace(self, entries=tuple(before))

    def was_away(
        self, kind: str, table: Table, namespace: Namespace, after: int, before: int
    ) -> bool:
        """Whether a collection had another table, or none, between two batches."""
        return any(
            max(begin, after + 1) < min(end, before)
            and not _leads_to(layout, kind, namespace, table)
            for layout, (begin, end) in self._spans(before)
        )

    def has_lacked(self, kind: str, namespace: Namespace, before: int) -> bool:
        """Whether a collection had no table of that kind for a batch before that one."""
        return any(
            begin < min(end, before) and layout.table(kind, namespace) is None
            for layout, (begin, end) in self._spans(before)
        )

    def _spans(self, before: int) -> Iterator[tuple[Layout, tuple[int, int]]]:
        """Yield each layout with its first batch, and that of the next one, or `before`."""
        begins = [*(batch for batch, _ in self.entries), before]
        return zip(self._layouts, pairwise(begins), strict=True)

    @cached_property
    def _layouts(self) -> list[Layout]:
        given = [json.loads(text) for _, text in self.entries]
        return [Layout.parse(base or self.base, *tables) for base, *tables in given]


def _leads_to(layout: Layout, kind: str, namespace: Namespace, table: Table) -> bool:
    found = layout.table(kind, namespace)
    return found is not None and not _places(found.target).isdisjoint(_places(table.target))


def _places(target: Target) -> set[str]:
    return {place for place in (target.address, target.former) if place}
