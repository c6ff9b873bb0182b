"""Deliver the dead letters of a pipeline again."""

from __future__ import annotations

from pyspark.sql import SparkSession

from cdc import options as declared
from cdc.delta.redelivery import Delivery, deliver
from cdc.errors import BadOption
from jobs.config import Config


def replay(spark: SparkSession, config: Config) -> Delivery:
    """Deliver what can be delivered of a pipeline's dead letters. Raises BadOption if it keeps
    none."""
    targets = config.layout.letters()
    if not targets:
        raise BadOption("There are no dead_letters in [table].", "Set their template.")
    options = declared.parse(config.source)
    found = [
        deliver(spark, target, config.layout, options["document.format"], options["document.json"])
        for target in targets
        if target.exists(spark)
    ]
    return Delivery(sum(each.delivered for each in found), sum(each.left for each in found))
