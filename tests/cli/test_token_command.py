"""`mongodb-cdc token` prints what a token reports, or one sentence."""

from __future__ import annotations

import json

import pytest
from bson import json_util
from click.testing import CliRunner, Result
from pymongo import MongoClient
from pymongo.database import Database

from cdc.cli.commands import main
from tests.documents import code
from tests.mongo.capture import Document

MARK = "826B016EF0000000082B0229296E04"
# The key {_id: 1.5}, of version 1.
DATA = (
    "826B01B799000000142B022C0100296E5A1004DB6AAF36D7094D87B710EFC71205FD02461E5F6964002B0380000000"
    "0000000004"
)
TYPE_BITS = {"$binary": {"base64": "QA==", "subType": "00"}}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["token", *arguments])


def test_the_documented_token_is_reported_as_it_stands_there() -> None:
    [shown] = code("Position and resume token", "sh")
    command, _, reported = shown.partition("\n")
    result = run(command.split()[-1])
    assert result.stdout == reported


def test_a_token_is_reported_line_by_line() -> None:
    result = run(DATA)
    assert result.exit_code == 0
    lines = dict(line.split(":", 1) for line in result.stdout.splitlines())
    assert {name: text.strip() for name, text in lines.items()} == {
        "version": "1",
        "kind": "event",
        "cluster time": "1795274649:20",
        "time": "2026-11-21T15:24:09Z",
        "txn op index": "0",
        "from invalidate": "false",
        "uuid": "db6aaf36-d709-4d87-b710-efc71205fd02",
        "document key": '{"_id": {"$numberDouble": "1.5"}}',
    }


@pytest.mark.parametrize(
    "arguments",
    [
        (DATA,),
        (DATA.lower() + "\n",),
        (DATA, "--type-bits", "QA=="),
        (json.dumps({"_data": DATA, "_typeBits": TYPE_BITS}),),
        (json.dumps({"_data": DATA, "_typeBits": {"$binary": "QA==", "$type": "00"}}),),
        (json.dumps({"_data": DATA, "_typeBits": "QA=="}),),
        (json.dumps({"_data": DATA}), "--type-bits", "QA=="),
    ],
)
def test_a_token_is_taken_as_hex_and_as_json(arguments: tuple[str, ...]) -> None:
    result = run("--json", *arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "version": 1,
        "kind": "event",
        "cluster_time": "1795274649:20",
        "time": "2026-11-21T15:24:09Z",
        "txn_op_index": 0,
        "from_invalidate": False,
        "uuid": "db6aaf36-d709-4d87-b710-efc71205fd02",
        "operation_type": None,
        "document_key": {"_id": {"$numberDouble": "1.5"}},
        "operation_description": None,
        "fragment": None,
    }


def test_a_real_event_s_token_is_taken_as_the_shell_copies_it(
    mongo: MongoClient[Document], database: Database[Document]
) -> None:
    begin = mongo.admin.command("ping")["operationTime"]
    database["a"].insert_one({"_id": {"n": 0.1, "markup": "[red]:smile:"}})
    with database.watch(start_at_operation_time=begin) as stream:
        event = next(stream)
    result = run(json_util.dumps(event["_id"]))
    assert result.exit_code == 0
    assert '{"_id": {"n": {"$numberDouble": "0.1"}, "markup": "[red]:smile:"}}' in result.stdout
    assert f"{event['clusterTime'].time}:{event['clusterTime'].inc}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("",), "not hexadecimal"),
        ((MARK[:-2],), "ends in the middle"),
        ((DATA, "--type-bits", ""), "no integer"),
        ((DATA, "--type-bits", "QQ"), "base64"),
        ((DATA, "--type-bits", "é"), "base64"),
        ((json.dumps({"_data": DATA}),), "no integer"),
        ((json.dumps({"_data": DATA, "_typeBits": 7}),), "base64"),
        ((json.dumps({"_data": 7}),), "`_data`"),
        (("{",), "JSON"),
        (('{"_data":' * 100_000,), "JSON"),
        (("[]",), "not hexadecimal"),
    ],
)
def test_what_is_no_token_is_one_sentence(arguments: tuple[str, ...], reason: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Remedy:" in result.stderr
