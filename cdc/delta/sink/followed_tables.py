"""Which mirrors and histories follow changelogs, and what the changelogs report of a batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdc.delta.followers import FollowerKind, feeds, kinds_of
from cdc.delta.landing import CHANGELOG, BatchSummary, effects
from cdc.delta.log import Commit, Target
from cdc.delta.tables import Kind, Layout, Table, Tables

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowedTables:
    """Divides the tables of a batch into those that follow changelogs and those that do not.

    Args:
        layout: which tables there are.
        tables: the tables of each kind.
    """

    layout: Layout
    tables: Mapping[Kind, Tables]

    @property
    def is_everywhere(self) -> bool:
        """Whether each collection with a mirror or a history has a changelog."""
        return all(
            CHANGELOG.name in options.routes or not kinds_of(options)
            for options in self.layout.all()
        )

    def select(self, work: Mapping[Kind, Sequence[Table]]) -> dict[Kind, list[Table]]:
        """Return the mirrors and histories among these tables that follow changelogs."""
        return {kind: [each for each in work[kind] if self.contains(each)] for kind in self._kinds}

    @property
    def _kinds(self) -> list[FollowerKind]:
        return [kind for kind in self.tables if isinstance(kind, FollowerKind)]

    def contains(self, table: Table) -> bool:
        """Whether a mirror or a history follows changelogs."""
        if table.namespace is None:
            return self.is_everywhere
        return CHANGELOG.name in self.layout.of(table.namespace).routes

    def is_written_directly(self, table: Table) -> bool:
        """Whether the last batch of a mirror or a history came from no changelog.

        Then no changelog has anything for it, as long as it follows none.
        """
        if table.namespace is None:
            return False
        applied = (self.tables[kind].applied(table) for kind in self._kinds)
        layouts = self.tables[CHANGELOG].layouts
        return any(
            layouts.has_lacked(CHANGELOG.name, table.namespace, batch - 1, batch + 1)
            for batch in applied
            if batch is not None
        )

    def warn_of_absence(self, number: int) -> None:
        """Warn of mirrors and histories that the configuration lacked for some batches.

        They get these from their changelogs, unless it lacked the changelogs too. `number` is that
        of the first batch to be written.
        """
        for kind in self._kinds:
            tables = self.tables[kind]
            for table in tables.known():
                applied = tables.applied(table)
                if table.namespace is None or applied is None:
                    continue
                span = table.namespace, applied, number
                log = self.tables[CHANGELOG].of(table.namespace)
                is_away = tables.layouts.was_away(kind.name, table, *span)
                if is_away and (log is None or tables.layouts.was_away(CHANGELOG.name, log, *span)):
                    _log.warning(
                        "%s lacks batches between %d and %d, in which the configuration lacked it:"
                        " repair it by mongodb-cdc backfill --into mirror --repair",
                        *(table.target, applied, number),
                    )

    def commits(self, batch: int) -> list[tuple[Target, Commit, int | None]]:
        """Return the commits of a batch in changelogs, with their versions.

        A batch that is repeated may have no row for some of these changelogs any more.
        """
        changelogs = self.tables[CHANGELOG]
        return [
            (table.target, commit, changelogs.version(table))
            for table in changelogs.known()
            if (commit := changelogs.last(table)) and commit.batch == batch
        ]

    def report_all(
        self,
        following: Mapping[Kind, Sequence[Table]],
        commits: Sequence[tuple[Target, Commit, int | None]],
        summary: BatchSummary,
    ) -> bool:
        """Whether these commits report everything of a batch to the followers.

        They do not if a table was written without a changelog until now, and an event that concerns
        all collections empties it before the first row of its own. Nor do those of an earlier
        release, which stated no rows in its commits: it was killed between the changelog and what
        follows it.
        """
        if not all(commit.groups for _, commit, _ in commits):
            return False
        reporting, changelogs = {target for target, _, _ in commits}, self.tables[CHANGELOG]
        return not any(
            effects.emptied(table, summary, self.tables[kind])
            and reporting.isdisjoint(feeds(table, self.tables[kind], changelogs))
            for kind, tables in following.items()
            for table in tables
        )
