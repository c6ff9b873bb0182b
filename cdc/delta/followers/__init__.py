"""Mirror and history."""

from cdc.delta.followers import history, mirror
from cdc.delta.followers.copied_mirror import CopiedMirror
from cdc.delta.followers.mirror import MirrorState

__all__ = ["CopiedMirror", "MirrorState", "history", "mirror"]
