"""What the tables of a pipeline record: their owner and their batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cdc.checkpoint import REPAIR, TableBatches
from cdc.delta.followers import ALL_KINDS
from cdc.delta.log import TableReader, Target
from cdc.delta.tables import (
    PIPELINE,
    Table,
    existing,
    identity,
    present,
    require_ours,
    require_unoccupied,
)
from cdc.errors import CheckpointDamaged
from cdc.model import Namespace
from cdc.pipeline.config import Config

_KINDS = tuple(kind.name for kind in ALL_KINDS)


def read_table_batches(tables: TableReader, config: Config, pipeline: str | None) -> TableBatches:
    """Read which batches the tables of a pipeline contain.

    Without `pipeline`, it is the only pipeline that owns tables of the captured collections, or
    tables of several collections if there are no others. Raises CheckpointDamaged if several
    pipelines own some.
    """
    found = list(_existing_tables(tables, config))
    if pipeline is None:
        owners = {owner for table, owner in found if _is_captured(table, config)}
        owners = owners or {owner for table, owner in found if table.is_shared}
        pipeline = _only_owner(owners, config)
    own = [tables.newest_commit(table.target) for table, owner in found if owner == pipeline]
    commits = [newest.commit for newest in own if newest]
    ends = {commit.batch: commit.offset for commit in commits if commit.offset is not None}
    return TableBatches(pipeline, max((commit.batch for commit in commits), default=None), ends)


def require_new(
    reader: TableReader, config: Config, captured: Iterable[Namespace], pipeline: str | None
) -> None:
    """Check that a run without a checkpoint finds no tables of another run.

    Raises TableOwnedElsewhere if a table, or the files in the local folder of a new one, belong to
    somebody else or to a lost checkpoint. Raises CheckpointDamaged if a table of `pipeline` already
    contains a batch.
    """
    names = list(captured)
    for kind in _KINDS:
        tables = [table for name in names if (table := config.table(kind, name))]
        there = set[Target]()
        for table, properties in present(reader, config.layout, kind, tables):
            there.add(table.target)
            require_ours(table, identity(pipeline or "a new one", kind, table), properties)
            if reader.newest_commit(table.target) is not None:
                raise CheckpointDamaged(
                    f"{config.checkpoint} contains no batch, but the table at '{table.target}'"
                    " contains one.",
                    REPAIR,
                )
        for table in dict.fromkeys(tables):
            settled = replace(table, target=table.target.settle(reader.exists))
            if settled.target not in there and not settled.target.is_name:
                ours = identity(pipeline or "a new one", kind, settled)
                require_unoccupied(reader, settled, ours)


def _existing_tables(tables: TableReader, config: Config) -> Iterator[tuple[Table, str]]:
    for kind in _KINDS:
        for table, properties in existing(tables, config.layout, kind):
            yield table, properties[PIPELINE]


def _is_captured(table: Table, config: Config) -> bool:
    selection = config.options.selection
    return table.namespace is not None and selection.matches(table.namespace)


def _only_owner(owners: set[str], config: Config) -> str | None:
    if len(owners) > 1:
        raise CheckpointDamaged(
            f"{config.checkpoint} does not name its pipeline, and several pipelines own the"
            f" tables: {', '.join(sorted(owners))}.",
            'Write the right id into its file metadata, as {"id": "…"}, and remove the old checksum'
            " .metadata.crc beside it.",
        )
    return owners.pop() if owners else None
