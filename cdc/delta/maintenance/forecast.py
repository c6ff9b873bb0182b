"""What maintenance would do to a local table, found out without Spark."""

from __future__ import annotations

import time

from deltalake import QueryBuilder

from cdc.delta.log import Target, list_unneeded, open_table
from cdc.delta.maintenance.table_maintenance import Maintained
from cdc.delta.tables import Kind, Table

_DAY, _HOUR = 86_400, 3_600


def forecast(kind: Kind, table: Table, hours: float, days: float) -> Maintained:
    """Return what `maintain` would report of a dry run.

    The arguments are those of `maintain`. Raises NeedsSpark if only Delta can read the table.
    """
    now, purged = time.time(), 0
    if kind.has_tombstones(table.options):
        purged = _count_tombstones(table.target, now - days * _DAY)
    deleted = list_unneeded(table.target, now - hours * _HOUR)
    return Maintained(str(table.target), purged, None, None, len(deleted), uploads=())


def _count_tombstones(target: Target, before: float) -> int:
    query = QueryBuilder().register("mirror", open_table(target))
    rows = query.execute(
        "SELECT count(*) AS n FROM mirror WHERE _deleted"
        f" AND _cluster_time < to_timestamp_micros({int(before * 1e6)})"
    ).read_all()
    return int(rows["n"][0].as_py())
