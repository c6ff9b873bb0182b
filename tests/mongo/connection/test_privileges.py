"""With exactly the documented privileges everything works; without one it is said which."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from cdc import options as declared
from cdc import source
from cdc.errors import NotPermitted
from cdc.model import Namespace, Selection
from cdc.mongo.connection import OPLOG, Need, privileges
from cdc.mongo.connection.privileges import missing_needs, optional_needs, required_needs
from cdc.mongo.topology import discover, oplog_window
from cdc.source import inquiry
from tests.documents import DOCUMENTS, code
from tests.mongo.access import SECRET, Guarded
from tests.mongo.capture import Capture, Client, Document, contents, filled
from tests.shell import run_in_shell

_numbers = itertools.count(1)


@pytest.fixture
def shop(guarded: Guarded) -> Iterator[Database[Document]]:
    """A database of the guarded server with three MiB in `shop.orders-a.b`."""
    database = guarded.client[f"shop{next(_numbers)}"]
    coll = filled(database, "orders-a.b", [])
    coll.insert_many([{"_id": n, "pad": "x" * 52_000} for n in range(60)])
    yield database
    guarded.client.drop_database(database.name)


def orders(database: Database[Document]) -> Namespace:
    return Namespace(database.name, "orders-a.b")


def needed(database: Database[Document]) -> list[Need]:
    return required_needs(Selection.of([orders(database)]))


def start(uri: str, collections: str) -> None:
    """What a query and a job do first."""
    given = {"uri": uri, "collections": collections, "server.timeout.ms": "3000"}
    inquiry.preflight(declared.parse(given))
    source.ChangeReader(declared.parse(given), None).initialOffset()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("extra", "strategy"),
    [
        ([], "sampling"),
        (["collStats"], "sampling"),
        (["splitVector"], "splitVector"),
        (["splitVector", "collStats"], "splitVector"),
    ],
)
def test_a_user_with_the_documented_privileges_copies_and_follows(
    guarded: Guarded,
    shop: Database[Document],
    caplog: pytest.LogCaptureFixture,
    extra: list[str],
    strategy: str,
) -> None:
    """Guards: the documented table is enough, for each strategy; nothing needs `local`."""
    caplog.set_level(logging.INFO, logger="cdc.mongo.collections.split_points")
    allowed = [need for need in optional_needs([orders(shop)]) if need.action in extra]
    uri = guarded.user([*needed(shop), *allowed], guarded.by_uuid)
    start(uri, str(orders(shop)))
    pipeline = Capture(uri, str(orders(shop)), documents_per_split=None)
    pipeline.run()
    assert f"by {strategy}: " in caplog.text
    coll = shop["orders-a.b"]
    coll.update_one({"_id": 7}, {"$set": {"n": 1}})
    coll.delete_one({"_id": 8})
    pipeline.run()
    assert len(pipeline.namespaces_copied) > 2
    assert pipeline.replayed(coll) == contents(coll)


def test_the_builtin_role_read_is_enough_for_one_database(
    guarded: Guarded, shop: Database[Document]
) -> None:
    """Guards: what most users will grant."""
    uri = guarded.user(roles=[{"role": "read", "db": shop.name}])
    start(uri, str(orders(shop)))
    assert missing_needs(discover(uri, 3000).clients, needed(shop)) == []


def test_the_documented_commands_create_users_that_lack_nothing(
    guarded: Guarded, shop: Database[Document]
) -> None:
    """Guards: what a newcomer pastes into MongoDB's shell."""
    one, role, granted, several = (
        each.replace('"shop"', f'"{shop.name}"').replace("change-me", SECRET)
        for each in code("Create a user", "js")
    )
    run_in_shell(guarded.client, one)
    if guarded.by_uuid:
        guarded.client.admin.command("grantRolesToUser", "cdc", roles=guarded.by_uuid)
    start(guarded.uri("cdc"), str(orders(shop)))
    clients = discover(guarded.uri("cdc"), 3000).clients
    assert missing_needs(clients, needed(shop)) == []
    assert missing_needs(clients, optional_needs([orders(shop)])) != []
    run_in_shell(guarded.client, role)
    run_in_shell(guarded.client, granted)
    clients = discover(guarded.uri("cdc"), 3000).clients
    assert missing_needs(clients, optional_needs([orders(shop)])) == []
    run_in_shell(guarded.client, several)
    clients = discover(guarded.uri("cdcAll"), 3000).clients
    everything = required_needs(Selection.parse(r"shop\..*"))
    assert missing_needs(clients, everything) == []


@pytest.mark.parametrize("action", ["find", "changeStream", "listCollections"])
def test_a_run_without_a_privilege_fails_at_its_start_and_names_it(
    guarded: Guarded, shop: Database[Document], action: str
) -> None:
    """Guards: not in the middle of a copy, and not 'refused (code 13)'."""
    left = [need for need in needed(shop) if need.action != action]
    uri = guarded.user(left)
    given = {"uri": uri, "collections": str(orders(shop))}
    reader = source.ChangeReader(declared.parse(given), None)  # type: ignore[arg-type]
    for begin in (lambda: inquiry.preflight(declared.parse(given)), reader.initialOffset):
        with pytest.raises(NotPermitted) as raised:
            begin()
        assert f'lacks {action} on {{db: "{shop.name}", collection: ""}}.' in str(raised.value)
        assert "Privileges" in str(raised.value)
        assert SECRET not in str(raised.value)
    commands = re.findall(r"db\.getSiblingDB\(.*?\}\)", str(raised.value))
    assert len(commands) == 2
    try:
        for command in commands:
            run_in_shell(guarded.client, command)
        inquiry.preflight(declared.parse(given))
        source.ChangeReader(declared.parse(given), None).initialOffset()  # type: ignore[arg-type]
    finally:
        guarded.client.admin.command("dropRole", "mongodbCdc")


def test_a_batch_read_does_without_change_streams(
    guarded: Guarded, shop: Database[Document]
) -> None:
    """Guards: a privilege is asked for by those who need it."""
    left = [need for need in needed(shop) if need.action != "changeStream"]
    given = {"uri": guarded.user(left), "collections": str(orders(shop)), "split.size.mb": "1"}
    reader = source.SnapshotReader(declared.parse(given), None)  # type: ignore[arg-type]
    assert len(reader.partitions()) > 1


def test_several_databases_need_the_change_stream_of_all(
    guarded: Guarded, shop: Database[Document]
) -> None:
    """Guards: a stream is opened on one database or on the deployment."""
    other = guarded.client[f"{shop.name}_other"]
    filled(other, "a", [])
    both = f"{orders(shop)},{other.name}.a"
    roles = [{"role": "read", "db": database.name} for database in (shop, other)]
    with pytest.raises(NotPermitted, match=r'changeStream on \{db: "", collection: ""\}'):
        start(guarded.user(roles=roles), both)
    start(guarded.user(required_needs(Selection.parse(both))), both)
    start(guarded.user(roles=[{"role": "readAnyDatabase", "db": "admin"}]), both)
    other.client.drop_database(other.name)


def test_a_regular_expression_needs_every_database(
    guarded: Guarded, shop: Database[Document]
) -> None:
    """Guards: listDatabases itself needs no privilege."""
    pattern = f"{shop.name}..*"
    with pytest.raises(NotPermitted, match=r'changeStream on \{db: "", collection: ""\}'):
        start(guarded.user(roles=[{"role": "read", "db": shop.name}]), pattern)
    uri = guarded.user(required_needs(Selection.parse(pattern)), guarded.by_uuid)
    start(uri, pattern)
    pipeline = Capture(uri, pattern, documents_per_split=None)
    pipeline.run()
    assert pipeline.replayed(shop["orders-a.b"]) == contents(shop["orders-a.b"])


def test_a_regular_expression_that_begins_with_a_database_needs_that_database_only(
    guarded: Guarded, shop: Database[Document]
) -> None:
    uri = guarded.user(roles=[{"role": "read", "db": shop.name}])
    pipeline = Capture(uri, f"{shop.name}\\.orders.*", documents_per_split=None)
    pipeline.run()
    shop["orders-a.b"].insert_one({"_id": "later"})
    filled(shop, "orders_new", range(3))
    filled(shop, "another_new", range(3))
    pipeline.run()
    for name in ("orders-a.b", "orders_new"):
        assert pipeline.replayed(shop[name]) == contents(shop[name])
    assert "another_new" not in {row.coll for row in pipeline.rows}


def test_what_a_role_grants_is_what_the_server_allows(
    guarded: Guarded, shop: Database[Document]
) -> None:
    """Guards: resources of all kinds, compared with the server's own answer."""
    needs = [*needed(shop), *optional_needs([orders(shop)])]
    resources = [
        {"db": shop.name, "collection": "orders-a.b"},
        {"db": shop.name, "collection": ""},
        {"db": "", "collection": "orders-a.b"},
        {"db": "", "collection": ""},
        {"db": shop.name, "collection": "another"},
        {"db": "local", "collection": "oplog.rs"},
        {"anyResource": True},
    ]
    for number, resource in enumerate(resources):
        name = f"{shop.name}_{number}"
        actions = ["find", "changeStream", "listCollections", "splitVector", "collStats"]
        granted = [{"resource": resource, "actions": actions}]
        guarded.client.admin.command("createRole", name, privileges=granted, roles=[])
        client = discover(guarded.user(roles=[name]), 3000).client
        lacking = missing_needs({"": client}, needs)
        assert lacking is not None
        held = {str(need) for need in needs} - {str(need) for need in lacking}
        assert held == {str(need) for need in needs if is_allowed(client, need)}, resource


def is_allowed(client: Client, need: Need) -> bool:
    """Whether the server does it."""
    db, coll = client[need.db], need.coll
    ask = {
        "listCollections": lambda: db.command("listCollections"),
        "splitVector": lambda: db.command(
            {"splitVector": f"{db.name}.{coll}", "keyPattern": {"_id": 1}, "maxChunkSize": 64}
        ),
        "collStats": lambda: db.command("collStats", coll),
        "find": lambda: db[coll or "any-name"].find_one({}, {"_id": 1}),
        "changeStream": lambda: db["any-name"].watch().close(),
    }
    try:
        ask[need.action]()
    except OperationFailure as error:
        if error.code != 13:
            raise
        return False
    return True


def test_the_oplog_window_is_reported_by_whom_the_user_may_ask(
    guarded: Guarded, shop: Database[Document]
) -> None:
    """Guards: without `local` by serverStatus; without both it is unknown, not an error."""
    status = {"resource": {"cluster": True}, "actions": ["serverStatus"]}
    guarded.client.admin.command("createRole", "status", privileges=[status], roles=[])
    for uri, reported_by in (
        (guarded.user([Need("find", *OPLOG)]), "local.oplog.rs"),
        (guarded.user(roles=["status"]), "serverStatus"),
    ):
        window = oplog_window(discover(uri, 3000).client)
        assert window is not None
        assert window.origin == reported_by
        assert window.first < window.last
    assert oplog_window(discover(guarded.user(needed(shop)), 3000).client) is None


def test_the_documents_print_the_privileges_as_they_are_declared() -> None:
    assert privileges.table() in DOCUMENTS


@pytest.mark.parametrize("collections", ["shop.orders", "shop.orders,crm.people", r"shop\..*"])
def test_the_declared_privileges_are_those_that_are_asked_for(collections: str) -> None:
    """Guards: table, roles of these tests and messages say the same."""
    selection = Selection.parse(collections)
    asked = {need.action for need in required_needs(selection)}
    assert asked == {action for rule in privileges.REQUIRED for action in rule.actions}
    of_one = {
        each for need in required_needs(selection) for each in (need, replace(need, shard="s"))
    }
    added = set(required_needs(selection, ("s",))) - of_one
    assert {need.action for need in added} == {"find"}
    for rule, shard in zip(privileges.REQUIRED_OF_CLUSTERS, ("", "s"), strict=True):
        for need in (need for need in added if need.shard == shard):
            assert f"`{need.db}.{need.coll}`" in rule.resources
    better = {need.action for need in optional_needs([Namespace("shop", "orders")])}
    assert better == {action for rule in privileges.OPTIONAL for action in rule.actions}
