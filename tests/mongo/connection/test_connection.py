"""Direct connections to a member or a shard are made with everything that the user's URI says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest
from pymongo.uri_parser import parse_uri

from cdc import options as declared
from cdc.demo import ReplicaSet
from cdc.demo.mongod import find_free_ports
from cdc.errors import SourceUnreachable
from cdc.mongo.connection import client, connection_uri, is_transient, members
from cdc.source import inquiry
from tests.mongo.access import SECRET, Guarded
from tests.mongo.capture import TIMEOUT_MS, Capture, contents, filled

USER = "CN=x%2Cy:p%40%3A%2Fss"
OPTIONS = [
    "tls=true&tlsInsecure=true",
    "tls=true&tlsAllowInvalidHostnames=true&tlsDisableOCSPEndpointCheck=true",
    "ssl=true",
    "compressors=zlib&zlibCompressionLevel=3",
    "uuidRepresentation=standard",
    "authSource=users",
    "authSource=users&authMechanism=SCRAM-SHA-256",
    "authMechanism=PLAIN&tls=true",
    "authMechanism=MONGODB-X509&tls=true",
    "authMechanism=GSSAPI&authMechanismProperties=SERVICE_NAME:other",
    "authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:abc",
    "retryReads=false;retryWrites=false;w=majority;wtimeoutMS=5000",
    "readPreference=secondary&readPreferenceTags=dc:a,use:b&readPreferenceTags=",
    "readPreference=nearest&maxStalenessSeconds=120&localThresholdMS=50",
    "readConcernLevel=majority",
    "socketTimeoutMS=5000&waitQueueTimeoutMS=4000&heartbeatFrequencyMS=3000",
    "maxPoolSize=5&maxIdleTimeMS=6000&maxConnecting=3&serverMonitoringMode=poll",
]
WHERE = [
    "",
    "/",
    "/shop",
    "/?{}",
    "/shop?{}",
    "/?replicaSet=rs0&{}",
    "/shop?{}&directConnection=false",
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("where", WHERE)
def test_a_connection_to_a_member_or_a_shard_takes_over_all_but_the_way(
    where: str, options: str
) -> None:
    """Guards: what the driver gives out parsed (seconds, numbers) it does not take back."""
    if ";" in options:
        where = where.replace("&", ";")
    user = USER.partition(":")[0] if "X509" in options and "{}" in where else USER
    given = f"mongodb://{user}@h1:1,h2:2{where.format(options)}"
    wanted = said(given)
    direct = client.connect_directly(given, 1000, "[::1]:7")
    direct.close()
    for uri, host in (
        (connection_uri.replace_hosts("[::1]:7", given, "directConnection=true"), ("::1", 7)),
        (connection_uri.shard_uri(given, "s1/h7:7"), ("h7", 7)),
    ):
        assert parse_uri(uri)["nodelist"] == [host]
        assert said(uri) == wanted
    assert way(connection_uri.shard_uri(given, "s1/h7:7")) == ("s1", False)
    assert connection_uri.shard_uri(given, "") == given


def said(uri: str) -> dict[str, Any]:
    """A connection string without what says where it leads."""
    parsed = parse_uri(uri)
    options = {name.lower(): value for name, value in parsed["options"].items()}
    options = {n: v for n, v in options.items() if n not in ("replicaset", "directconnection")}
    return {
        "options": options,
        **{name: parsed[name] for name in ("username", "password", "database")},
    }


def way(uri: str) -> tuple[Any, bool]:
    options = {name.lower(): value for name, value in parse_uri(uri)["options"].items()}
    return options.get("replicaset"), bool(options.get("directconnection"))


def test_what_the_connector_sets_itself_goes_before_the_connection_string() -> None:
    """Guards: server.timeout.ms; the documented list of what does not hold."""
    times = "serverSelectionTimeoutMS=7000&connectTimeoutMS=7000&timeoutMS=7000"
    given = f"mongodb://h:1/?{times}&readConcernLevel=local&appName=mine"
    direct = client.connect_directly(given, 1000, "h:1")
    for made in (client.connect(given, 1000), direct):
        options = made.options
        assert options.server_selection_timeout == options.pool_options.connect_timeout == 1
        assert options.timeout is None
        assert options.read_concern.level is None
        assert options.pool_options.appname == "mongodb-cdc"
        made.close()


class NameServer:
    """Answers for one seed list, as DNS does for `mongodb+srv`, and knows no other name."""

    def __init__(
        self, text: str, hosts: Sequence[tuple[str, int]] = (("h1", 1), ("h2", 2))
    ) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._records = {
            "SRV": [f"0 0 {port} {host}.cdc.test." for host, port in hosts],
            "TXT": [f'"{text}"'],
        }
        self.resolver = dns.resolver.Resolver(configure=False)
        self.resolver.nameservers = ["127.0.0.1"]
        self.resolver.port = self._socket.getsockname()[1]

    def serve(self) -> None:
        while True:
            query, asker = self._socket.recvfrom(4096)
            if not query:
                return
            message = dns.message.from_wire(query)
            [question] = message.question
            kind = dns.rdatatype.to_text(question.rdtype)
            answer = dns.message.make_response(message)
            if "gone" in question.name.to_text():
                answer.set_rcode(dns.rcode.NXDOMAIN)
            else:
                records = dns.rrset.from_text(question.name, 9, "IN", kind, *self._records[kind])
                answer.answer.append(records)
            self._socket.sendto(answer.to_wire(), asker)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The driver asks this name server, and no other."""
        serving = threading.Thread(target=self.serve)
        serving.start()
        with patch.object(dns.resolver, "default_resolver", self.resolver):
            yield
        self._socket.sendto(b"", self._socket.getsockname())
        serving.join()


@pytest.fixture
def seed_list() -> Iterator[None]:
    with NameServer("authSource=users&replicaSet=rs9").answering():
        yield


@pytest.mark.parametrize("where", ["", "/shop?w=majority", "/?tls=false", "/?authSource=mine"])
def test_what_a_seed_list_implies_and_adds_is_said_without_it(seed_list: None, where: str) -> None:
    """Guards: mongodb+srv: TLS by default, authSource from the TXT record."""
    given = f"mongodb+srv://{USER}@set.cdc.test{where}"
    assert set(parse_uri(given)["nodelist"]) == {("h1.cdc.test", 1), ("h2.cdc.test", 2)}
    assert ("mine" if "mine" in where else "users") == said(given)["options"]["authsource"]
    assert said(connection_uri.replace_hosts("h7:7", given, "directConnection=true")) == said(given)
    assert said(connection_uri.shard_uri(given, "s1/h7:7")) == said(given)
    assert way(connection_uri.shard_uri(given, "s1/h7:7"))[0] == "s1"


def test_a_seed_list_that_no_name_server_knows_is_a_source_that_cannot_be_reached(
    seed_list: None, mongod: ReplicaSet
) -> None:
    """Guards: to the driver it is a wrong connection string, whose text it quotes; it is asked for
    by each new connection, to a member too, in a run that is to go on."""
    gone = f"mongodb+srv://u:{SECRET}@gone.cdc.test/"
    shared = client.connect(mongod.uri, TIMEOUT_MS)
    for ask in (
        lambda: client.connect(gone, 1000),
        lambda: connection_uri.replace_hosts("h7:7", gone, "directConnection=true"),
        lambda: list(members.each_member(shared, gone)),
        lambda: inquiry.preflight(declared.parse({"uri": gone, "collections": "a.b"})),
    ):
        with pytest.raises(SourceUnreachable, match="DNS does not resolve") as raised:
            ask()
        assert is_transient(raised.value)
        assert raised.value.exit_code == 3
        assert raised.value.__cause__ is raised.value.__context__ is None
    assert members.hello_of(gone, "127.0.0.1", mongod.members[0].port) is None


def test_a_user_of_another_database_reads_with_options_of_every_kind(guarded: Guarded) -> None:
    """Guards: authSource and times in milliseconds reach the connections that read."""
    users, coll = guarded.client["users"], filled(guarded.client["elsewhere"], "a", range(20))
    roles = [{"role": "read", "db": "elsewhere"}, {"role": "clusterMonitor", "db": "admin"}]
    users.command("createUser", "reader", pwd=SECRET, roles=roles)
    address = guarded.replica_set.uri.partition("//")[2]
    options = "authSource=users&uuidRepresentation=standard&heartbeatFrequencyMS=5000&tz_aware=true"
    times = "socketTimeoutMS=9000&waitQueueTimeoutMS=9000&timeoutMS=9000"
    uri = f"mongodb://reader:{SECRET}@{address}&{options}&{times}&readConcernLevel=linearizable"
    [captured] = inquiry.preflight(declared.parse({"uri": uri, "collections": "elsewhere.a"}))
    assert captured.documents == 20
    pipeline = Capture(uri, "elsewhere.a")
    pipeline.run()
    coll.update_many({}, {"$inc": {"n": 1}})
    began = time.monotonic()
    pipeline.run()
    assert time.monotonic() - began < 5, "a read on an idle server waits for as long as it may take"
    assert pipeline.replayed(coll) == contents(coll)


def test_a_member_named_as_the_only_one_is_reached_as_it_was_named(mongod: ReplicaSet) -> None:
    """Guards: a forwarded port: the name that the member has in its replica set leads nowhere."""
    named = mongod.uri.replace("127.0.0.1", "localhost")
    here, there = (
        members.member(f"{uri}&directConnection={direct}", TIMEOUT_MS)
        for uri, direct in ((named, "true"), (named, "false"))
    )
    assert here._client.address == ("localhost", mongod.members[0].port)
    assert there._client.address == ("127.0.0.1", mongod.members[0].port)
    here.end()
    there.end()


def test_a_member_of_ipv6_that_is_down_is_one_that_does_not_answer() -> None:
    assert members.hello_of("mongodb://h/", "::1", find_free_ports(1)[0]) is None
