"""Reading tables: a live view, a point in time, and documents as BSON."""

from cdc.delta.reading.documents import LOSSES, restored
from cdc.delta.reading.live_view import LiveView, live
from cdc.delta.reading.point_in_time import as_of

__all__ = ["LOSSES", "LiveView", "as_of", "live", "restored"]
