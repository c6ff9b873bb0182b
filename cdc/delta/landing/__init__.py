"""A batch on its way into tables: its summary, the changelog, the dead letters."""

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
from cdc.delta.landing.effects import require_allowed
from cdc.delta.landing.placeholder import is_stand_in
from cdc.delta.landing.summarize import emptied, read_facts

__all__ = [
    "IMAGES",
    "NO_EVENTS",
    "REPLACED",
    "ROW_OPS",
    "Bounds",
    "Emptied",
    "Facts",
    "Happened",
    "changelog",
    "dead_letters",
    "effects",
    "emptied",
    "is_stand_in",
    "read_facts",
    "require_allowed",
]
