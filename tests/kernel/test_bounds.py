"""Compiled functions check no bounds of an array: they read at the indices that they get."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow_but
from tests.soak import choose_seed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", slow_but([], [500, 50_000], soak=[50_000]))
def test_no_function_reads_beyond_the_bytes_of_a_damaged_reply_or_variant(count: int) -> None:
    """Guards: the type of a value, and what it takes by its length, before its bytes. Where they
    end, memory ends; in a process of its own, because a read beyond that ends it."""
    numbers = str(choose_seed()), str(count)
    program = [sys.executable, "-m", "tests.kernel.guarded", *numbers]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
