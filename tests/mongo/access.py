"""Servers with access control, and users that may do exactly what a test grants them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cdc.demo import ReplicaSet
from cdc.demo.mongod import Client
from cdc.mongo.connection import Need
from tests.mongo.abilities import abilities
from tests.mongo.cluster import Cluster

SECRET = "s3cr3t"


class Guarded:
    """`client` is root's."""

    def __init__(self, replica_set: ReplicaSet, client: Client) -> None:
        self.replica_set, self.client = replica_set, client
        self._numbers = itertools.count(1)

    def uri(self, user: str, password: str = SECRET) -> str:
        return self.replica_set.uri.replace("mongodb://", f"mongodb://{user}:{password}@")

    def user(
        self, needs: Iterable[Need] = (), roles: Iterable[Any] = (), name: str | None = None
    ) -> str:
        """The URI of a new user with exactly these privileges."""
        name = name or f"user{next(self._numbers)}"
        privileges = [need.privilege for need in needs]
        self.client.admin.command("createRole", name, privileges=privileges, roles=list(roles))
        self.client.admin.command("createUser", name, pwd=SECRET, roles=[name])
        return self.uri(name)

    @property
    def by_uuid(self) -> list[str]:
        """The role for what is asked for before 6.0; none where it is not needed."""
        if abilities(self.client).names_the_incarnation:
            return []
        if not self.client.admin.command("rolesInfo", "byUUID")["roles"]:
            grant = {"resource": {"cluster": True}, "actions": ["useUUID"]}
            self.client.admin.command("createRole", "byUUID", privileges=[grant], roles=[])
        return ["byUUID"]


@contextmanager
def guarded_server(folder: Path, **parameters: object) -> Iterator[Guarded]:
    arguments = access_control(folder)
    with (
        ReplicaSet(set_parameters=parameters, arguments=arguments) as replica_set,
        administered(replica_set) as root,
    ):
        yield Guarded(replica_set, root)


def access_control(folder: Path) -> list[str]:
    """What servers that let only each other in are started with."""
    key = folder / "key"
    key.write_text("a2V5" * 16)
    key.chmod(0o600)
    return ["--auth", "--keyFile", str(key)]


@contextmanager
def administered(replica_set: ReplicaSet, role: str = "root") -> Iterator[Client]:
    """A client of the first user of a server with access control."""
    with replica_set.client() as nobody:  # allowed from localhost until there is a user
        nobody.admin.command("createUser", "root", pwd=SECRET, roles=[role])
    with replica_set.client(username="root", password=SECRET) as root:
        yield root


class GuardedCluster:
    """A sharded cluster with access control."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        servers = {"": cluster.config, **cluster.shards}
        self._servers = {
            shard: Guarded(server, cluster.clients[server.name])
            for shard, server in servers.items()
        }
        self._numbers = itertools.count(1)

    @property
    def by_uuid(self) -> dict[str, list[str]]:
        """What each server asks for besides; see there."""
        return {shard: server.by_uuid for shard, server in self._servers.items() if shard}

    def user(self, needs: Iterable[Need] = (), roles: Mapping[str, list[Any]] | None = None) -> str:
        """The URI of a new user with exactly these privileges and roles, each on its own server;
        where he is granted nothing there is no such user."""
        name, given = f"user{next(self._numbers)}", list(needs)
        for shard, server in self._servers.items():
            mine = [need for need in given if need.shard == shard]
            granted = (roles or {}).get(shard, [])
            if mine or granted:
                server.user(mine, granted, name)
        return self._servers[""].uri(name)


@contextmanager
def guarded_cluster(folder: Path) -> Iterator[GuardedCluster]:
    # Only a server itself may do what a router asks for.
    log_in = partial(administered, role="__system")
    with Cluster(access_control(folder), log_in) as cluster:
        yield GuardedCluster(cluster)
