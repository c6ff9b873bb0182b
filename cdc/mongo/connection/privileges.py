"""The privileges that a run needs, compared with those the user has.

The server decides whether a run may read: the run tries it. This module only names the missing
privilege in a refusal. Roles may come from another system, and a proxy may allow less than they
grant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pymongo.errors

from cdc.errors import NotPermitted
from cdc.model import Namespace, Selection
from cdc.mongo.connection.client import Client
from cdc.mongo.connection.error_codes import translate_error

# The role that an error suggests to create.
_ROLE = "mongodbCdc"
_MOST_LETTERS = 400
# A privilege on all databases does not cover these.
_NOT_COVERED_BY_ALL = frozenset({"local", "config"})
OPLOG = Namespace("local", "oplog.rs")
PRE_IMAGES = Namespace("config", "system.preimages")
# The metadata of a cluster that lists its shards and the owners of its data.
_METADATA = tuple(
    Namespace("config", coll)
    for coll in ("version", "shards", "databases", "collections", "chunks")
)
# What of it helps a run through a router.
_METADATA_OF_ROUTERS = tuple(
    Namespace("config", coll) for coll in ("version", "shards", "collections")
)
# The collections in which a shard records the transactions that it takes part in.
_TRANSACTIONS = (Namespace("config", "transactions"), OPLOG)


class Rule(NamedTuple):
    """Actions, the resources on which they must be granted, and their purpose."""

    actions: tuple[str, ...]
    resources: str
    purpose: str


_SCOPE = 'the captured database; all (`{db: "", collection: ""}`) if there are several'
_ANY = r"regular expressions that do not begin with a database, as `shop\..*` does"
REQUIRED = (
    Rule(("find", "changeStream"), f"{_SCOPE} or {_ANY}", "documents and changes"),
    Rule(
        ("listCollections",),
        f"each captured database; all with {_ANY}",
        "which collections exist, their incarnations and images",
    ),
)
REQUIRED_OF_CLUSTERS = (
    Rule(
        ("find",),
        f"{', '.join(f'`{each}`' for each in _METADATA)}: on the server that `uri` names",
        "`shards.direct`: which shards exist, and which documents each of them owned",
    ),
    Rule(
        ("find",),
        f"{', '.join(f'`{each}`' for each in _TRANSACTIONS)}: on each shard",
        "`shards.direct`: when a transaction across shards became visible",
    ),
)
OPTIONAL = (
    Rule(
        ("splitVector",),
        "the captured collections",
        "even splits of small and very large collections; without it, all are cut by sampling",
    ),
    Rule(
        ("collStats",),
        "the captured collections",
        "their sizes; without it, the sizes are estimated from a sample",
    ),
    Rule(
        ("find",),
        f"`{OPLOG}`, or `serverStatus` on the cluster",
        "the oplog window, in `plan` and in the metrics, and whether other members have what one"
        " lacks; without both, it is unknown, and `on.history.lost = resync` or `skip` needs a"
        " replica set of one member. `find` also"
        " gives the changes per second and the limits of a micro-batch; without it, a backlog is"
        " read in one micro-batch, in slices of equal time",
    ),
    Rule(
        ("find",),
        f"`{OPLOG}` and `{PRE_IMAGES}`",
        "changes read from the oplog (`read.by`); if one of the two is missing, change streams are"
        " read",
    ),
    Rule(
        ("find",),
        f"{', '.join(f'`{each}`' for each in _METADATA_OF_ROUTERS)}: only through a mongos",
        "which cluster it is, whether a shard left, quick change streams, and mirrors; without it,"
        " a checkpoint of another cluster and lost changes of a shard that left are not recognised,"
        " changes of an idle cluster come some seconds later, and mirrors are refused",
    ),
)


@dataclass(frozen=True, slots=True)
class Need:
    """One action on one resource. As in a role, an empty name stands for all.

    `shard` must grant it; empty stands for the server that `uri` names.
    """

    action: str
    db: str
    coll: str = ""
    shard: str = ""

    def __str__(self) -> str:
        return f'{self.action} on {{db: "{self.db}", collection: "{self.coll}"}}'

    @property
    def privilege(self) -> dict[str, Any]:
        """The privilege in the form that createRole takes."""
        resource = {"db": self.db, "collection": self.coll}
        return {"resource": resource, "actions": [self.action]}


def required_needs(selection: Selection, shards: tuple[str, ...] = ("",)) -> list[Need]:
    """Return the privileges that a run cannot do without.

    `shards` are those of the source. The only shard of a replica set has an empty name.
    """
    scope = selection.database or ""
    databases = {""} if selection.databases is None else selection.databases
    needs = [
        *(Need(action, scope) for action in ("find", "changeStream")),
        *(Need("listCollections", db) for db in sorted(databases)),
    ]
    if "" in shards:
        return needs
    needs += (Need("find", *namespace) for namespace in _TRANSACTIONS)
    return [*metadata_needs(), *(replace(need, shard=shard) for shard in shards for need in needs)]


def metadata_needs() -> list[Need]:
    """Return the privileges that find the shards of a cluster and the owners of documents."""
    return [Need("find", *namespace) for namespace in _METADATA]


def optional_needs(
    captured: Iterable[Namespace], shard: str = "", has_oplog: bool = True
) -> list[Need]:
    """Return the privileges that a run can do without, but that improve it.

    `captured` are the captured collections on the shard. Without `has_oplog` they are read through
    a router, which refuses `splitVector` and has no oplog, but returns the cluster's metadata.
    """
    if not has_oplog:
        needs = [Need("collStats", *namespace) for namespace in captured]
        return [*needs, *(Need("find", *namespace) for namespace in _METADATA_OF_ROUTERS)]
    actions = ("splitVector", "collStats")
    needs = [Need(action, *namespace, shard) for namespace in captured for action in actions]
    return needs if shard else [*needs, Need("find", *OPLOG), Need("find", *PRE_IMAGES)]


def missing_needs(clients: Mapping[str, Client], needs: Iterable[Need]) -> list[Need] | None:
    """Return the needs that no role of the user grants. Needs no privilege itself.

    None means that no user is logged in, for example because the servers have no access control.

    `clients` maps each shard to a client, and the empty name to that of the server in `uri`.
    """
    granted = {shard: _user_privileges(client, shard) for shard, client in clients.items()}
    if all(privileges is None for privileges in granted.values()):
        return None
    return [need for need in needs if not _is_granted(need, granted[need.shard])]


def _is_granted(need: Need, privileges: list[dict[str, Any]] | None) -> bool:
    return privileges is None or any(_grants(each, need) for each in privileges)


def _user_privileges(client: Client, shard: str) -> list[dict[str, Any]] | None:
    try:
        status = client.admin.command("connectionStatus", showPrivileges=True)
    except pymongo.errors.PyMongoError as error:
        raise translate_error(
            error, f"Reading the user's privileges{on_shards([shard])}"
        ) from error
    info = status["authInfo"]
    privileges: list[dict[str, Any]] = info["authenticatedUserPrivileges"]
    return privileges if info["authenticatedUsers"] else None


@contextmanager
def name_missing_needs(clients: Mapping[str, Client], needs: Iterable[Need]) -> Iterator[None]:
    """Turn a NotPermitted from this context into one that names the needs which the user lacks.

    It is raised unchanged if they are not known.
    """
    try:
        yield
    except NotPermitted as refusal:
        lacking = missing_needs(clients, needs)
        if lacking is None:
            raise NotPermitted(
                "The server requires a login, and 'uri' names no user.",
                "Write it as mongodb://user:password@host/?authSource=admin, for a user with a role"
                " as listed under 'Privileges'.",
            ) from refusal.__cause__
        if not lacking:
            raise
        raise NotPermitted(
            f"The server refused the user, who lacks {_describe(lacking)}.",
            f"Grant it by a role{_describe_grants(clients, lacking)}; check the user and the"
            " authSource in 'uri'. See 'Privileges'.",
        ) from refusal.__cause__


def _describe_grants(clients: Mapping[str, Client], lacking: Iterable[Need]) -> str:
    """Return the commands for the shell that grant these needs to the user by a new role.

    They continue a sentence. Empty if they are too long for an error.
    """
    by_shard: dict[str, list[Need]] = {}
    for need in lacking:
        by_shard.setdefault(need.shard, []).append(need)
    commands = "; ".join(
        f"{on_shards([shard])}: {' and '.join(_grants_of(clients[shard], needs))}"
        for shard, needs in by_shard.items()
    )
    return commands if len(commands) <= _MOST_LETTERS else ""


def _grants_of(client: Client, needs: Iterable[Need]) -> Iterator[str]:
    by_resource: dict[tuple[str, str], list[str]] = {}
    for need in needs:
        by_resource.setdefault((need.db, need.coll), []).append(need.action)
    privileges = [
        {"resource": {"db": db, "collection": coll}, "actions": actions}
        for (db, coll), actions in by_resource.items()
    ]
    yield _shell("admin", {"createRole": _ROLE, "privileges": privileges, "roles": []})
    user = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"][0]
    roles = [{"role": _ROLE, "db": "admin"}]
    yield _shell(user["db"], {"grantRolesToUser": user["user"], "roles": roles})


def _shell(db: str, command: dict[str, Any]) -> str:
    return f"db.getSiblingDB({json.dumps(db)}).runCommand({json.dumps(command)})"


def _describe(needs: Iterable[Need]) -> str:
    """A need that several shards must grant is listed once."""
    shards: dict[str, list[str]] = {}
    for need in needs:
        shards.setdefault(str(need), []).append(need.shard)
    return ", ".join(f"{need}{on_shards(names)}" for need, names in shards.items())


def on_shards(shards: Iterable[str]) -> str:
    """Return " on s1, s2" for the shards, as a part of a sentence; empty if they have no name."""
    names = ", ".join(filter(None, shards))
    return f" on {names}" if names else ""


def table() -> str:
    """Return the privileges as a Markdown table, for the documents."""
    rows = ["| action | on | for |", "| --- | --- | --- |"]
    for rule in (*REQUIRED, *REQUIRED_OF_CLUSTERS, *OPTIONAL):
        actions = ", ".join(f"`{action}`" for action in rule.actions)
        rows.append(f"| {actions} | {rule.resources} | {rule.purpose} |")
    return "\n".join(rows)


def _grants(privilege: Mapping[str, Any], need: Need) -> bool:
    return need.action in privilege["actions"] and _covers(privilege["resource"], need)


def _covers(resource: Mapping[str, Any], need: Need) -> bool:
    if resource.get("anyResource"):
        return True
    db, coll = resource.get("db"), resource.get("collection")
    if coll not in ("", need.coll):
        return False
    if db == "" and coll == "":
        return need.db not in _NOT_COVERED_BY_ALL
    return db in ("", need.db)
