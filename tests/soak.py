"""How long a random run of `make soak` goes on, and by which seed."""

from __future__ import annotations

import os
import time
from typing import NamedTuple


class Soak(NamedTuple):
    seed: int
    seconds: float


def soak() -> Soak:
    """As SOAK_SEED and SOAK_SECONDS say; printed, so that a run can be repeated."""
    chosen = Soak(choose_seed(), float(os.environ.get("SOAK_SECONDS", "900")))
    print(f"SOAK_SECONDS={chosen.seconds:.0f}")
    return chosen


def choose_seed() -> int:
    """SOAK_SEED, or another one in each run; printed. Also for a short form in the slow tests."""
    chosen = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    print(f"SOAK_SEED={chosen}")
    return chosen
