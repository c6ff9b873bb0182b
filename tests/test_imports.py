"""What is imported when: a program that needs no Spark and nothing compiled waits for neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NEW = "import sys; before = set(sys.modules); import {}; print(*(set(sys.modules) - before))"
SLOW = {"llvmlite", "matplotlib", "numba", "numpy", "pandas", "pyarrow", "pymongo", "pyspark"}


def imported(modules: str) -> set[str]:
    """The packages that a fresh interpreter has loaded after `import modules`, none of Python's
    own."""
    found = subprocess.run(
        [sys.executable, "-c", _NEW.format(modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in found.stdout.split()} - sys.stdlib_module_names


def test_the_package_by_itself_imports_nothing_but_itself() -> None:
    assert imported("cdc") == {"cdc"}


def test_help_and_the_program_that_asks_nobody_wait_for_nothing_slow() -> None:
    assert not imported("cdc.cli.commands, cdc.cli.token") & SLOW


def test_what_is_compiled_is_loaded_when_it_is_used_and_not_when_it_is_imported() -> None:
    found = imported("cdc.source, cdc.delta.sink, cdc.cli.replicate, cdc.cli.verify")
    assert "pyspark" in found
    assert not found & {"llvmlite", "matplotlib", "numba", "pandas"}


def test_the_process_that_creates_the_source_of_a_stream_imports_spark_alone() -> None:
    assert imported("cdc.delta.landing_source") & SLOW == {"pyspark"}
