"""A process of a run that crashes costs the test that it executed, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow_but

_CONFTEST = """
import pytest
from tests.scheduling import ByScope


class ByFunction(ByScope):
    def _split_scope(self, nodeid):
        return nodeid.partition("[")[0]


def pytest_xdist_make_scheduler(config, log):
    return ByFunction(config, log)
"""
_TESTS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_before(number):
    pass

def test_that_crashes_once():
    once = pathlib.Path("crashed")
    if not once.exists():
        once.touch()
        os._exit(1)

@pytest.mark.parametrize("number", range(4))
def test_after(number):
    pass
"""


@pytest.mark.parametrize("processes", slow_but([1], [1, 3]))
def test_a_run_goes_on_and_ends_when_one_of_its_processes_crashes(
    tmp_path: Path, processes: int
) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_some.py").write_text(_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-p", "no:cacheprovider", "-n", str(processes)]
    order = ["--dist", "loadscope", "--no-loadscope-reorder"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *order, "."],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "crashed while running 'test_some.py::test_that_crashes_once'" in ran.stdout
    assert "1 failed, 9 passed" in ran.stdout
