"""A process of a run that crashes costs the test that it executed, and no other; the parts of a run
are all of it."""

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


@pytest.mark.parametrize("processes", slow_but([], [1, 3], soak=[3]))
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


def _collect_part(folder: Path, part: str) -> tuple[int, list[str]]:
    """The code of a run of that part, and the tests that it would execute."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "."],
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "", "SLOW_PART": part},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.returncode, [line for line in ran.stdout.splitlines() if "::" in line]


def test_the_parts_of_a_run_have_each_test_once_and_those_of_a_file_together(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.slow import keep_part\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    keep_part(config, items)\n"
    )
    for number in range(5):
        tests = "def test_a():\n    pass\ndef test_b():\n    pass\n"
        (tmp_path / f"test_{number}.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    parts = [_collect_part(tmp_path, f"{number}/3")[1] for number in (1, 2, 3)]
    assert [len(part) for part in parts] == [4, 4, 2]
    assert len(set().union(*parts)) == 10
    files = [{test.partition("::")[0] for test in part} for part in parts]
    assert sum(map(len, files)) == 5
    usage_error = 4
    assert _collect_part(tmp_path, "4/3")[0] == usage_error
