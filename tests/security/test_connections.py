"""Passwords, certificates and TLS: what is right is let in, what is wrong is named."""

from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from cdc import options as declared
from cdc.errors import BadOption, CdcError, LoginRefused, SourceUnreachable
from cdc.mongo.connection import connect
from cdc.source import inquiry
from tests.mongo.access import SECRET
from tests.mongo.capture import Capture, contents, filled
from tests.security.certificates import LONG_AGO, OTHER_HOST, Authority, Secured, subject

# Of every kind that has to be percent-encoded, and some that need not be.
PASSWORD = "p@:/?#[]&;=%+ ü\"'\\$"
_numbers = itertools.count(1)


def user(secured: Secured, *mechanisms: str, password: str = PASSWORD) -> str:
    name = f"us:er/{next(_numbers)}"
    how = {"mechanisms": list(mechanisms)} if mechanisms else {}
    reads = [{"role": "read", "db": "shop"}]
    secured.client.admin.command("createUser", name, pwd=password, roles=reads, **how)
    return name


def owner(secured: Secured, certificate: Path) -> Path:
    """The certificate, whose subject may read."""
    external, name = secured.client["$external"], subject(certificate)
    if not external.command("usersInfo", name)["users"]:
        external.command("createUser", name, roles=[{"role": "read", "db": "shop"}])
    return certificate


def copied_and_followed(secured: Secured, uri: str) -> None:
    """By client, enumerator, planner and tasks, on connections to the member itself."""
    coll = filled(secured.client["shop"], f"orders{next(_numbers)}", range(30))
    pipeline = Capture(uri, str(coll.full_name), documents_per_split=None)
    pipeline.run()
    coll.update_many({}, {"$inc": {"n": 1}})
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256"])
def test_a_user_with_a_password_copies_and_follows(secured: Secured, mechanism: str) -> None:
    uri = secured.uri(user(secured, mechanism), PASSWORD, authMechanism=mechanism)
    copied_and_followed(secured, uri)


@pytest.mark.parametrize("password", [None, PASSWORD], ids=["plain key", "encrypted key"])
def test_the_owner_of_a_certificate_copies_and_follows(
    secured: Secured, password: str | None
) -> None:
    file = owner(secured, secured.authority.client(f"reader{next(_numbers)}", password=password))
    copied_and_followed(
        secured,
        secured.uri(
            "",
            authMechanism="MONGODB-X509",
            tlsCertificateKeyFile=file,
            tlsCertificateKeyFilePassword=password,
        ),
    )


# What is wrong, and what is said of it. `right` is a URI that is let in, but for the options.
Wrong = Callable[[Secured, Callable[..., str]], str]
WRONG: dict[str, tuple[Wrong, type[CdcError], list[str]]] = {
    "host name": (
        lambda secured, right: right().replace("127.0.0.1", OTHER_HOST),
        SourceUnreachable,
        ["not for the host name", "in the replica set's configuration"],
    ),
    "CA": (
        lambda secured, right: right(tlsCAFile=other(secured).file),
        SourceUnreachable,
        ["CA that is not trusted", "tlsCAFile"],
    ),
    "no CA": (
        lambda secured, right: right(tlsCAFile=None),
        SourceUnreachable,
        ["CA that is not trusted", "tlsCAFile"],
    ),
    "expired certificate": (
        lambda secured, right: right(
            tlsCertificateKeyFile=secured.authority.client("late", until=LONG_AGO)
        ),
        SourceUnreachable,
        ["certificate", "tlsCertificateKeyFile", "expired"],
    ),
    "certificate of another CA": (
        lambda secured, right: right(tlsCertificateKeyFile=other(secured).client("stranger")),
        SourceUnreachable,
        ["certificate", "tlsCertificateKeyFile", "its CA is the server's"],
    ),
    "no certificate": (
        lambda secured, right: right(tlsCertificateKeyFile=None),
        SourceUnreachable,
        ["certificate", "tlsCertificateKeyFile", "requires one"],
    ),
    "no TLS": (
        lambda secured, right: right(tls="false", tlsCAFile=None, tlsCertificateKeyFile=None),
        SourceUnreachable,
        ["closes each connection", "Check tls"],
    ),
    "no such file": (
        lambda secured, right: right(tlsCAFile="/nowhere/ca.pem"),
        BadOption,
        ["/nowhere/ca.pem", "cannot be read", "each machine"],
    ),
    "a file without a key": (
        lambda secured, right: right(tlsCertificateKeyFile=secured.authority.file),
        BadOption,
        ["TLS files", "and its key"],
    ),
    "password of the key": (
        lambda secured, right: right(
            tlsCertificateKeyFile=secured.authority.client("locked", password="another"),
            tlsCertificateKeyFilePassword=PASSWORD,
        ),
        BadOption,
        ["TLS files", "tlsCertificateKeyFilePassword"],
    ),
    "no password of the key": (
        lambda secured, right: right(
            tlsCertificateKeyFile=secured.authority.client("unasked", password="another")
        ),
        BadOption,
        ["TLS files", "tlsCertificateKeyFilePassword"],
    ),
    "TLS that is misspelt": (
        lambda secured, right: right(tls="yes"),
        BadOption,
        ["an unknown or invalid option", "names and values"],
    ),
    "password": (
        lambda secured, right: secured.uri(user(secured, password="another"), PASSWORD),
        LoginRefused,
        ["refused the user", "Check user, password"],
    ),
    "user of a certificate": (
        lambda secured, right: secured.uri(
            "",
            authMechanism="MONGODB-X509",
            tlsCertificateKeyFile=secured.authority.client(f"nobody{next(_numbers)}"),
        ),
        LoginRefused,
        ["refused the user", "certificate"],
    ),
}


def other(secured: Secured) -> Authority:
    return Authority(secured.authority.file.parent, f"other{next(_numbers)}")


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_with_its_remedy_and_without_a_credential(
    secured: Secured, what: str
) -> None:
    make, kind, says = WRONG[what]
    name = user(secured)
    uri = make(secured, lambda **options: secured.uri(name, PASSWORD, **options))
    with pytest.raises(kind) as raised:
        inquiry.preflight(
            declared.parse({"uri": uri, "collections": "shop.a", "server.timeout.ms": "1000"})
        )
    assert [part for part in says if part not in str(raised.value)] == []
    assert raised.value.remedy
    require_no(PASSWORD, raised.value)


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://user:{}@h:1/",
        "mongodb://user:{}/x.y@h:1/",
        "mongodb://user:x@{}@h:1/",
        "mongodb://h:{}/",
        "mongodb://h/?tls=true&tlsCertificateKeyFilePassword",
        "mongodb://%2Ftmp%2Fx:{}/x.sock",
        "user:{}@h",
        "mongodb://h/{}.x",
    ],
)
def test_a_connection_string_that_is_none_is_not_quoted(uri: str) -> None:
    """Guards: the driver quotes what it cannot read, a password with a slash in it for instance."""
    with pytest.raises(BadOption) as raised:
        connect(uri.format(f"{SECRET}/x"), 1000)
    require_no(SECRET, raised.value)


def test_a_file_that_is_no_text_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "uri"
    file.write_bytes(f"mongodb://user:{SECRET}@h/".encode() + b"\xff")
    with pytest.raises(BadOption) as raised:
        connect(f"file:{file}", 1000)
    assert str(file) in str(raised.value)
    require_no(SECRET, raised.value)


def test_a_file_that_is_being_overwritten_is_read_again(tmp_path: Path) -> None:
    """Guards: a run whose next request comes just when another program has emptied the file."""
    file = tmp_path / "uri"
    file.write_text("")
    written = threading.Timer(0.3, file.write_text, ["mongodb://127.0.0.1:1/"])
    written.start()
    assert connect(f"file:{file}", 1000)
    written.join()


def require_no(secret: str, error: BaseException) -> None:
    """In the whole chain, as Spark's workers print it and pickle it."""
    reported = "".join(traceback.format_exception(error))
    chain: BaseException | None = error
    while chain is not None:
        reported += repr(chain.args) + repr(getattr(chain, "object", ""))
        chain = chain.__cause__ or chain.__context__
    for form in (secret, quote_plus(secret)):
        assert form not in reported
