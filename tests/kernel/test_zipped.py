"""Compiled functions where the sources come in a zip, as Spark brings them to its executors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
_LOADS = """
import sys
sys.path.insert(0, sys.argv[1])
from cdc.kernel import loading
loading.columns()
print(loading.__file__)
"""


def test_what_was_compiled_elsewhere_on_the_machine_is_loaded_by_sources_in_a_zip(
    tmp_path: Path,
) -> None:
    loaded(str(ROOT), tmp_path)
    with ZipFile(tmp_path / "mongodb-cdc.zip", "w") as zipped:
        for path in ROOT.glob("cdc/**/*.py"):
            zipped.write(path, path.relative_to(ROOT))
    said = loaded("./mongodb-cdc.zip", tmp_path)
    assert "mongodb-cdc.zip/cdc/kernel/loading.py" in said
    assert "data loaded from" in said
    assert "saved to" not in said


def loaded(place: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _LOADS, place],
        cwd=folder,
        env={**os.environ, "NUMBA_DEBUG_CACHE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
