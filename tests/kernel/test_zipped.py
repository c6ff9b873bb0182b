"""Compiled functions where the sources come in a zip, as Spark brings them to its executors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
_LOADS = """
import sys
sys.path.insert(0, sys.argv[1])
from cdc.kernel import loading
loading.columns()
print(loading.__file__)
print(loading.library("columns"))
"""


def test_what_was_compiled_elsewhere_on_the_machine_is_loaded_by_sources_in_a_zip(
    tmp_path: Path,
) -> None:
    cache, library = tmp_path / "cache", loaded(str(ROOT), tmp_path)[1]
    copied = cache / Path(library).relative_to(Path(library).parents[1])
    copied.parent.mkdir(parents=True, mode=0o700)
    copied.write_bytes(Path(library).read_bytes())
    zip_sources(tmp_path)
    own, library = loaded("./mongodb-cdc.zip", tmp_path, NUMBA_CACHE_DIR=str(cache))
    assert own.endswith("mongodb-cdc.zip/cdc/kernel/loading.py")
    assert library == str(copied)
    assert [*cache.rglob("*.json")] == [copied]


@pytest.mark.slow
def test_sources_in_a_zip_are_compiled_by_a_process_that_finds_them(tmp_path: Path) -> None:
    zip_sources(tmp_path)
    own, library = loaded("./mongodb-cdc.zip", tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert own.endswith("mongodb-cdc.zip/cdc/kernel/loading.py")
    assert [*(tmp_path / "cache").rglob("*.json")] == [Path(library)]


def zip_sources(folder: Path) -> None:
    with ZipFile(folder / "mongodb-cdc.zip", "w") as zipped:
        for path in ROOT.glob("cdc/**/*.py"):
            zipped.write(path, path.relative_to(ROOT))


def loaded(place: str, folder: Path, **environment: str) -> list[str]:
    """The file of the module `loading`, and the library that it loaded."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _LOADS, place],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:2]
