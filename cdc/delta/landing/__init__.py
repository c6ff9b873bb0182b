"""A batch on its way into tables: data files, its summary, changelogs, dead letters."""

from cdc.delta.landing import effects
from cdc.delta.landing.batch_summary import (
    NO_EVENTS,
    ROW_OPS,
    Batch,
    BatchFiles,
    BatchSummary,
    Bounds,
    Happened,
)
from cdc.delta.landing.changelog import CHANGELOG, Changelog, LandedChangelog
from cdc.delta.landing.dead_letters import DEAD_LETTERS, IMAGES, DeadLetters
from cdc.delta.landing.destinations import Destinations, mirror_rows, obstacles, takes_copies
from cdc.delta.landing.effects import require_allowed
from cdc.delta.landing.landed_batch import LandedBatch, is_manifest
from cdc.delta.landing.landing_reader import LandingReader
from cdc.delta.landing.placeholder import is_placeholder
from cdc.delta.landing.summarize import (
    join_summaries,
    read_groups,
    read_summary,
    summary_of,
    voiding_events,
)

__all__ = [
    "CHANGELOG",
    "DEAD_LETTERS",
    "IMAGES",
    "NO_EVENTS",
    "ROW_OPS",
    "Batch",
    "BatchFiles",
    "BatchSummary",
    "Bounds",
    "Changelog",
    "DeadLetters",
    "Destinations",
    "Happened",
    "LandedBatch",
    "LandedChangelog",
    "LandingReader",
    "effects",
    "is_manifest",
    "is_placeholder",
    "join_summaries",
    "mirror_rows",
    "obstacles",
    "read_groups",
    "read_summary",
    "require_allowed",
    "summary_of",
    "takes_copies",
    "voiding_events",
]
