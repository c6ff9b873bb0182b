"""Which cases of a test are slow: those that show the same rule as a case that `make test` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(fast: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, of which `make test` runs only the `fast` ones; `make test-slow` runs the rest."""
    kept = list(fast)
    return [each if each in kept else pytest.param(each, marks=pytest.mark.slow) for each in cases]
