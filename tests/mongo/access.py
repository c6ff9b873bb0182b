"""A server with access control, and users that may do exactly what a test grants them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from cdc.mongo.privileges import Need
from jobs.mongod import Client, ReplicaSet
from tests.mongo.abilities import abilities

SECRET = "s3cr3t"


class Guarded:
    """`client` is root's."""

    def __init__(self, replica_set: ReplicaSet, client: Client) -> None:
        self.replica_set, self.client = replica_set, client
        self._numbers = itertools.count(1)

    def uri(self, user: str, password: str = SECRET) -> str:
        return self.replica_set.uri.replace("mongodb://", f"mongodb://{user}:{password}@")

    def user(self, needs: Iterable[Need] = (), roles: Iterable[Any] = ()) -> str:
        """The URI of a new user with exactly these privileges."""
        name = f"user{next(self._numbers)}"
        privileges = [need.privilege for need in needs]
        self.client.admin.command("createRole", name, privileges=privileges, roles=list(roles))
        self.client.admin.command("createUser", name, pwd=SECRET, roles=[name])
        return self.uri(name)

    @property
    def by_uuid(self) -> list[str]:
        """The role for what the README asks for before 6.0; none where it is not needed."""
        if abilities(self.client).names_the_incarnation:
            return []
        if not self.client.admin.command("rolesInfo", "byUUID")["roles"]:
            grant = {"resource": {"cluster": True}, "actions": ["useUUID"]}
            self.client.admin.command("createRole", "byUUID", privileges=[grant], roles=[])
        return ["byUUID"]


@contextmanager
def guarded_server(folder: Path) -> Iterator[Guarded]:
    key = folder / "key"
    key.write_text("a2V5" * 16)
    key.chmod(0o600)
    with ReplicaSet(arguments=["--auth", "--keyFile", str(key)]) as replica_set:
        with replica_set.client() as nobody:  # allowed from localhost until there is a user
            nobody.admin.command("createUser", "root", pwd=SECRET, roles=["root"])
        uri = replica_set.uri.replace("mongodb://", f"mongodb://root:{SECRET}@")
        with MongoClient[dict[str, Any]](uri) as root:
            yield Guarded(replica_set, root)
