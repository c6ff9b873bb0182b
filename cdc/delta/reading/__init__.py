"""Reading tables: a point in time, and documents as BSON."""

from cdc.delta.reading.documents import LOSSES, restored
from cdc.delta.reading.point_in_time import as_of

__all__ = ["LOSSES", "as_of", "restored"]
