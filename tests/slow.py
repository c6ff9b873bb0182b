"""Which cases of a test are slow, or in the soak: those that show the same rule as other cases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(fast: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, of which `make test` runs only the `fast` ones; `make test-slow` runs the rest."""
    kept = list(fast)
    return [each if each in kept else pytest.param(each, marks=pytest.mark.slow) for each in cases]


def soak_but(slow: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, of which `make test-slow` runs only the `slow` ones; `make soak` runs the rest."""
    kept = list(slow)
    return [
        pytest.param(each, marks=pytest.mark.slow if each in kept else pytest.mark.soak)
        for each in cases
    ]
