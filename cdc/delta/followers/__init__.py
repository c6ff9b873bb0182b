"""Mirror and history."""

from cdc.delta.followers import history, mirror
from cdc.delta.followers.mirror import MirrorState

__all__ = ["MirrorState", "history", "mirror"]
