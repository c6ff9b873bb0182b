"""Compiled functions where the sources come in a zip, as Spark brings them to its executors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from cdc.kernel import loading

ROOT = Path(__file__).parents[2]
_LOADS = """
import sys
sys.path.insert(0, sys.argv[1])
from cdc.kernel import loading
getattr(loading, sys.argv[2])()
print(loading.__file__)
print(loading.library(sys.argv[2]))
"""


def test_what_was_compiled_elsewhere_on_the_machine_is_loaded_by_sources_in_a_zip(
    tmp_path: Path,
) -> None:
    cache, library = tmp_path / "cache", loaded(str(ROOT), "columns", tmp_path)[1]
    copied = cache / Path(library).relative_to(Path(library).parents[1])
    copied.parent.mkdir(parents=True, mode=0o700)
    copied.write_bytes(Path(library).read_bytes())
    zip_sources(tmp_path)
    own, library = loaded("./mongodb-cdc.zip", "columns", tmp_path, NUMBA_CACHE_DIR=str(cache))
    assert own.endswith("mongodb-cdc.zip/cdc/kernel/loading.py")
    assert library == str(copied)
    assert [*cache.rglob("*.json")] == [copied]


def test_what_comes_with_a_job_is_loaded_and_nothing_is_compiled_or_cached(tmp_path: Path) -> None:
    """Spark puts the files of a job into a folder of modules. Guards: a process that compiles waits
    for it, and needs a cache folder."""
    library = Path(loaded(str(ROOT), "columns", tmp_path)[1])
    zip_sources(tmp_path)
    given, cache = tmp_path / "given", tmp_path / "cache"
    given.mkdir()
    (given / library.name).write_bytes(library.read_bytes())
    environment = {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(given)}
    own, _ = loaded("./mongodb-cdc.zip", "columns", tmp_path, **environment)
    assert own.endswith("mongodb-cdc.zip/cdc/kernel/loading.py")
    assert not [*cache.rglob("*.json")]


@pytest.mark.slow
def test_sources_in_a_zip_are_compiled_also_where_a_damaged_library_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a process that compiles and does not find the sources."""
    zip_sources(tmp_path)
    cache, smallest = tmp_path / "cache", "oplog"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    file = loading.library(smallest)
    file.write_text("0" * 64 + "\n{}")
    own, library = loaded("./mongodb-cdc.zip", smallest, tmp_path)
    assert own.endswith("mongodb-cdc.zip/cdc/kernel/loading.py")
    assert library == str(file)
    assert [*file.parent.iterdir()] == [*cache.glob("*/*")] == [file]
    assert "cdc.kernel.oplog.events.write" in loading._find(smallest).symbols


def zip_sources(folder: Path) -> None:
    with ZipFile(folder / "mongodb-cdc.zip", "w") as zipped:
        for path in ROOT.glob("cdc/**/*.py"):
            zipped.write(path, path.relative_to(ROOT))


def loaded(place: str, library: str, folder: Path, **environment: str) -> list[str]:
    """The file of the module `loading`, and that of the library that it loaded."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _LOADS, place, library],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:2]
