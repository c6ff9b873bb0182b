"""Passwords and certificates that are changed while a run goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc import options as declared
from cdc.errors import LoginRefused, TransientError
from cdc.model import Namespace, Selection
from cdc.mongo.collections import list_collections
from cdc.mongo.connection import client, members
from cdc.mongo.read import reads_at_a_time
from cdc.source import ChangeReader, inquiry
from tests.mongo.access import SECRET, Guarded, guarded_server
from tests.mongo.capture import TIMEOUT_MS, Capture, contents, filled
from tests.security.certificates import Secured


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server of the module's own: it is started again, so that everyone has to log in again."""
    with guarded_server(tmp_path_factory.mktemp("rotation")) as server:
        yield server


class WhenRefused(logging.Handler):
    """Calls something at the first login that is refused, or other error, and is tried again."""

    def __init__(self, then: Callable[[], Any], error: str = "OperationFailure") -> None:
        super().__init__()
        self._then, self._error, self.count = then, error, 0

    def emit(self, record: logging.LogRecord) -> None:
        if f"{self._error}, trying again" in record.getMessage():
            self.count += 1
            if self.count == 1:
                self._then()


@contextmanager
def calling(handler: WhenRefused) -> Iterator[None]:
    """As long as the block lasts."""
    logger = logging.getLogger("cdc.mongo.connection.retry")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def changed_password(server: Guarded, name: str, password: str) -> str:
    """The URI with the new one; connections that were let in by the old one are gone."""
    server.client.admin.command("updateUser", name, pwd=password)
    [member] = server.replica_set.members
    member.kill()
    member.start()
    server.replica_set.wait_writable()
    return server.uri(name, password)


@pytest.mark.slow
def test_a_password_that_is_changed_first_at_the_server_and_then_in_the_file_ends_no_run(
    restarted: Guarded, tmp_path: Path
) -> None:
    """Guards: what is read again at each connection, and a login that is refused in between."""
    file = tmp_path / "uri"
    file.write_text(restarted.user(roles=[{"role": "read", "db": "shop"}], name="rotated"))
    coll = filled(restarted.client["shop"], "orders", range(30))
    pipeline = Capture(f"file:{file}", "shop.orders")
    pipeline.run()
    coll.update_many({}, {"$inc": {"n": 1}})
    end = pipeline.plan()
    uri = changed_password(restarted, "rotated", "another")
    refused = WhenRefused(lambda: file.write_text(uri))
    with calling(refused):
        # Its splits are made by the planner, which has to log in too.
        assert len(pipeline.read(end).ids("update")) == 30
    assert refused.count > 0
    coll.delete_many({"_id": {"$lt": 10}})
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)


def test_a_trigger_that_is_refused_makes_no_batch_and_the_next_one_goes_on(
    restarted: Guarded, tmp_path: Path
) -> None:
    """Guards: planning, which is tried again by Spark's next trigger."""
    file = tmp_path / "uri"
    file.write_text(restarted.user(roles=[{"role": "read", "db": "shop"}], name="triggered"))
    filled(restarted.client["shop"], "lines", range(3))
    given = {"uri": f"file:{file}", "collections": "shop.lines", "server.timeout.ms": "5000"}
    reader = ChangeReader(declared.parse(given), None)  # type: ignore[arg-type]
    limit, offset = reader.getDefaultReadLimit(), reader.initialOffset()
    uri = changed_password(restarted, "triggered", "another")
    assert reader.latestOffset(offset, limit) == offset
    file.write_text(uri)
    assert reader.latestOffset(offset, limit) != offset
    reader.stop()


def test_a_run_that_was_never_let_in_fails_at_once(restarted: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "uri"
    file.write_text(restarted.uri("rotated", "wrong"))
    with pytest.raises(LoginRefused):
        inquiry.preflight(declared.parse({"uri": f"file:{file}", "collections": "shop.orders"}))


def test_a_certificate_that_is_renewed_in_its_place_is_taken(
    secured: Secured, tmp_path: Path
) -> None:
    """Guards: short-lived certificates: the driver reads the file once for each client."""
    file = tmp_path / "mine.pem"
    first, second = (secured.authority.client(name) for name in ("first", "second"))
    file.write_bytes(first.read_bytes())
    uri = secured.uri("root", SECRET, tlsCertificateKeyFile=file)
    made = client.connect(uri, TIMEOUT_MS)
    assert client.connect(uri, TIMEOUT_MS) is made
    file.write_bytes(second.read_bytes())
    renewed = client.connect(uri, TIMEOUT_MS)
    assert renewed is not made
    assert renewed.admin.command("ping")["ok"] == 1


def test_a_certificate_that_is_being_overwritten_is_read_again(
    secured: Secured, tmp_path: Path
) -> None:
    """Guards: a run whose next request comes while another program writes the file."""
    file, whole = tmp_path / "mine.pem", secured.authority.client("overwritten").read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    written = threading.Timer(0.3, file.write_bytes, [whole])
    written.start()
    renewed = client.connect(secured.uri("root", SECRET, tlsCertificateKeyFile=file), TIMEOUT_MS)
    written.join()
    assert renewed.admin.command("ping")["ok"] == 1
    assert renewed.admin.command("ping")["ok"] == 1


def test_a_server_that_does_not_report_its_time_yet_is_asked_again(tmp_path: Path) -> None:
    """Guards: for an instant after each start an ordinary user gets none: there is no key yet
    to sign it with."""
    no_keys = {"enableTestCommands": True, "failpoint.disableKeyGeneration": '{"mode": "alwaysOn"}'}
    with guarded_server(tmp_path, **no_keys) as server:
        filled(server.client["shop"], "orders", range(30))
        uri = server.user(roles=[{"role": "read", "db": "shop"}])
        given = {"uri": uri, "collections": "shop.orders"}
        asked, member = client.connect(uri, TIMEOUT_MS), members.member(uri, TIMEOUT_MS)
        for ask in (
            lambda: list_collections(asked, Selection.parse("shop.orders")),
            lambda: reads_at_a_time(member, Namespace("shop", "orders")),
            member.newest_known,
            lambda: inquiry.preflight(declared.parse({**given, "retry.seconds": "0"})),
        ):
            with pytest.raises(TransientError, match="does not report its time yet"):
                ask()
        member.end()
        off = {"configureFailPoint": "disableKeyGeneration", "mode": "off"}
        refused = WhenRefused(lambda: server.client.admin.command(off), "TransientError")
        with calling(refused):
            [found] = inquiry.preflight(declared.parse(given))
        assert (found.documents, refused.count > 0) == (30, True)
