"""How long a random run of `make soak` goes on, and by which chance."""

from __future__ import annotations

import os
import time
from typing import NamedTuple


class Soak(NamedTuple):
    seed: int
    seconds: float


def soak() -> Soak:
    """As SOAK_SEED and SOAK_SECONDS say; said, so that a run can be repeated."""
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    seconds = float(os.environ.get("SOAK_SECONDS", "900"))
    print(f"SOAK_SEED={seed} SOAK_SECONDS={seconds:.0f}")
    return Soak(seed, seconds)
