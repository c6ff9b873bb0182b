"""Spark's settings are the same in plain Python and under spark-submit, and their lack is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
import pytest
from delta import configure_spark_with_delta_pip
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc.errors import CdcError
from cdc.kernel import loading
from cdc.pipeline.spark import start_cache
from cdc.pipeline.spark.jvm import require_java
from cdc.pipeline.spark.python_processes import fork_server
from cdc.pipeline.spark.spark_session import LOCAL, SETTINGS
from tests.jvm import SHORT_LIVED

ROOT = Path(__file__).parents[2]
SPARK_DEFAULTS = ROOT / "conf" / "spark-defaults.conf"

# DELETE and a deletion vector need the extension, the catalog and jars that Spark does not ship.
PROGRAM = """
import os, sys
from cdc.pipeline.spark.spark_session import session
from tests.jvm import INTERPRETED
extra = {**INTERPRETED, "spark.sql.warehouse.dir": sys.argv[1]}
spark = session("program", master="local[1]", extra=extra)
spark.sql("create table t using delta tblproperties ('delta.enableDeletionVectors' = true) "
          "as select id, parse_json('{}') as doc from range(10)")
spark.sql("delete from t where id = 3")
python = spark.range(1).rdd.map(lambda _: sys.executable).first()
print(spark.table("t").count(), python, spark.conf.get("spark.sql.session.timeZone"))
"""


def test_spark_defaults_hold_the_settings_of_plain_python() -> None:
    lines = [line.split(maxsplit=1) for line in SPARK_DEFAULTS.read_text().splitlines()]
    of_file = {line[0]: line[1] for line in lines if line and not line[0].startswith("#")}
    jars = configure_spark_with_delta_pip(SparkSession.builder)._options["spark.jars.packages"]
    assert of_file == {**SETTINGS, "spark.jars.packages": jars}


def test_of_two_runs_that_write_the_same_file_of_a_checkpoint_one_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: the way of renaming files that is chosen for a local master."""
    jvm: Any = spark._jvm
    checkpointing = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    create = getattr(getattr(checkpointing, "CheckpointFileManager$"), "MODULE$").create
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "0"))
    manager = create(path.getParent(), spark._jsparkSession.sessionState().newHadoopConf())
    chosen = LOCAL["spark.sql.streaming.checkpointFileManagerClass"]
    assert manager.getClass().getName() == chosen
    first, second = (manager.createAtomic(path, False) for _ in range(2))
    for number, stream in enumerate((first, second), 1):
        stream.write(number)
    first.close()
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        second.close()
    assert (tmp_path / "0").read_bytes() == b"\1"


@pytest.mark.slow
def test_in_plain_python_a_program_runs_on_its_own_python_and_prints_nothing_else(
    tmp_path: Path,
) -> None:
    run = program(tmp_path, sys.executable)
    assert (run.stdout, run.stderr) == (f"9 {sys.executable} UTC\n", "")


@pytest.mark.soak
def test_programs_that_start_at_once_where_jars_are_not_downloaded_yet_all_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "program.py").write_text(
        "import sys; from cdc.pipeline.spark.spark_session import session\n"
        "session('p', 'local[1]', {'spark.jars.ivy': sys.argv[1]}).stop()"
    )
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "ivy")]
    with ThreadPoolExecutor() as threads:
        runs = list(threads.map(in_environment, [command] * 2))
    assert [(run.returncode, run.stderr) for run in runs] == [(0, "")] * 2


@pytest.mark.slow
def test_under_spark_submit_the_properties_file_brings_delta(tmp_path: Path) -> None:
    run = program(tmp_path, *spark_submit("--properties-file", str(SPARK_DEFAULTS)))
    assert run.stdout == f"9 {sys.executable} UTC\n", run.stderr


@pytest.mark.slow
def test_under_spark_submit_without_delta_one_sentence_names_the_properties_file(
    tmp_path: Path,
) -> None:
    run = program(tmp_path, *spark_submit())
    assert run.returncode != 0
    # spark-submit sends the program's stderr to its own stdout.
    assert "CdcError: This Spark session has no Delta: spark.sql.extensions=" in run.stdout
    assert "the jar of Delta missing. Remedy: run spark-submit with" in run.stdout


@pytest.mark.slow
def test_after_prepare_a_program_starts_without_ivy_and_from_stored_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The encoders are compiled already where this points to.
    compiled = loading.library("columns").parents[1]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(compiled))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    run = in_environment([sys.executable, "-c", "from cdc.cli import main; main()", "prepare"])
    assert (run.returncode, run.stdout) == (0, ""), run.stderr

    (tmp_path / "program.py").write_text(
        "import sys; from cdc.pipeline.spark.spark_session import LOCAL, session\n"
        "java = LOCAL['spark.driver.extraJavaOptions'] + ' -Xlog:class+load'\n"
        "extra = {'spark.jars.ivy': sys.argv[1], 'spark.driver.extraJavaOptions': java}\n"
        "session('p', 'local[1]', extra).stop()"
    )
    run = in_environment([sys.executable, str(tmp_path / "program.py"), str(tmp_path / "ivy")])
    assert run.returncode == 0, run.stderr
    assert list((tmp_path / "ivy").iterdir()) == []
    stored = "org.apache.spark.SparkContext source: shared objects file (top)"
    assert stored in run.stdout + run.stderr


def test_jars_that_ivy_found_are_put_on_the_class_path_while_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {"spark.jars.packages": "a:b:1", "spark.driver.extraClassPath": "own.jar"}
    assert start_cache.use_cache(settings) == settings
    jars = [tmp_path / "one.jar", tmp_path / "two.jar"]
    for jar in jars:
        jar.touch()
    [folder] = (tmp_path / "mongodb-cdc").iterdir()
    (folder / "jars.json").write_text(json.dumps({"a:b:1": [str(jar) for jar in jars]}))

    assert start_cache.use_cache(settings) == {
        "spark.driver.extraClassPath": ":".join(["own.jar", *map(str, jars)])
    }
    other = settings | {"spark.jars.packages": "a:b:2"}
    assert start_cache.use_cache(other) == other
    jars[1].unlink()
    assert start_cache.use_cache(settings) == settings
    (folder / "jars.json").write_text("damaged")
    assert start_cache.use_cache(settings) == settings


def test_environments_on_one_machine_have_archives_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: an archive that the next environment replaces, so that Java uses neither; archives
    of environments that are gone, which fill the disk; an environment in daily use that loses its
    archive to newer ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    start_cache.use_cache({"spark.jars.packages": "a:b:1"})
    [folder] = (tmp_path / "mongodb-cdc").iterdir()
    (tmp_path / "one.jar").touch()
    (folder / "jars.json").write_text(json.dumps({"a:b:1": [str(tmp_path / "one.jar")]}))

    dated = list[Path]()

    def has_archive(home: str) -> bool:
        monkeypatch.setenv("SPARK_HOME", str(tmp_path / home))
        return "SharedArchiveFile" in str(start_cache.use_cache({"spark.jars.packages": "a:b:1"}))

    for number, home in enumerate(("one", "two", "three", "four")):
        if home == "four":
            assert has_archive("one"), "it is used once more"
        monkeypatch.setenv("SPARK_HOME", str(tmp_path / home))
        with start_cache.archiving("a:b:1") as option:
            assert option is not None
            Path(option.partition("=")[2].partition('"')[0]).touch()
        assert has_archive(home)
        [newest] = set(folder.glob("*.jsa")) - set(dated)
        os.utime(newest, (number, number))
        dated.append(newest)
    assert len(list(folder.glob("*.jsa"))) == 3
    assert [has_archive(home) for home in ("one", "two", "three", "four")] == [
        *(True, False, True, True)
    ]


@pytest.mark.slow
def test_an_environment_that_is_reached_by_a_link_starts_from_the_same_archive(
    tmp_path: Path,
) -> None:
    """Guards: a folder `.venv` that is a link, as on a volume that several machines mount."""
    (tmp_path / "linked").symlink_to(sys.prefix)
    program = (
        "from cdc.pipeline.spark import start_cache as of; print(of._archive([]));"
        "print(of._light_home({}))"
    )
    found = [
        in_environment([str(Path(prefix, "bin", "python")), "-c", program]).stdout.split()
        for prefix in (sys.prefix, tmp_path / "linked")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 2
    assert Path(found[0][1], "jars").is_dir()


def test_python_processes_of_spark_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Guards: `pyspark.zip`, whose sources every process would compile."""

    def place(_: object) -> str:
        import pyspark  # in the worker

        return str(pyspark.__file__)

    assert spark.range(1).rdd.map(place).first() == pyspark.__file__
    assert "SPARK_HOME" not in os.environ


def test_python_processes_of_spark_are_forks_that_have_imported_what_they_need(
    spark: SparkSession,
) -> None:
    """Guards: half a CPU second for the imports of each process."""

    def look(_: object) -> tuple[bool, list[str]]:
        import sys  # in the worker

        import psutil

        return "cdc.source" in sys.modules, psutil.Process().parents()[1].cmdline()

    has_imported, server = spark.range(1).rdd.map(look).first()
    assert has_imported
    assert "cdc.fork_server" in server


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({"SPARK_HOME": "/opt/spark"}, {}),
        ({"PYSPARK_PYTHON": "/usr/bin/python3"}, {}),
        ({}, {"spark.pyspark.python": "/usr/bin/python3"}),
    ],
)
def test_a_spark_or_an_interpreter_of_the_user_is_used_as_it_is(
    environment: dict[str, str], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = os.environ.get("SPARK_HOME")
    with start_cache.compiled_pyspark(settings):
        assert os.environ.get("SPARK_HOME") == before
    if "SPARK_HOME" not in environment:
        assert fork_server(settings) is None


def test_a_pyspark_that_other_processes_may_not_find_keeps_its_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with start_cache.compiled_pyspark({}):
        assert Path(os.environ["SPARK_HOME"], "jars").resolve() == Path(pyspark.__file__).with_name(
            "jars"
        )
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    with start_cache.compiled_pyspark({}):
        assert "SPARK_HOME" not in os.environ


def test_a_jvm_that_does_not_start_is_reported_with_what_it_printed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from cdc.pipeline import session\nsession('p', extra={'spark.driver.memory': 'much'})"
    )
    run = in_environment([sys.executable, str(tmp_path / "program.py")])
    assert "CdcError: Spark did not start. It printed last:" in run.stderr
    assert "Invalid maximum heap size" in run.stderr


@pytest.mark.parametrize(
    ("version", "complaint"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "21" 2023-09-19', None),
        ('openjdk version "11.0.22" 2024-01-16', "is Java 11:"),
        ('java version "1.8.0_402"', "is Java 8:"),
        (None, "has none that runs:"),
    ],
)
def test_a_missing_or_old_java_is_one_sentence_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, complaint: str | None
) -> None:
    java = tmp_path / "bin" / "java"
    if version:
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    check = run_command([str(ROOT / ".ci" / "java-check")])

    if complaint is None:
        require_java()
        assert (check.returncode, check.stderr) == (0, "")
        return
    assert check.returncode != 0
    assert complaint in check.stderr
    assert check.stderr.count("\n") == 1
    with pytest.raises(CdcError) as raised:
        require_java()
    for said in (check.stderr, str(raised.value)):
        assert "openjdk-17-jre-headless" in said
        assert "JAVA_HOME" in said


def program(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(PROGRAM)
    return in_environment([*command, str(path), str(folder / "warehouse")])


def spark_submit(*arguments: str) -> list[str]:
    quick = ["--conf", "spark.ui.enabled=false"]
    submit = str(Path(sys.executable).with_name("spark-submit"))
    return [submit, "--master", "local[1]", *quick, *arguments]


def in_environment(command: list[str]) -> subprocess.CompletedProcess[str]:
    # The run's own JVM has left its address in the environment; the program gets one of its own.
    inherited = {name: v for name, v in os.environ.items() if not name.startswith("PYSPARK_")}
    environment = inherited | SHORT_LIVED | {"PYTHONPATH": str(ROOT)}
    if "spark-submit" in command[0]:
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return run_command(command, environment)


def run_command(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=200
    )
