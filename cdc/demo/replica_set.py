"""A real replica set in a temporary folder, for demo and tests.

The servers listen on 127.0.0.1 only, without access control. They and their data are removed when
the `with` block ends. When this process ends in any other way, the servers end too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pymongo import MongoClient

from cdc.demo.mongod import (
    START_SECONDS,
    Client,
    Member,
    embedded_mongod,
    find_free_ports,
    wait_until,
)

NAME = "rs0"
PARAMETERS = {
    # Nobody reads the diagnostic files that mongod writes once a second.
    "diagnosticDataCollectionEnabled": False,
}


class ReplicaSet:
    """A running replica set: `with ReplicaSet() as server: MongoClient(server.uri)`.

    On entry a primary accepts writes and every other member is a secondary. On exit all members
    are killed, without an orderly shutdown, and their data is deleted.

    Args:
        members: The number of members.
        set_parameters: Passed to every member as `--setParameter`; they override `PARAMETERS`.
            None omits a parameter that an older server does not know.
        arguments: Appended to the command line of every member.
        binary: The mongod to run, by default the one of `embedded_mongod`.
        is_config: The replica set is the config server of a sharded cluster.

    Raises `CdcError` if there is no mongod for this platform, or if a member does not start. In the
    second case the message ends with the tail of that member's log.
    """

    def __init__(
        self,
        members: int = 1,
        set_parameters: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        binary: Path | None = None,
        oplog_megabytes: int = 512,
        cache_gigabytes: float = 0.25,
        election_timeout_ms: int = 2000,
        name: str = NAME,
        is_config: bool = False,
    ) -> None:
        self.name, self._is_config = name, is_config
        self._binary = binary or embedded_mongod()
        self._count = members
        self._election_timeout_ms = election_timeout_ms
        self._folder = Path()
        self.members: list[Member] = []
        parameters = {**PARAMETERS, **(set_parameters or {})}
        self._arguments = [
            *("--replSet", name, "--bind_ip", "127.0.0.1", "--nounixsocket"),
            *("--wiredTigerCacheSizeGB", str(cache_gigabytes)),
            *("--oplogSize", str(oplog_megabytes)),
            *(f"--setParameter={k}={_text(v)}" for k, v in parameters.items() if v is not None),
            *arguments,
        ]

    @property
    def uri(self) -> str:
        """The connection string with every member as a seed, also members that are down."""
        hosts = ",".join(member.host for member in self.members)
        return f"mongodb://{hosts}/?replicaSet={self.name}"

    def client(self, **options: Any) -> Client:
        """A new client on the whole set; the caller closes it."""
        return MongoClient(self.uri, **options)

    def primary(self) -> Member:
        """The member that accepts writes now. Raises LookupError during an election.

        A frozen primary does not answer, so it does not count.
        """
        for member in self.members:
            if member.hello().get("isWritablePrimary"):
                return member
        raise LookupError("no member of the replica set is primary now")

    def wait_writable(self) -> Member:
        """Wait for a primary and return it, for use after a kill, a stop or a freeze.

        Raises TimeoutError if there is none in time.
        """
        member = wait_until(self._find_primary, START_SECONDS)
        if member is None:
            raise TimeoutError(
                f"the replica set {self.uri} had no primary for {START_SECONDS:.0f} s"
            )
        return member

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="mongod-"))
        try:
            for port in find_free_ports(self._count):
                member = Member(port, self._binary, self._arguments, self._folder / str(port))
                self.members.append(member)
            for member in self.members:
                member.launch()
            for member in self.members:
                member.wait_answering()
            self._initiate()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _initiate(self) -> None:
        config = {
            "_id": self.name,
            **({"configsvr": True} if self._is_config else {}),
            "members": [{"_id": i, "host": m.host} for i, m in enumerate(self.members)],
            "settings": {"electionTimeoutMillis": self._election_timeout_ms},
        }
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", config)
        self.wait_writable()
        for member in self.members:
            if not wait_until(member.is_data_bearing, START_SECONDS):
                raise member.failure(f"was not a secondary after {START_SECONDS:.0f} s")

    def _find_primary(self) -> Member | None:
        try:
            return self.primary()
        except LookupError:
            return None

    def _end(self) -> None:
        for member in self.members:
            member.kill()
        # A failure to delete must not hide the error of the block.
        shutil.rmtree(self._folder, ignore_errors=True)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
