"""What a newcomer reads first of a mistake about the source, by `plan`, which the quick start
has him call before all others: a few lines that name it and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pymongo.database import Database

from cdc.cli.commands import main
from cdc.demo import ReplicaSet
from cdc.demo.mongod import Member, embedded_mongod, find_free_ports
from cdc.mongo.connection import unreachable
from tests.cli.first_errors import require_short
from tests.mongo.access import SECRET, Guarded
from tests.mongo.capture import Document, filled
from tests.mongo.network import Network

# Where no server is to be found. Where there is one, nobody has to wait for the end of its time.
_QUICK = "server.timeout.ms=1000"


@contextmanager
def server(folder: Path, *arguments: str) -> Iterator[str]:
    """The address of a server that nobody has made a replica set of."""
    common = ["--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25"]
    [port] = find_free_ports(1)
    member = Member(port, embedded_mongod(), [*common, *arguments], folder / str(port))
    member.launch()
    try:
        member.wait_answering()
        yield member.host
    finally:
        member.kill()


def planned(uri: str, collections: str, *options: str) -> Result:
    given = [f"uri={uri}", f"collections={collections}", "sink.path=nowhere", *options]
    return CliRunner().invoke(main, ["plan", *(part for each in given for part in ("-o", each))])


def test_a_server_that_is_no_replica_set_is_reported_so(tmp_path: Path) -> None:
    with server(tmp_path) as host:
        alone = planned(f"mongodb://{host}", "shop.orders")
        named = planned(f"mongodb://{host}/?replicaSet=rs0", "shop.orders", _QUICK)
    assert (alone.exit_code, named.exit_code) == (1, 3)
    require_short(alone.stderr, ["not a member of a replica set", "--replSet", "rs.initiate()"])
    require_short(named.stderr, ["replica set that its option replicaSet names", "remove it"])


@pytest.mark.parametrize("query", ["", "/?replicaSet=rs0", "/?directConnection=true"])
def test_a_replica_set_that_was_never_initiated_is_reported_so(tmp_path: Path, query: str) -> None:
    with server(tmp_path, "--replSet", "rs0") as host:
        done = planned(f"mongodb://{host}{query}", "shop.orders", _QUICK)
    assert done.exit_code in (1, 3)
    require_short(done.stderr, ["rs.initiate()"])


# The URI of the server, what is put in the place of what in it, and what is said.
LEADING = {
    "a wrong port": ("mongodb://127.0.0.1:{free}", 3, ["nothing listens at 127.0.0.1:{free}"]),
    "a wrong port and the right name of the replica set": (
        "mongodb://127.0.0.1:{free}/?replicaSet=rs0",
        3,
        ["nothing listens at 127.0.0.1:{free}", "port in 'uri'"],
    ),
    "a host that there is not": (
        "mongodb://mongo.invalid:27017",
        3,
        ["the host name cannot be resolved: mongo.invalid:27017", "host in 'uri'"],
    ),
    "a name in DNS that there is not": (
        "mongodb+srv://cluster0.invalid",
        3,
        ["DNS does not resolve", "mongodb+srv"],
    ),
    "another replica set": (
        "{uri}x",
        3,
        ["replica set that its option replicaSet names", "Correct replicaSet"],
    ),
    "TLS where there is none": ("{uri}&tls=true", 3, ["TLS", "tls from 'uri'"]),
    "an option of uri that there is not": (
        "{uri}&retryRead=true",
        2,
        ["'uri'", "after the question mark"],
    ),
    "a replica set that is asked for shards": (
        "{uri} shards.direct=true",
        1,
        ["'shards.direct'", "remove the option"],
    ),
}


@pytest.mark.parametrize("what", LEADING)
def test_a_uri_that_leads_elsewhere_is_reported_by_what_is_there(
    what: str, mongod: ReplicaSet
) -> None:
    uri, code, says = LEADING[what]
    [free] = find_free_ports(1)
    uri, *more = uri.format(uri=mongod.uri, free=free).split()
    done = planned(uri, "shop.orders", *more, *([_QUICK] if code == 3 else []))
    assert done.exit_code == code, done.output
    require_short(done.stderr, [part.format(free=free) for part in says])


def test_a_member_that_its_replica_set_knows_by_another_address_is_reported_by_that_one() -> None:
    """As with a container, whose own name or port is not known outside."""
    with ReplicaSet() as there:
        [member] = there.members
        network = Network([member.port])
        with there.client() as client:
            config = client.admin.command("replSetGetConfig")["config"]
            config["members"][0]["host"], config["version"] = network.hosts[0], 2
            client.admin.command("replSetReconfig", config)
        network.close()
        done = planned(f"mongodb://{member.host}", "shop.orders", _QUICK)
    assert done.exit_code == 3, done.output
    require_short(done.stderr, [f"nothing listens at {network.hosts[0]}", "rs.conf()"])


def test_a_primary_that_is_missing_is_not_taken_for_a_wrong_address() -> None:
    with ReplicaSet(members=2) as there:
        there.primary().kill()
        done = planned(there.uri, "shop.orders", _QUICK)
    assert done.exit_code == 3, done.output
    require_short(done.stderr, ["no suitable server answered in time", "that the server is up"])


def test_what_is_looked_for_in_vain_is_reported_long_before_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: half a minute of silence."""
    monkeypatch.setattr(unreachable, "_PATIENCE_SECONDS", 0.1)
    [free] = find_free_ports(1)
    planned(f"mongodb://127.0.0.1:{free}", "shop.orders", _QUICK)
    assert caplog.messages == [
        f"nothing listens at 127.0.0.1:{free}; looking for a server for 1 s (server.timeout.ms)"
    ]


def test_a_user_who_is_not_let_in_is_reported_why(guarded: Guarded) -> None:
    filled(guarded.client["first"], "orders", [1])
    refusals: dict[str, list[str]] = {
        guarded.uri("root", f"{SECRET}x"): ["and that password", "authSource", "'uri'"],
        guarded.replica_set.uri: ["'uri' names no user", "mongodb://user:password@host"],
        guarded.user(): ['changeStream on {db: "first"', "'Privileges'"],
    }
    for uri, says in refusals.items():
        done = planned(uri, "first.orders")
        assert done.exit_code == 1, done.output
        require_short(done.stderr, says)


def test_the_nearest_names_are_of_those_that_the_user_may_see(guarded: Guarded) -> None:
    for db in ("shops", "shopx"):
        filled(guarded.client[db], "orders", [1])
    reader = guarded.user(roles=[{"role": "read", "db": "shops"}, *guarded.by_uuid])
    try:
        for uri, near in (
            (guarded.uri("root"), "(nearest: shops.orders, shopx.orders)"),
            (reader, "(nearest: shops.orders)"),
        ):
            done = planned(uri, "shops.order")
            assert done.exit_code == 1, done.output
            require_short(done.stderr, [near])
    finally:
        for db in ("shops", "shopx"):
            guarded.client.drop_database(db)


# Options of a run on a database with the collection `orders` and the view `recent`, and what is
# said.
Missing = tuple[str, list[str], int, list[str]]
MISSING: dict[str, Missing] = {
    "a collection that there is not": (
        "{db}.order",
        [],
        1,
        [
            "no collection {db}.order (nearest: {db}.orders)",
            "Check 'collections'",
            "missing.collections = wait",
        ],
    ),
    "collections that there are not": (
        "{db}.Orders,{db}.zzz,{db}.orders",
        [],
        1,
        ["no collection {db}.Orders (nearest: {db}.orders), {db}.zzz."],
    ),
    "a database that there is not": (
        "{db}x.orders",
        [],
        1,
        ["no collection {db}x.orders (nearest: {db}.orders)"],
    ),
    "an expression that matches nothing": (
        r"{db}\.x.*",
        [],
        1,
        [r"No collection matches '{db}\.x.*'.", "match", "missing.collections = wait"],
    ),
    "an expression that nearly matches something, beside one that does": (
        r"{db}\.oders.*, {db}\.o.*",
        [],
        1,
        [r"No collection matches '{db}\.oders.*' (nearest: {db}.orders)."],
    ),
    "an expression that matches but a view": (
        r"{db}\.rec.*",
        [],
        1,
        [r"No collection matches '{db}\.rec.*'."],
    ),
    "a view": (
        "{db}.recent",
        [],
        1,
        ["{db}.recent", "is a view", "Capture the underlying collection"],
    ),
    "a collection of the server's own": (
        "local.oplog.rs",
        [],
        2,
        ["local.oplog.rs", "database of the server itself", "Leave it out"],
    ),
    "images that are not recorded": (
        "{db}.orders",
        ["images=required"],
        1,
        ["{db}.orders does not record", 'collMod: "orders"', "images to auto"],
    ),
    "a start in the future": (
        "{db}.orders",
        ["mode=timestamp", "start=2100-01-01"],
        2,
        ["'start' is later than the server's time", "Set it to an earlier time"],
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_not_there_as_it_has_to_be_is_named(
    what: str, mongod: ReplicaSet, database: Database[Document]
) -> None:
    filled(database, "orders", [1], images=False)
    database.create_collection("recent", viewOn="orders", pipeline=[])
    collections, options, code, says = MISSING[what]
    done = planned(mongod.uri, collections.format(db=database.name), *options)
    assert done.exit_code == code, done.output
    require_short(done.stderr, [part.format(db=database.name) for part in says])


def test_status_before_any_run_says_that_there_was_none(
    mongod: ReplicaSet, database: Database[Document], tmp_path: Path
) -> None:
    filled(database, "orders", [1])
    given = [f"uri={mongod.uri}", f"collections={database.name}.orders", f"sink.path={tmp_path}"]
    done = CliRunner().invoke(main, ["status", *(p for each in given for p in ("-o", each))])
    assert done.exit_code == 0, done.output
    assert f"none yet ({tmp_path}/_checkpoint)" in done.stdout
    assert "not begun" in done.stdout
