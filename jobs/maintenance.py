"""Look after the tables of a pipeline: compact them, and deliver their dead letters again."""

from __future__ import annotations

from pyspark.sql import SparkSession

from cdc import options as declared
from cdc.delta.identity import existing
from cdc.delta.layout import KINDS
from cdc.delta.maintenance import LEAST_RETENTION_HOURS, Maintained
from cdc.delta.maintenance import maintain as maintain_table
from cdc.delta.redelivery import Delivery, deliver
from cdc.errors import BadOption
from jobs.config import Config


def maintain(
    spark: SparkSession,
    config: Config,
    hours: float = LEAST_RETENTION_HOURS,
    days: float = 30,
    dry_run: bool = False,
) -> list[Maintained]:
    """All tables that lie where the configuration puts them, one after the other. Raises BadOption
    if `hours` is less than is safe while jobs write."""
    require_safe(hours)
    return [
        maintain_table(spark, kind, table, hours, days, dry_run)
        for kind in KINDS
        for table, _ in existing(spark, config.layout, kind)
    ]


def require_safe(hours: float) -> None:
    """Raises BadOption if a retention is less than is safe while jobs write and read."""
    if hours < LEAST_RETENTION_HOURS:
        raise BadOption(
            f"A retention of {hours:g} hours may delete files that a reader or a writer needs.",
            f"Keep at least {LEAST_RETENTION_HOURS} hours.",
        )


def replay(spark: SparkSession, config: Config) -> Delivery:
    """Deliver what can be delivered of a pipeline's dead letters. Raises BadOption if it keeps
    none."""
    targets = config.layout.letters()
    if not targets:
        raise BadOption("There are no dead_letters in [table].", "Set their template.")
    options = declared.parse(config.source)
    found = [
        deliver(spark, target, config.layout, options.document_format, options.document_json)
        for target in targets
        if target.exists(spark)
    ]
    return Delivery(sum(each.delivered for each in found), sum(each.left for each in found))
