"""Which cases of a test are slow, or in the soak: those that show the same rule as other cases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


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
