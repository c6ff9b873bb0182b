"""Names of databases, collections and fields are data: in a statement, in a path, on a terminal."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from cdc.cli import plan, replicate, status, verify
from cdc.delta.columns import Columns, TypedColumn
from cdc.delta.log import Target
from cdc.delta.sql import literal, quoted
from cdc.demo import ReplicaSet
from cdc.model import Namespace
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal

NASTY = st.text("ab`'\"\\$.;-/*%_ \n\t\0é\u202e{}()=,", max_size=12) | st.text(max_size=40)
FILLED_IN = st.sampled_from(
    ["${env:HOME}", "${spark.app.name}", "\\'", "`", "\\", "'; DROP TABLE t; --"]
)
TEXTS = st.lists(NASTY | FILLED_IN, max_size=4).map("".join)
# A session of Spark is none that hypothesis could make anew for each example.
ON_SPARK = settings(
    max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_numbers = itertools.count(1)


def parser(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().sqlParser()


@ON_SPARK
@given(text=TEXTS)
def test_a_string_in_a_statement_is_that_string_to_spark(spark: SparkSession, text: str) -> None:
    assert parser(spark).parseExpression(literal(text)).value().toString() == text


@ON_SPARK
@given(parts=st.lists(TEXTS.filter(bool), min_size=1, max_size=3))
def test_the_parts_of_a_name_in_a_statement_are_those_parts_to_spark(
    spark: SparkSession, parts: list[str]
) -> None:
    """But for `${`, which no base path and no template may hold."""
    parts = [re.sub(r"\$\{+", "$", part) for part in parts]
    found = parser(spark).parseMultipartIdentifier(".".join(map(quoted, parts)))
    assert [found.apply(n) for n in range(found.size())] == parts


PATHS = st.lists(st.lists(TEXTS.filter(bool), min_size=1, max_size=3), min_size=1, max_size=3)


@settings(ON_SPARK, max_examples=50)
@given(paths=PATHS)
def test_the_fields_that_columns_take_are_names_and_no_code(
    spark: SparkSession, paths: list[list[str]]
) -> None:
    """Guards: the document made again of its columns, which is one long expression."""
    _are_names_and_no_code(spark, paths)


@pytest.mark.slow
@ON_SPARK
@given(paths=PATHS)
def test_the_fields_that_columns_take_are_names_and_no_code_in_many_examples(
    spark: SparkSession, paths: list[list[str]]
) -> None:
    _are_names_and_no_code(spark, paths)


def _are_names_and_no_code(spark: SparkSession, paths: list[list[str]]) -> None:
    own = {(f"c{n}", *path) for n, path in enumerate(paths)}
    columns = Columns(tuple(TypedColumn(path[0], T.LongType(), path) for path in sorted(own)))
    parsed = parser(spark).parseExpression(_text(columns))
    names = json.loads(parsed.toJSON())
    reported = {node["value"] for node in names if node["class"].endswith(".Literal")}
    read = {node["nameParts"] for node in names if node["class"].endswith("UnresolvedAttribute")}
    assert {name for path in own for name in path[1:]} <= reported
    assert all(part.strip("[]").startswith(("_", "c", "name", "each")) for part in read)


def _text(columns: Columns) -> str:
    from cdc.delta.columns.rescued import document_text

    return document_text(columns.columns)


COMMENTS = ["it's", "\\", "\\' STRING) USING csv --", "${env:HOME}", "`a``b`", "x\ny", "\u202e"]


def test_what_a_column_was_made_of_is_kept_in_a_catalog_as_it_is(spark: SparkSession) -> None:
    """Guards: the name of a field in the text of CREATE TABLE."""
    target = Target.named(["injected", f"t{os.getpid()}_{next(_numbers)}"])
    columns = [
        TypedColumn(f"c{n}", T.StringType(), (comment,)).field()
        for n, comment in enumerate(COMMENTS)
    ]
    columns += [T.StructField("s", T.StructType([T.StructField("a`b'c\\", T.LongType())]))]
    target.create(spark, T.StructType(columns), {"a'b\\": "c'${env:HOME}"}, ["c0"])
    assert target.read(spark).schema.fields == columns
    assert target.properties(spark)["a'b\\"] == "c'${env:HOME}"


# --- the whole way -------------------------------------------------------------------------------

DB = "evil`';--é"
PLAIN = [
    "/tmp/pwned",
    "a/./b",
    "a\nb",
    "x\u202ey",
    "x" * 200,
    "\x1bpwned\x07",
    "%2e%2e/a",
]
# To `collections` they are regular expressions, if they are not written as pairs.
SPECIAL = ["[/red]", "*'; DROP TABLE x; --`", "(a|b)?"]
DOCUMENT = {
    "`": 1,
    "a'b": {"\\'": 2, "${env:HOME}": 3},
    "../x": "\x1b[31m",
    "'; DROP TABLE x; --": None,
    "é\u202e": "x",
    "y" * 1000: 4,
}
COLUMNS = {
    "tick": "bigint from ````",
    "quote": "bigint from `a'b`.`\\'`",
    "home": "bigint from `a'b`.`${env:HOME}`",
    "drop": "variant from `'; DROP TABLE x; --`",
}


@pytest.mark.slow
def test_nasty_names_are_copied_followed_and_verified_and_nothing_is_written_elsewhere(
    spark: SparkSession,
    mongod: ReplicaSet,
    mongo: MongoClient[dict[str, Any]],
    tmp_path: Path,
) -> None:
    database, names = mongo[f"{DB}{os.getpid()}"], [*PLAIN, *SPECIAL]
    for name in names:
        database[name].insert_many({"_id": n, **DOCUMENT} for n in range(3))
    lake = tmp_path / "home" / "lake"
    file = tmp_path / "pipeline.toml"
    listed = [
        *(f"{database.name}.{name}" for name in PLAIN),
        *([database.name, n] for n in SPECIAL),
    ]
    columns = ", ".join(f"{name} = {json.dumps(text)}" for name, text in COLUMNS.items())
    file.write_text(
        f"[source]\nuri = {json.dumps(mongod.uri)}\ncollections = {json.dumps(listed)}\n"
        f"[sink]\npath = {json.dumps(str(lake))}\n"
        f"[table]\ncolumns = {{ {columns} }}\n"
        f"[[override]]\nmatch = {json.dumps(listed[0])}\nmirror = 'evil_{{db}}.m_{{coll}}'\n"
    )

    def run(program: Any, *arguments: str) -> str:
        done = CliRunner().invoke(program.main, ["--config", str(file), *arguments])
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
        return done.output

    before = {path for path in tmp_path.rglob("*") if lake not in path.parents}
    try:
        run(plan)
        assert "[/red]" in run(plan, "--json")
        run(replicate, "--available-now")
        for name in names:
            database[name].update_one({"_id": 1}, {"$set": {"n": 1}})
            database[name].delete_one({"_id": 2})
        run(replicate, "--available-now")
        assert run(verify).count(": equal; 2 documents") == len(names)
        assert "[/red]" in run(status)
        config = configuration.load(str(file))
        table = config.table("mirror", Namespace(database.name, names[0]))
        assert table is not None
        [row] = table.target.read(spark).where("key = '1'").collect()
        assert (row.tick, row.quote, row.home) == (1, 2, 3)
    finally:
        mongo.drop_database(database.name)
    after = {path for path in tmp_path.rglob("*") if lake not in path.parents}
    assert after - before == {lake.parent, lake}
    assert not Path("/tmp/pwned").exists()


@pytest.mark.parametrize("name", ["[/red]", "[bold]x", ":smile:", "\x1b]0;x\x07", "a\u202eb"])
def test_a_name_is_shown_as_it_is_and_commands_no_terminal(name: str) -> None:
    said = io.StringIO()
    Terminal(file=said, width=80, force_terminal=True).print(f"shop.{name}: equal")
    shown = name.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\u202e", "\\u202e")
    assert said.getvalue() == f"shop.{shown}: equal\n"


@pytest.mark.parametrize("environment", [{"COLUMNS": "80"}, {"FORCE_COLOR": "1", "TERM": "dumb"}])
def test_what_goes_to_a_pipe_is_not_cut_whatever_the_environment_says(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    said = io.StringIO()
    Terminal(file=said).print("shop." + "a b " * 50)
    assert "a b " * 50 in said.getvalue()
