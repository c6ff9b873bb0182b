"""Certificates made for a test, and a server that speaks nothing but TLS with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import quote_plus

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from cdc.demo import ReplicaSet
from tests.mongo.access import SECRET, Guarded, access_control, administered

HOST = "127.0.0.1"
# The server's certificate is not for it, though it leads to the server.
OTHER_HOST = "localhost"
LONG_AGO = datetime(2020, 1, 1)


class Authority:
    """A private CA, whose own certificate is in `file`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._ca = folder, trustme.CA()
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def server(self, host: str = HOST) -> Path:
        return self._written(self._ca.issue_cert(host), f"server of {host}")

    def client(self, name: str, until: datetime | None = None, password: str | None = None) -> Path:
        """A client's certificate and key in one file; with a password the key is encrypted."""
        issued = self._ca.issue_cert(
            f"{name}.test", common_name=name, organization_name="readers", not_after=until
        )
        return self._written(issued, name, password)

    def _written(self, issued: trustme.LeafCert, name: str, password: str | None = None) -> Path:
        path = self._folder / f"{name}.pem"
        key = issued.private_key_pem.bytes()
        if password is not None:
            form = BestAvailableEncryption(password.encode())
            private = load_pem_private_key(key, None)
            key = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, form)
        path.write_bytes(key + b"".join(each.bytes() for each in issued.cert_chain_pems))
        return path


def subject(file: Path) -> str:
    """The user that a certificate is of, as the server spells it."""
    return x509.load_pem_x509_certificate(file.read_bytes()).subject.rfc4514_string()


class Secured(Guarded):
    """A server that asks for TLS, a certificate of its CA, and a user. `client` is root's."""

    authority: Authority
    # Of a client that the server lets speak; it says nothing of the user.
    certificate: Path

    def uri(self, user: str, password: str = SECRET, **options: object) -> str:
        """With TLS by the right files; options go over them, None leaves one out."""
        address = self.replica_set.uri
        if user:
            address = address.replace("://", f"://{quote_plus(user)}:{quote_plus(password)}@")
        files = {"tlsCAFile": self.authority.file, "tlsCertificateKeyFile": self.certificate}
        reported = {"tls": "true", **files, **options}
        said = [f"{name}={quote_plus(str(value))}" for name, value in reported.items() if value]
        return "&".join([address, *said])


@contextmanager
def secured_server(folder: Path) -> Iterator[Secured]:
    authority = Authority(folder)
    server, root = authority.server(), authority.client("root")
    arguments = [
        *access_control(folder),
        # Who starts it speaks no TLS, and need not: it is asked for once the server is up.
        *("--tlsMode", "preferTLS"),
        *("--tlsCertificateKeyFile", str(server), "--tlsCAFile", str(authority.file)),
    ]
    with ReplicaSet(arguments=arguments) as replica_set:
        with administered(replica_set) as plain:
            plain.admin.command({"setParameter": 1, "tlsMode": "requireTLS"})
        files = {"tlsCAFile": str(authority.file), "tlsCertificateKeyFile": str(root)}
        login = {"username": "root", "password": SECRET}
        with replica_set.client(tls=True, **files, **login) as client:
            secured = Secured(replica_set, client)
            secured.authority, secured.certificate = authority, root
            yield secured
