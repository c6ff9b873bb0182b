"""What a Spark worker has loaded is not searched for garbage after each of its tasks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_LOADED = """
import gc
from cdc.kernel import loading
from cdc.kernel.loading import freeze_objects
loading.columns()
first = gc.get_freeze_count()
freeze_objects("columns")
print(first > 10_000, gc.get_freeze_count() == first)
"""


@pytest.mark.parametrize(
    ("environment", "reported"),
    [
        pytest.param({"SPARK_REUSE_WORKER": "1"}, "True True", id="in a worker"),
        pytest.param({}, "False True", id="anywhere else"),
    ],
)
def test_what_is_compiled_is_left_out_of_the_search_for_garbage_in_a_worker_alone(
    environment: dict[str, str], reported: str
) -> None:
    """Guards: elsewhere, what a user's program makes garbage of would never be found."""
    clean = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    found = subprocess.run(
        [sys.executable, "-c", _LOADED],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == reported
