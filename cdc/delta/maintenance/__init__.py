"""Compaction, retention, repair of mirrors, redelivery of dead letters."""

from cdc.delta.maintenance.forecast import forecast
from cdc.delta.maintenance.mirror_repair import (
    extend_changelog,
    extend_once,
    lacking,
    repair_mirror,
    settle,
)
from cdc.delta.maintenance.redelivery import Delivery, deliver
from cdc.delta.maintenance.table_maintenance import LEAST_RETENTION_HOURS, Maintained, maintain

__all__ = [
    "LEAST_RETENTION_HOURS",
    "Delivery",
    "Maintained",
    "deliver",
    "extend_changelog",
    "extend_once",
    "forecast",
    "lacking",
    "maintain",
    "repair_mirror",
    "settle",
]
