"""`plan` reports what a run would meet, and ends with the exit code that the run would end with."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pymongo.database import Database

from cdc import options as declared
from cdc.cli import plan
from cdc.demo import ReplicaSet
from cdc.model import Copying, Namespace, Selection
from cdc.mongo.collections import enumerator
from cdc.mongo.connection import OPLOG, PRE_IMAGES, Need, connect
from cdc.mongo.connection.privileges import optional_needs, required_needs
from cdc.mongo.inspect import Work
from tests.jvm import run_without_java
from tests.mongo.access import SECRET, Guarded
from tests.mongo.capture import Client, Document, asked, failing
from tests.mongo.forgetful import forgetful, push_out

IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}

MIB = 2**20
Run = Callable[..., Result]


@pytest.fixture
def run(mongod: ReplicaSet, database: Database[Document], tmp_path: Path) -> Run:
    """Calls `plan` in this process, for the collection `orders` of `database`."""
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'[source]\nuri = "{mongod.uri}"\ncollections = ["{database.name}.orders"]\n'
        "split.size.mb = 1\nsnapshot.splits.per.batch = 2\n"
        f'[sink]\npath = "{tmp_path / "lakehouse"}"\n'
    )

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(plan.main, ["--config", str(file), *arguments])

    return call


@pytest.fixture
def orders(database: Database[Document]) -> Any:
    """Five MiB."""
    coll = database.create_collection("orders", **IMAGES)
    coll.insert_many([{"_id": n, "pad": "x" * 10_000} for n in range(500)])
    return coll


def reported(result: Result, code: int = 0) -> dict[str, Any]:
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_each_line_is_true(orders: Any, mongo: Client, mongod: ReplicaSet, run: Run) -> None:
    """Guards: sizes, splits, images and the oplog's window are those of the server."""
    found = reported(run("--json", "--rate", "2.5"))
    [work] = found["collections"]
    stats = orders.database.command("collStats", "orders")
    namespace = Namespace(orders.database.name, "orders")
    cut = enumerator.ranges(connect(mongod.uri, 3000), Copying(namespace, b"", None), 1000, MIB)
    assert work["documents"] == stats["count"] == 500
    assert work["bytes"] == stats["size"]
    assert work["splits"] == len(cut)
    assert (work["namespace"], work["strategy"]) == (str(namespace), "splitVector")
    assert work["images"] is True
    seconds = stats["size"] / MIB / 2.5
    assert math.isclose(found["copy"]["seconds"], seconds)
    assert found["copy"]["batches"] == math.ceil(len(cut) / 2)
    assert math.isclose(found["copy"]["batch_seconds"], 2 / 2.5)
    first = next(mongo.local["oplog.rs"].find().sort("$natural", 1).limit(1))["ts"]
    assert found["oplog"]["first"] == f"{first.time}:{first.inc}"
    assert found["problems"] == []


def test_no_document_is_read(orders: Any, mongo: Client, run: Run) -> None:
    """Guards: a plan for a terabyte; nor is Spark started."""
    for refused in (["none"], ["splitVector"]):
        with (
            failing(mongo, "alwaysOn", failCommands=refused, errorCode=13),
            asked(orders.database) as operations,
        ):
            reported(run("--json"))
        assert operations
        assert sum(each.get("docsExamined", 0) for each in operations) == 0


def test_the_tables_report_the_same(orders: Any, run: Run) -> None:
    result = run("--rate", "0.001")
    assert result.exit_code == 0, result.output
    for text in (f"{orders.full_name} ", "splitVector", "4.8 MiB in 5 splits", "3 micro-batches"):
        assert text in result.stdout
    assert "at 0.001 MiB/s" in result.stdout
    assert "local.oplog.rs), LESS than a micro-batch" in result.stdout


@pytest.mark.parametrize(
    ("overrides", "code", "said"),
    [
        (["uri=nonsense"], 2, "uri"),
        (["imags=auto"], 2, "images"),
        (["mode=timestamp"], 2, "start"),
        (["mode=timestamp", "start=2105-01-01"], 2, "later than the server's time"),
        (["uri=mongodb://u:c4nary@127.0.0.1:1", "server.timeout.ms=300"], 3, "port"),
        (["collections=nowhere.nothing"], 1, "nowhere.nothing"),
        (["collections=nowhere\\..*"], 1, "matches"),
        (["images=required"], 1, "collMod"),
    ],
)
def test_a_run_that_could_not_succeed_is_reported_by_exit_code_and_sentence(
    database: Database[Document], run: Run, overrides: list[str], code: int, said: str
) -> None:
    """Guards: the same codes as the run's own."""
    database.create_collection("orders")
    result = run(*(argument for each in overrides for argument in ("-o", each)))
    assert result.exit_code == code, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert "Remedy: " in line
    assert "c4nary" not in result.output


def test_a_start_that_the_oplog_reaches_copies_nothing(orders: Any, run: Run) -> None:
    found = reported(run("--json", "-o", "mode=timestamp", "-o", "start=2020-01-01"))
    assert found["copy"]["splits"] == found["copy"]["seconds"] == 0
    assert found["collections"][0]["strategy"] == "none"


def test_a_start_that_the_oplog_does_not_reach_is_lost_history(run: Run) -> None:
    """Guards: exit code 4, before a run that would end with it."""
    with forgetful() as server, server.client() as client:
        client.shop.orders.insert_one({"_id": 0})
        start = client.admin.command("ping")["operationTime"]
        push_out(client, start)
        given = (f"uri={server.uri}", "collections=shop.orders", "mode=timestamp")
        given += (f"start={start.time}:{start.inc}",)
        found = reported(run("--json", *(part for each in given for part in ("-o", each))), 4)
        assert [each["error"] for each in found["problems"]] == ["HistoryLost"]


def test_what_is_waited_for_is_reported_and_is_no_problem(orders: Any, run: Run) -> None:
    db = orders.database.name
    names = f"collections={db}.orders,{db}.later,{db}\\.x.*"
    awaited = ("-o", names, "-o", "missing.collections=wait")
    found = reported(run("--json", *awaited))
    assert found["missing"] == [f"{db}.later", f"'{db}\\.x.*'"]
    assert [each["namespace"] for each in found["collections"]] == [f"{db}.orders"]
    shown = run(*awaited).stdout
    assert f"not created yet: {db}.later, '{db}\\.x.*'\n" in shown


def test_images_that_are_not_recorded_are_a_warning_with_the_command_that_records_them(
    database: Database[Document], run: Run
) -> None:
    """The command is run as it is printed, but for the form that a driver takes it in."""
    database.create_collection("it's")
    option = ("-o", f'collections=[["{database.name}", "it\'s"]]')
    shown = run(*option).stdout
    assert "'before' is null, and 'exact' is false" in shown
    [(db, coll)] = re.findall(
        r'db\.getSiblingDB\("(.*?)"\)\.runCommand\(\{collMod: "(.*?)",'
        r" changeStreamPreAndPostImages: \{enabled: true\}\}\)",
        shown,
    )
    assert db == database.name
    database.command("collMod", coll, changeStreamPreAndPostImages={"enabled": True})
    assert "WARNING" not in run(*option).stdout
    assert reported(run("--json", *option))["warnings"] == []


def test_all_problems_are_reported_at_once(database: Database[Document], run: Run) -> None:
    """Guards: one after the other would take an operator as many attempts."""
    database.create_collection("orders")
    names = f"collections={database.name}.orders,{database.name}.gone"
    found = reported(run("--json", "-o", names, "-o", "images=required"), 1)
    assert [each["error"] for each in found["problems"]] == ["UnsuitableSource", "ImagesMissing"]
    assert [each["images"] for each in found["collections"]] == [False]


# --- with access control -------------------------------------------------------------------------


@pytest.fixture
def shop(guarded: Guarded) -> Namespace:
    coll = guarded.client["planned"]["orders"]
    coll.drop()
    coll.insert_many([{"_id": n, "pad": "x" * 10_000} for n in range(500)])
    return Namespace("planned", "orders")


def planned(uri: str, namespace: Namespace, code: int = 0) -> dict[str, Any]:
    given = (f"uri={uri}", f"collections={namespace}", "split.size.mb=1", "sink.path=/lake")
    arguments = [argument for each in given for argument in ("-o", each)]
    result = CliRunner().invoke(plan.main, [*arguments, "--json"])
    assert SECRET not in result.output
    return reported(result, code)


def test_what_is_better_to_have_is_reported_and_does_not_fail(
    guarded: Guarded, shop: Namespace
) -> None:
    """Guards: without splitVector, collStats and local a run succeeds, as documented."""
    needs = required_needs(Selection.of([shop]))
    found = planned(guarded.user(needs), shop)
    held = {(each["action"], each["coll"]): each["held"] for each in found["privileges"]}
    assert held == {
        ("find", ""): True,
        ("changeStream", ""): True,
        ("listCollections", ""): True,
        ("splitVector", "orders"): False,
        ("collStats", "orders"): False,
        ("find", "oplog.rs"): False,
        ("find", "system.preimages"): False,
    }
    [work] = found["collections"]
    assert work["strategy"] == "sampling"
    assert "collStats is refused" in work["size_by"]
    assert 0.9 < work["bytes"] / (500 * 10_030) < 1.1
    assert found["oplog"] is None

    found = planned(guarded.user([*needs, *optional_needs([shop])]), shop)
    assert all(each["held"] for each in found["privileges"])
    assert found["collections"][0]["strategy"] == "splitVector"
    assert found["oplog"]["reported_by"] == str(OPLOG)


@pytest.mark.parametrize("action", ["find", "changeStream", "listCollections"])
def test_what_a_run_cannot_do_without_fails_and_the_rest_is_reported(
    guarded: Guarded, shop: Namespace, action: str
) -> None:
    needs = [need for need in required_needs(Selection.of([shop])) if need.action != action]
    found = planned(guarded.user(needs), shop, 1)
    [problem] = found["problems"]
    assert problem["error"] == "NotPermitted"
    assert f"lacks {action} on" in problem["message"]
    held = {each["action"]: each["held"] for each in found["privileges"] if each["required"]}
    assert held == {name: name != action for name in held}
    assert len(found["collections"]) == (1 if action == "changeStream" else 0)


def test_the_tables_show_what_is_missing_and_where(guarded: Guarded, shop: Namespace) -> None:
    uri = guarded.user([*required_needs(Selection.of([shop])), Need("splitVector", *shop)])
    given = (f"uri={uri}", f"collections={shop}", "sink.path=/lake")
    arguments = [argument for each in given for argument in ("-o", each)]
    result = CliRunner().invoke(plan.main, arguments)
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines()]
    shown = {(row[1], row[2]): row[3:5] for row in rows if len(row) == 6}
    assert shown["changeStream", "yes"] == ["planned.*", ""]
    assert shown["splitVector", "no"] == ["planned.orders", ""]
    assert shown["collStats", "no"] == ["", "planned.orders"]
    assert shown["find", "no"] == ["", "local.oplog.rs"]


# --- what it costs -------------------------------------------------------------------------------


def test_it_works_where_there_is_no_java(orders: Any, mongod: ReplicaSet) -> None:
    """Guards: no Spark is started; an operator's laptop is enough."""
    given = (f"uri={mongod.uri}", f"collections={orders.full_name}", "sink.path=/lake")
    done = run_without_java("cdc.cli.plan", given)
    assert done.returncode == 0, done.stderr
    assert "oplog: reaches back" in done.stdout


def test_the_estimate_counts_what_is_copied_only() -> None:
    options = declared.parse({"uri": "mongodb://h", "collections": "a.b"})
    copied = Work(Namespace("a", "b"), 1, 640 * MIB, "", "sampling", "", 10, True)
    small = Work(Namespace("a", "c"), 1, 2 * MIB, "", "single", "", 1, True)
    found = plan.estimate([copied, small], options, 20.0)
    assert (found.splits, found.batches) == (11, 2)
    assert math.isclose(found.seconds, 642 / 20)
    assert math.isclose(found.batch_seconds, 512 / 20)
    assert plan.estimate([], options, 20.0).batches == 0
    spread = replace(copied, shards=("s1", "s2", "s3"))
    assert math.isclose(plan.estimate([spread], options, 20.0).batch_seconds, (8 + 2) * 64 / 20)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("", None),
        ("read.by=change_stream", "'read.by' is change_stream"),
        ("images=off table.mirror=", "'images' asks for none that are recorded"),
        ("fields=pad", None),
    ],
)
def test_how_changes_are_read_is_printed_with_the_reason(
    run: Run, orders: Any, option: str, reason: str | None
) -> None:
    given = [part for each in filter(None, option.split(" ")) for part in ("-o", each)]
    assert reported(run("--json", "-", *given))["changes"] == {
        "oplog": reason is None,
        "reason": reason,
    }
    expected = f"because {reason}" if reason else "read from the oplog"
    assert expected in run(*given).output


def test_what_the_oplog_does_not_have_is_a_problem_if_changes_must_be_read_from_it(
    run: Run, orders: Any
) -> None:
    given = ("-o", "read.by=oplog", "-o", "snapshot.splits.per.batch=1")
    assert "read from the oplog; DDL and other exceptions end the run" in run(*given).output
    assert reported(run("--json", "-", *given))["problems"] == []
    without = ("-o", "images=off", "-o", "table.mirror=")
    found = reported(run("--json", "-", *given, *without), 1)
    [problem] = found["problems"]
    assert problem["error"] == "OplogUnsuitable"
    reason = "'images' asks for none that are recorded"
    assert reason in problem["message"]
    printed = run(*given, *without).output
    assert f"cannot be read from the oplog, because {reason}" in printed.replace("\n", " ")
    assert found["changes"] == {"oplog": False, "reason": reason}


def test_a_missing_privilege_or_image_that_keeps_changes_from_the_oplog_is_named(
    guarded: Guarded, run: Run, database: Database[Document]
) -> None:
    shop = guarded.client["roads"]
    shop.create_collection("orders", **IMAGES)
    shop.create_collection("plain")
    actions = ("find", "changeStream", "listCollections")
    needs = [Need(action, "roads") for action in actions]
    for granted, collections, reason in (
        ([], "roads.orders", "the user lacks find on local.oplog.rs and config.system.preimages"),
        ([PRE_IMAGES], "roads.orders", "the user lacks find on local.oplog.rs"),
        ([OPLOG], "roads.orders", "the user lacks find on config.system.preimages"),
        ([OPLOG, PRE_IMAGES], "roads.orders", None),
        ([OPLOG, PRE_IMAGES], "roads.plain", "no images are recorded for roads.plain"),
    ):
        uri = guarded.user([*needs, *(Need("find", *each) for each in granted)])
        found = run("--json", "-", "-o", f"uri={uri}", "-o", f"collections={collections}")
        assert reported(found)["changes"]["reason"] == reason


def test_what_an_expression_matches_and_cannot_be_captured_is_named(
    run: Run, orders: Any, database: Database[Document], caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: a view of which nobody hears that it is not copied; levels that outlive a program."""
    database.command("create", "of_orders", viewOn="orders", pipeline=[])
    database.create_collection("by_day", timeseries={"timeField": "at"})
    pattern = ("-o", rf"collections={database.name}\..*")
    kinds = {"of_orders": "view", "by_day": "timeseries"}
    named = {
        f"{database.name}.{name} matches 'collections', but is left out: it is a {what}"
        for name, what in kinds.items()
    }
    assert run(*pattern, "--log-level", "warning").exit_code == 0
    assert not named.intersection(caplog.messages)
    assert logging.getLogger("cdc").level == logging.NOTSET
    enumerator._log_left_out.cache_clear()
    assert run(*pattern).exit_code == 0
    assert named <= set(caplog.messages)
    assert run("--log-level", "loud").exit_code == 2
