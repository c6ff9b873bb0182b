"""What a process of Spark's costs between two tasks."""

from __future__ import annotations

import gc
import os
from functools import cache


@cache
def settled(loaded: str) -> None:
    """To be called once something is loaded that stays: Spark's Python worker searches all objects
    for garbage behind each task, which takes 0.1 s with what numba alone has made of them. They are
    left out of it from then on. In any other process this does nothing.
    """
    if "SPARK_REUSE_WORKER" in os.environ:
        gc.collect()
        gc.freeze()
