"""Which cases of a test are slow, or in the soak: those that show the same rule as other cases.

Also which part of the tests a run executes: all slow ones take longer than CI has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import pytest

_PART = "SLOW_PART"


def slow_but(fast: Iterable[Any], cases: Iterable[Any], soak: Iterable[Any] = ()) -> list[Any]:
    """The cases: `make test` runs the `fast` ones, `make soak` those of `soak`, and
    `make test-slow` the rest."""
    kept, rare = list(fast), list(soak)
    return [
        each
        if each in kept
        else pytest.param(each, marks=pytest.mark.soak if each in rare else pytest.mark.slow)
        for each in cases
    ]


def keep_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With SLOW_PART=2/3: keep the tests of every third file, beginning with the second one.

    Raises a usage error if SLOW_PART is no such text.
    """
    text = os.environ.get(_PART)
    if not text:
        return
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not match or int(match[1]) > int(match[2]):
        raise pytest.UsageError(f"{_PART}={text} is no part like 1/3 or 3/3")
    part, parts = int(match[1]), int(match[2])
    files = sorted({item.path for item in items})
    kept = set(files[part - 1 :: parts])
    config.hook.pytest_deselected(items=[item for item in items if item.path not in kept])
    items[:] = [item for item in items if item.path in kept]
