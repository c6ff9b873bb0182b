"""A batch on its way into tables: data files, its summary, changelogs, dead letters."""

from cdc.delta.landing import changelog, dead_letters, effects
from cdc.delta.landing.batch_summary import (
    NO_EVENTS,
    REPLACED,
    ROW_OPS,
    Bounds,
    Emptied,
    Facts,
    Happened,
)
from cdc.delta.landing.dead_letters import IMAGES
from cdc.delta.landing.destinations import Destinations, obstacles
from cdc.delta.landing.effects import require_allowed
from cdc.delta.landing.landed_batch import LandedBatch, is_manifest, read_files
from cdc.delta.landing.landing_source import LANDING, LandingSource, landing_options
from cdc.delta.landing.placeholder import is_stand_in
from cdc.delta.landing.summarize import emptied, read_facts

__all__ = [
    "IMAGES",
    "LANDING",
    "NO_EVENTS",
    "REPLACED",
    "ROW_OPS",
    "Bounds",
    "Destinations",
    "Emptied",
    "Facts",
    "Happened",
    "LandedBatch",
    "LandingSource",
    "changelog",
    "dead_letters",
    "effects",
    "emptied",
    "is_manifest",
    "is_stand_in",
    "landing_options",
    "obstacles",
    "read_facts",
    "read_files",
    "require_allowed",
]
