"""What the tables of a pipeline say of its checkpoint: whose they are, and what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from cdc import options as declared
from cdc.delta.commit import newest_commit
from cdc.delta.identity import PIPELINE, existing, identity, present, require_ours
from cdc.delta.layout import KINDS, Table
from cdc.errors import CheckpointDamaged
from cdc.model.selection import Namespace
from jobs.checkpoint import REPAIR
from jobs.config import Config


@dataclass(frozen=True, slots=True)
class Held:
    """Of one pipeline: its id (None: there is no table of it), the newest batch in any of its
    tables (None: there is none), and where those batches end of which one tells."""

    pipeline: str | None
    newest: int | None
    ends: Mapping[int, Any]


def held(spark: SparkSession, config: Config, pipeline: str | None) -> Held:
    """What the tables hold of a pipeline; if it is not known which, of the one that alone has
    tables of what is captured. Raises CheckpointDamaged if there are several."""
    found = list(_tables(spark, config))
    if pipeline is None:
        pipeline = _only({owner for table, owner in found if _is_captured(table, config)}, config)
    own = [newest_commit(spark, table.target) for table, owner in found if owner == pipeline]
    commits = [newest[1] for newest in own if newest]
    ends = {commit.batch: commit.offset for commit in commits if commit.offset is not None}
    return Held(pipeline, max((commit.batch for commit in commits), default=None), ends)


def require_new(
    spark: SparkSession, config: Config, captured: Iterable[Namespace], pipeline: str | None
) -> None:
    """Makes sure that a run without a checkpoint finds no tables that another one, a lost one or
    somebody else has made. Raises TableOwnedElsewhere; CheckpointDamaged if they are those of
    `pipeline`."""
    names = list(captured)
    for kind in KINDS:
        tables = [table for name in names if (table := config.table(kind, name))]
        for table, properties in present(spark, config.layout, kind, tables):
            require_ours(table, identity(pipeline or "a new one", kind, table), properties)
            if newest_commit(spark, table.target) is not None:
                raise CheckpointDamaged(
                    f"{config.checkpoint} holds no batch, and the table at '{table.target}' does.",
                    REPAIR,
                )


def _tables(spark: SparkSession, config: Config) -> Iterator[tuple[Table, str]]:
    for kind in KINDS:
        for table, properties in existing(spark, config.layout, kind):
            yield table, properties[PIPELINE]


def _is_captured(table: Table, config: Config) -> bool:
    selection = declared.parse(config.source).selection
    return table.namespace is not None and selection.matches(table.namespace)


def _only(owners: set[str], config: Config) -> str | None:
    if len(owners) > 1:
        raise CheckpointDamaged(
            f"{config.checkpoint} does not say which pipeline it is of, and there are tables of"
            f" {', '.join(sorted(owners))}.",
            'Write the right one into its file metadata, as {"id": "…"}, and remove the checksum of'
            " the old one beside it, .metadata.crc.",
        )
    return owners.pop() if owners else None
