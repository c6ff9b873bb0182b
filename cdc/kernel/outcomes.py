"""What became of a value that a typed column might take."""

from __future__ import annotations

from typing import Final

MISSING: Final = 0  # there was none, or null
TAKEN: Final = 1
MISFIT: Final = 2
