"""Wheel and sdist, as somebody gets them who has nothing of this project but them.

PYTHONS="python3.12 python3.13" names other interpreters to install the wheel with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.jvm import SHORT_LIVED

ROOT = Path(__file__).parents[1]
PYTHONS = os.environ.get("PYTHONS", sys.executable).split()
CONF = {path.name for path in ROOT.glob("conf/*")}
# What Spark finds.
FOUND = {"pyspark_mongodb_cdc.py", "pyspark_mongodb_cdc_sql.py"}
NOTEBOOKS = {f"notebooks/{path.name}" for path in ROOT.glob("notebooks/*.ipynb")}
# A session that nothing was registered in.
_DISCOVERS = """
from cdc.pipeline.spark.spark_session import session
print(session("discovery").read.format("mongodb-cdc").load())
"""

pytestmark = pytest.mark.timeout(1800)  # a slow registry is not a hanging one


@dataclass(frozen=True, slots=True)
class Built:
    """The two files, and what they hold."""

    wheel: Path
    in_wheel: frozenset[str]
    in_sdist: frozenset[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """From what git has of the tree: the sdist from that, the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("packaging")
    copied(folder / "tree")
    installed(sys.executable, folder / "tools", "build")
    ran("tools/bin/python", "-m", "build", "--outdir", "dist", "tree", cwd=folder)
    [sdist], [wheel] = folder.glob("dist/*.tar.gz"), folder.glob("dist/*.whl")
    with tarfile.open(sdist) as packed:
        files = [each.name for each in packed.getmembers() if each.isfile()]
    in_sdist = frozenset(name.partition("/")[2] for name in files)
    return Built(wheel, frozenset(ZipFile(wheel).namelist()), in_sdist)


def installed(python: str, environment: Path, *packages: str) -> None:
    """An environment of an interpreter with these packages. They are compiled when they are used:
    most of their modules never are."""
    ran(python, "-m", "venv", "--without-pip", str(environment), cwd=environment.parent)
    pip = (sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"))
    ran(*pip, "install", "--quiet", "--no-compile", *packages, cwd=environment.parent)


def copied(target: Path) -> None:
    listed = ran("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())


def ran(*command: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A program that finds nothing of this project but what is installed where it is, not even by
    what a session of Spark left in the environment of this process."""
    strange = ("PYTHON", "PYSPARK_", "SPARK_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean | SHORT_LIVED | {"TMPDIR": str(cwd)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.mark.slow
def test_the_wheel_holds_all_modules_and_what_they_read_and_nothing_of_the_tests(
    built: Built,
) -> None:
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("cdc/**/*.py")}
    data = {"cdc/py.typed", "cdc/monitoring/page.html", *FOUND}
    data.add("cdc/pipeline/spark/log4j2.properties")
    besides = {name for name in built.in_wheel - modules - data if ".dist-info/" not in name}
    assert modules | data <= built.in_wheel
    assert {name.partition(".data/data/")[2] for name in besides} == {
        f"share/mongodb-cdc/conf/{name}" for name in CONF
    }


@pytest.mark.slow
def test_the_sdist_holds_what_the_wheel_is_made_of_and_nothing_of_the_tests(built: Built) -> None:
    modules = {name for name in built.in_wheel if name.endswith(".py")}
    others = {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "pyproject.toml",
        "jobs/replicate.py",
        "docs/index.md",
    }
    assert modules | others | NOTEBOOKS | {f"conf/{name}" for name in CONF} <= built.in_sdist
    assert not {name for name in built.in_sdist if name.startswith("tests/")}


@pytest.mark.wheel
@pytest.mark.parametrize("python", PYTHONS)
def test_an_empty_environment_with_the_wheel_has_the_whole_program(
    built: Built, tmp_path: Path, python: str
) -> None:
    installed(python, tmp_path / "environment", f"{built.wheel}[demo]")
    program = "environment/bin/mongodb-cdc"
    assert "repair-checkpoint" in ran(program, "--help", cwd=tmp_path).stdout
    assert "--available-now" in ran(program, "replicate", "--help", cwd=tmp_path).stdout
    shown = ran(program, "demo", "--documents", "3000", "--json", cwd=tmp_path)
    measured = json.loads(shown.stdout)  # and nothing else on stdout
    assert measured["equal"] is True
    assert measured["documents"] >= 3000 * 0.8
    assert measured["changes"] > 0
    assert "last rows of the changelog" in shown.stderr
    assert not [*tmp_path.glob("mongod*")], "the demo left something"
    assert (tmp_path / "environment/share/mongodb-cdc/conf/spark-defaults.conf").is_file()
    refused = ran("environment/bin/python", "-c", _DISCOVERS, cwd=tmp_path, code=1)
    assert "Option 'uri' is not set" in refused.stderr, refused.stderr  # pytest would shorten it


@pytest.mark.slow
def test_an_editable_installation_is_a_path_on_which_spark_finds_the_source(tmp_path: Path) -> None:
    """Guards: Spark lists the modules on paths, and an import hook lists none."""
    copied(tmp_path / "tree")
    installed(sys.executable, tmp_path / "environment", "--no-deps", "--editable", "tree")
    listing = "import pkgutil; print([each.name + '.py' for each in pkgutil.iter_modules()])"
    listed = ran("environment/bin/python", "-c", listing, cwd=tmp_path).stdout
    assert all(repr(name) in listed for name in FOUND)
