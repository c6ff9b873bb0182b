"""A password that was planted is in nothing that a pipeline writes, prints, shows or passes on."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cdc
from cdc import options as declared
from cdc.demo.mongod import find_free_ports
from cdc.source import ChangeReader, SnapshotReader
from tests.jvm import with_spark_settings
from tests.mongo.capture import filled
from tests.security.certificates import Secured
from tests.security.leaks import Canary, Watched, reported
from tests.slow import slow_but

ROOT = Path(__file__).parents[2]
LOCALS = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Planted:
    """A user's URI with two canaries in it: of the user, and of the key of the client's file."""

    canaries: list[Canary]
    uri: str
    collection: str

    def given(self, way: str, folder: Path) -> tuple[str, dict[str, str]]:
        """The option that leads to it in a way, and the environment that it needs."""
        if way == "env":
            return "env:CANARY_URI", {"CANARY_URI": self.uri}
        if way == "file":
            (folder / "secret").write_text(self.uri)
            return f"file:{folder / 'secret'}", {}
        return self.uri, {}


@pytest.fixture
def planted(secured: Secured) -> Planted:
    number = next(_numbers)
    user, key = Canary(f"{number}user"), Canary(f"{number}key")
    name, coll = f"canary{number}", filled(secured.client["shop"], f"canary{number}", range(50))
    roles = [{"role": "read", "db": "shop"}, {"role": "clusterMonitor", "db": "admin"}]
    secured.client.admin.command("createUser", name, pwd=user.password, roles=roles)
    file = secured.authority.client(name, password=key.password)
    uri = secured.uri(
        name, user.password, tlsCertificateKeyFile=file, tlsCertificateKeyFilePassword=key.password
    )
    return Planted([user, key], uri, str(coll.full_name))


# --- in this process ------------------------------------------------------------------------------


# Not by the environment: that of the run's JVM, which its workers have too, is what it was.
@pytest.mark.parametrize("way", ["plain", "file"])
def test_what_goes_to_a_task_or_to_a_plan_holds_no_password(
    secured: Secured,
    planted: Planted,
    way: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Guards: splits, which Spark keeps, and plans, which it shows; readers, which hold what was
    given."""
    uri, _ = planted.given(way, tmp_path)
    given = {"uri": uri, "collections": planted.collection, "document.format": "json"}
    cdc.register(spark)
    rows = spark.read.format("mongodb-cdc").options(**given).load()
    stream = spark.readStream.format("mongodb-cdc").options(**given).load()
    options = declared.parse(given)
    reader = ChangeReader(options, rows.schema)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    reader.stop()
    partitions = [
        *SnapshotReader(options, rows.schema).partitions(),
        *reader.partitions(begin, end),
    ]
    shown = [
        *(explained(rows, mode) for mode in ("extended", "codegen", "cost", "formatted")),
        *(str(each._jdf.queryExecution().toString()) for each in (rows, stream)),
        str(rows._jdf.queryExecution().logical().toJSON()),
        repr(rows),
        json.dumps([begin, end]),
        *(repr(pickle.dumps(each)) for each in partitions),
        *([] if way == "plain" else [repr(pickle.dumps(SnapshotReader(options, rows.schema)))]),
    ]
    assert len(partitions) > 1
    assert rows.count() == 50
    for text in shown:
        assert not any(each.is_in(text.encode()) for each in planted.canaries), text[:300]


def explained(rows: Any, mode: str) -> str:
    jvm = rows.sparkSession._jvm
    return str(jvm.PythonSQLUtils.explainString(rows._jdf.queryExecution(), mode))


# What is looked for stays in each of them.
WRONG: dict[str, Callable[[str], str]] = {
    "password": lambda uri: uri.replace("cAnArY", "x-cAnArY", 1),
    "host": lambda uri: uri.replace("127.0.0.1", "localhost"),
    "unreachable": lambda uri: uri.replace("127.0.0.1", "127.0.0.2"),
    "malformed": lambda uri: uri.replace("p%40", "/x.y@"),
    "option": lambda uri: uri + "&tls=perhaps",
    # Which the driver takes, and at which what Spark redacts ends.
    "apostrophe": lambda uri: uri.replace("%27", "'"),
    "space": lambda uri: uri.replace("+cAnArY", " cAnArY"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_read_that_fails_reports_it_without_the_password(
    planted: Planted, wrong: str, spark: SparkSession
) -> None:
    """Guards: the driver's text for what it cannot parse, which quotes it; Spark's whole trace."""
    cdc.register(spark)
    given = {"uri": WRONG[wrong](planted.uri), "collections": planted.collection}
    with pytest.raises(PySparkException) as raised:
        spark.read.format("mongodb-cdc").options(
            **given, **{"server.timeout.ms": "1000"}
        ).load().count()
    assert all(each.is_in(given["uri"].encode()) for each in planted.canaries)
    error = raised.value
    text = "".join(traceback.format_exception(error)) + repr(error.args) + str(error)
    assert "Remedy" in text
    assert not any(each.is_in(text.encode()) for each in planted.canaries), text


# --- as a user runs it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A folder with all that a run writes, but for `secret`; Spark writes its event log there."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        for name in ("events", "local"):
            (self.folder / name).mkdir(exist_ok=True)
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("PYSPARK_")}
        return {**inherited, **with_spark_settings(self.settings), "PYTHONPATH": path()}

    def said(self, name: str) -> IO[bytes]:
        """What a program's output goes into."""
        (self.folder / "said").mkdir(exist_ok=True)
        return (self.folder / "said" / name).open("wb")

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{self.folder / 'events'}",
            "spark.local.dir": str(self.folder / "local"),
            "spark.log.level": "INFO",
        }

    @property
    def events(self) -> str:
        found = (self.folder / "events").rglob("*")
        return "".join(each.read_text(errors="replace") for each in found if each.is_file())


def path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def ran(place: Place, name: str, command: list[str], environment: dict[str, str]) -> int:
    """Its exit code. What it prints goes into the place."""
    with place.said(name) as said:
        return subprocess.run(
            [sys.executable, "-m", *command],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**place.environment, **environment},
            cwd=place.folder,
            timeout=240,
            check=False,
        ).returncode


@pytest.mark.parametrize("way", slow_but([], ["plain", "env", "file"], soak=["env", "file"]))
def test_a_pipeline_writes_its_password_nowhere(planted: Planted, way: str, tmp_path: Path) -> None:
    """Guards: everything in the page *Security*, at work."""
    place, secrets = Place(tmp_path / "place"), tmp_path / "secrets"
    for folder in (place.folder, secrets):
        folder.mkdir()
    uri, environment = planted.given(way, secrets)
    lake = str(place.folder / "lake")
    given = ["-o", f"uri={uri}", "-o", f"collections={planted.collection}", "-o"]
    given += [f"sink.path={lake}"]
    with place.said("replicate") as said:
        job = subprocess.Popen(
            [sys.executable, "-m", "cdc.cli.replicate", "--available-now", *given],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**place.environment, **environment},
            cwd=place.folder,
        )
        with Watched(planted.canaries, job.pid, place.folder) as watched:
            assert job.wait(240) == 0
    assert "java" in watched.seen.values()
    assert any("python" in name for name in watched.seen.values())
    assert watched.found == set()
    assert watched.addresses
    assert watched.addresses <= LOCALS
    commands = {
        "plan": ["cdc.cli.plan", *given],
        "plan-json": ["cdc.cli.plan", "--json", *given],
        "status": ["cdc.cli.status", *given],
        "status-json": ["cdc.cli.status", "--json", *given],
    }
    if way == "plain":  # reads as the job did
        verdict = str(place.folder / "verdict.json")
        commands["verify"] = ["cdc.cli.verify", "--json", verdict, *given]
    for name, command in commands.items():
        assert ran(place, name, command, environment) == 0, name
    assert "SparkListenerSQLExecutionStart" in place.events
    assert "QueryProgressEvent" in place.events
    assert reported(planted.canaries, place.folder) == []


@pytest.mark.slow
def test_a_pipeline_that_fails_writes_its_password_nowhere(
    planted: Planted, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    for number, (wrong, change) in enumerate(WRONG.items()):
        given = ["-o", f"uri={change(planted.uri)}", "-o", f"collections={planted.collection}"]
        given += ["-o", f"sink.path={tmp_path / 'lake'}", "-o", "server.timeout.ms=1000"]
        for command in ("plan", "status", *(["replicate", "verify"] if number == 0 else [])):
            assert ran(place, f"{wrong}-{command}", [f"cdc.cli.{command}", *given], {}) in (1, 2, 3)
    assert reported(planted.canaries, tmp_path) == []


# All that was found to make Spark write down the options of a source.
STATEMENTS = """
import os, sys
import cdc
from cdc.pipeline.spark.spark_session import session
spark = session("statements", "local[1]")
cdc.register(spark)
uri, collection, folder = os.environ["GIVEN"], sys.argv[1], sys.argv[2]
given = {"uri": uri, "collections": collection, "document.format": "json"}
rows = spark.read.format("mongodb-cdc").options(**given).load()
rows.createOrReplaceTempView("v")
rows.write.format("delta").save(folder)
options = f"uri '{uri}', collections '{collection}'"
spark.sql(f"CREATE TEMPORARY VIEW w USING `mongodb-cdc` OPTIONS ({options})")
print(spark.table("w").count())
spark.sql("EXPLAIN EXTENDED SELECT * FROM w").show(100, False)
"""


@pytest.mark.slow
def test_statements_on_a_source_whose_uri_is_given_in_plain_leave_it_in_no_event_log(
    planted: Planted, tmp_path: Path
) -> None:
    """Guards: plans of commands, which show options, that of CREATE VIEW as they were written."""
    place = Place(tmp_path)
    arguments = [planted.collection, str(tmp_path / "lake")]
    with place.said("statements") as said:
        done = subprocess.run(
            [sys.executable, "-c", STATEMENTS, *arguments],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**place.environment, "GIVEN": planted.uri},
            cwd=tmp_path,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, (tmp_path / "said" / "statements").read_text()[-2000:]
    assert "CreateTempViewUsing" in place.events
    assert "redacted" in place.events
    assert reported(planted.canaries, tmp_path) == []


@pytest.mark.slow
def test_under_spark_submit_neither_ui_nor_event_log_shows_a_password_of_the_command_line(
    planted: Planted, tmp_path: Path
) -> None:
    """Guards: Spark shows and logs the JVM's own command line, a program's arguments included."""
    place, [port] = Place(tmp_path), find_free_ports(1)
    settings = {
        **place.settings,
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
    }
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    submit += ["--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
    submit += [part for each in settings.items() for part in ("--conf", "=".join(each))]
    given = ["-o", f"uri={planted.uri}", "-o", f"collections={planted.collection}"]
    given += ["-o", f"sink.path={tmp_path / 'lake'}"]
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**place.environment, **own}
    with place.said("submit") as said:
        job = subprocess.Popen(
            [*submit, str(ROOT / "jobs" / "replicate.py"), *given],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tmp_path,
            start_new_session=True,
        )
        try:
            pages = dict(fetched(f"http://127.0.0.1:{port}", job))
        finally:
            os.killpg(job.pid, signal.SIGTERM)
            job.wait(120)
    [environment_reported] = (each for name, each in pages.items() if name.endswith("/environment"))
    assert "sun.java.command" in environment_reported
    assert "redacted" in environment_reported
    assert "mongodb-cdc" in pages["/StreamingQuery/"]
    leaking = [
        name
        for name, page in pages.items()
        if any(each.is_in(page.encode()) for each in planted.canaries)
    ]
    assert leaking == []
    assert "sun.java.command" in place.events
    assert reported(planted.canaries, tmp_path) == []


def fetched(base: str, job: subprocess.Popen[bytes]) -> Iterator[tuple[str, str]]:
    """The pages of the UI and of its REST interface, once three statements have been executed."""
    api = f"{base}/api/v1/applications"
    while len(executed := statements(api)) < 3:
        assert job.poll() is None, "the job ended by itself"
        time.sleep(0.2)
    [application] = json.loads(page(api))
    own = f"/api/v1/applications/{application['id']}"
    for name in (
        *("/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/"),
        "/StreamingQuery/",
        *(f"/SQL/execution/?id={each['id']}" for each in executed),
        *(f"{own}/{each}" for each in ("environment", "jobs", "stages?details=true", "executors")),
        f"{own}/sql?details=true&length=1000",
    ):
        yield name, page(base + name)


def statements(api: str) -> list[Any]:
    try:
        [application] = json.loads(page(api))
        found = json.loads(page(f"{api}/{application['id']}/sql?details=false&length=1000"))
        return [each for each in found if each["status"] == "COMPLETED"]
    except (OSError, ValueError):
        return []


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode(errors="replace"))
