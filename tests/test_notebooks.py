"""The notebooks show what they say, end what they start, and are committed as they were written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote_plus

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_output

from tests.mongo.access import Guarded
from tests.notebooks import NAMES, ROOT, Run, execute, left_in, path_of, prepared, run, stripped
from tests.security.leaks import Canary
from tests.slow import slow_but

# A path from the root of a machine, and no part of a connection string or a template.
_PATH = re.compile(r"(?<![\w.:/}])/(?:home|root|tmp|var|usr|opt|mnt|work|Users)\b")

DATABASE = "mongodb_cdc_notebook"


# --- as committed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_committed_without_what_running_it_has_put_in(name: str) -> None:
    text = path_of(name).read_text()
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert stripped(text) == text, "run `python -m tests.notebooks`"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_names_no_path_of_a_machine(name: str) -> None:
    assert _PATH.findall(path_of(name).read_text()) == []


def test_what_running_a_notebook_has_put_in_is_taken_out_and_nothing_else() -> None:
    text = path_of(NAMES[0]).read_text()
    notebook = nbformat.reads(text, as_version=4)
    notebook.metadata.kernelspec.display_name = "of somebody"
    notebook.metadata.language_info.version = "3.11.7"
    for number, cell in enumerate(notebook.cells):
        cell.metadata.collapsed = True
        if cell.cell_type == "code":
            cell.execution_count = number
            cell.outputs = [new_output("stream", text="/root")]
    run_once = nbformat.writes(notebook)
    assert run_once != text
    assert stripped(run_once) == text


def test_ruff_looks_at_each_notebook() -> None:
    """Guards: what `make lint` says of notebooks is worth nothing where they are left out."""
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--show-files"]
    seen = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {str(path_of(name)) for name in NAMES} <= set(seen.splitlines())


# --- as run ---------------------------------------------------------------------------------------


def require_nothing_left(ran: Run) -> None:
    """Neither a process, after the last cell but the kernel, nor a file."""
    assert ran.left == []
    assert left_in(ran.folder) == []
    assert list((ran.folder / "work").iterdir()) == []
    assert list((ran.folder / "temporary").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_shows_the_hand_over_a_change_and_the_versions_of_the_mirror(
    tmp_path: Path,
) -> None:
    ran = run("01_from_mongodb_to_delta", tmp_path)
    found = ran.found
    assert found["verified"] is True
    assert found["documents"] > 4_000
    assert found["batches of the copy"] >= 2
    assert found["copied"] > 4_000
    assert found["changes"] > 0
    assert found["order -1"] == [
        ("insert", None, "new"),
        ("update", "new", "paid"),
        ("delete", "paid", None),
    ]
    assert found["in versions"] == {
        "before": None,
        "inserted": "new",
        "paid": "paid",
        "deleted": None,
    }
    assert found["best sellers"] == 5
    assert len(ran.plots) == 1
    require_nothing_left(ran)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_second_reports_each_batch_each_change_and_how_long_it_took(tmp_path: Path) -> None:
    ran = run("02_inspect_a_run", tmp_path)
    found = ran.found
    assert found["batches of the copy"] >= 2
    assert found["batches of changes"] >= 5
    assert found["as the run said"] is True
    assert found["rows by commit"] == found["copied"] + found["changes"]
    assert found["of the bulk load"] == 2_000
    least, half, most = found["freshness"]
    assert 0 < least <= half <= most < found["seconds"]
    assert 0 < found["greatest lag"] < found["seconds"] + 1
    assert len(ran.plots) == 3
    require_nothing_left(ran)


# --- with a server of one's own -------------------------------------------------------------------


@pytest.fixture
def canary(guarded: Guarded) -> Iterator[Canary]:
    """The password of the user `notebook`, who may do what the documents say."""
    canary = Canary("notebook")
    roles = [{"role": "readWrite", "db": DATABASE}]
    guarded.client.admin.command("createUser", "notebook", pwd=canary.password, roles=roles)
    yield canary
    guarded.client.admin.command("dropUser", "notebook")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_third_gives_back_what_was_before_the_mistake_and_leaves_a_server_as_it_was(
    guarded: Guarded, canary: Canary, tmp_path: Path
) -> None:
    """The other two start a server themselves. Guards: the password in what a notebook shows."""
    uri = guarded.uri("notebook", quote_plus(canary.password))
    ran = run("03_point_in_time", tmp_path / "right", {"MONGODB_URI": uri})
    assert ran.found == {
        "orders at that moment": 2_200,
        "restored": 2_200,
        "not exact": 0,
        "each is as it was": True,
        "total as of that moment": True,
        "orders without a total now": 2_200,
        "orders now": 2_300,
        "orders in the mirror's versions": [2_000, 2_300],
    }
    assert len(ran.plots) == 1
    assert not canary.is_in(nbformat.writes(ran.notebook).encode())
    assert guarded.client[DATABASE].list_collection_names() == []
    require_nothing_left(ran)


WRONG: dict[str, Callable[[str], str]] = {
    "refused": lambda uri: uri.replace("cAnArY", "x-cAnArY"),
    "malformed": lambda uri: uri.replace("p%40", "/x.y@"),
}


@pytest.mark.parametrize("wrong", slow_but([], WRONG, soak=["refused"]))
def test_a_connection_string_that_is_wrong_is_not_shown_either(
    guarded: Guarded, canary: Canary, tmp_path: Path, wrong: str
) -> None:
    """Guards: what Python shows of an error, with the lines of code that led to it."""
    uri = WRONG[wrong](guarded.uri("notebook", quote_plus(canary.password)))
    assert canary.is_in(uri.encode())
    begun = prepared("01_from_mongodb_to_delta", tmp_path)
    with pytest.raises(CellExecutionError) as raised:
        execute(begun, {"MONGODB_URI": uri})
    shown = str(raised.value) + nbformat.writes(begun.notebook)
    assert "Traceback" in shown
    assert not canary.is_in(shown.encode()), shown
    assert left_in(tmp_path) == []
