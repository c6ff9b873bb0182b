"""Where compiled functions are kept, and when they are loaded."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from cdc.kernel import loading
from tests.kernel.checked import PARTS
from tests.soak import choose_seed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache folder of the test's own, with nothing in it."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.usefixtures("elsewhere")
def test_they_are_kept_in_the_cache_of_the_user_and_no_one_else_can_write_there(
    tmp_path: Path,
) -> None:
    folder = loading._folder("0")
    assert folder.parent == tmp_path / "cache" / "mongodb-cdc"
    assert {stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)} == {0o700}


def test_each_version_of_numba_and_each_processor_has_its_own() -> None:
    assert loading._digest("0.1", "z") == loading._digest("0.1", "z") != loading._digest("0.2", "z")
    assert loading._digest("0.1", "z") != loading._digest("0.1", "y")


def test_what_cannot_be_compiled_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'missing'"):
        loading._compile(tmp_path / "library", "missing")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "{}", "0" * 64 + "\n{}"])
def test_a_damaged_library_is_not_loaded(tmp_path: Path, content: str) -> None:
    """That it is compiled again: `tests/kernel/test_zipped.py`."""
    file = tmp_path / "library.json"
    file.write_text(content)
    assert loading._read(file) is None


def test_an_array_of_another_type_or_form_is_refused() -> None:
    """Guards: the machine code would read its bytes as if they were numbers of another width."""
    document, out, ends = np.frombuffer(b"\5\0\0\0\0", np.uint8), np.empty(9, np.uint8), np.zeros(2)
    places = np.array([0]), np.array([5])
    with pytest.raises(TypeError, match="not a contiguous array of 1 dimensions of int32"):
        loading.columns().gather(document, *places, 0, out, ends)
    with pytest.raises(TypeError, match="int64"):
        loading.columns().gather(document, np.arange(4)[::2], places[1], 0, out, ends)
    with pytest.raises(ValueError, match="argument"):
        loading.columns().gather(document)


def test_numba_is_not_loaded_where_compiled_functions_are_called() -> None:
    """Guards: it would take 70 MB and half a second in each Spark worker."""
    program = (
        "import sys; from cdc.kernel import loading; loading.columns(); loading.typed();"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.usefixtures("elsewhere")
def test_a_folder_that_is_given_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    assert loading._folder("0").parent == tmp_path / "given"


@pytest.mark.usefixtures("elsewhere")
def test_where_the_users_cache_cannot_be_written_they_are_kept_with_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert loading._folder("0").parent == tmp_path / f"mongodb-cdc-{os.getuid()}"


@pytest.mark.usefixtures("elsewhere")
def test_a_folder_that_others_can_write_to_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / f"mongodb-cdc-{os.getuid()}").mkdir()
    (tmp_path / f"mongodb-cdc-{os.getuid()}").chmod(0o777)
    with pytest.raises(OSError):
        loading._folder("0")


@pytest.mark.parametrize(
    "module", ["cdc.source", "cdc.cli.commands", "tests.mongo.capture", "cdc.arrow.typed_columns"]
)
def test_numba_is_not_loaded_before_it_is_needed(module: str) -> None:
    program = f"import sys, {module}; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "is_short",
    [
        pytest.param(True, id="one part", marks=pytest.mark.slow),
        pytest.param(False, id="all parts", marks=pytest.mark.soak),
    ],
)
def test_no_function_reads_or_writes_outside_of_an_array(tmp_path: Path, is_short: bool) -> None:
    """In the short form SOAK_SEED chooses the part."""
    part = Random(choose_seed()).choice([*PARTS])
    parts = [part] if is_short else [*PARTS]
    environment = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "checked")}
    command = [sys.executable, "-m", "tests.kernel.checked", *parts]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **environment})
