"""What the user has to be allowed: declared once, and compared with what the server says he is.

Whether a run may read is decided by asking for what it reads. What this module finds out only gives
a refusal its name: roles may come from elsewhere, and a proxy may allow less than they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pymongo.errors

from cdc.errors import NotPermitted
from cdc.model.selection import Namespace, Selection
from cdc.mongo.client import Client
from cdc.mongo.codes import translated

_NEVER_MEANT_BY_ALL = frozenset({"local", "config"})
OPLOG = Namespace("local", "oplog.rs")
# Where a cluster's metadata tells of its shards, and of who owns what.
_METADATA = tuple(
    Namespace("config", coll)
    for coll in ("version", "shards", "databases", "collections", "chunks")
)
# Where a shard tells of transactions that it has a part in.
_OF_TRANSACTIONS = (Namespace("config", "transactions"), OPLOG)


class Rule(NamedTuple):
    """Actions, what they have to be granted on, and what for."""

    actions: tuple[str, ...]
    on: str
    says: str


_SCOPE = 'the captured database; all (`{db: "", collection: ""}`) if there are several'
REQUIRED = (
    Rule(("find", "changeStream"), _SCOPE + " or regular expressions", "documents and changes"),
    Rule(
        ("listCollections",),
        "each captured database; all with regular expressions",
        "what there is to capture, its incarnations and images",
    ),
)
REQUIRED_OF_CLUSTERS = (
    Rule(
        ("find",),
        f"{', '.join(f'`{each}`' for each in _METADATA)}: where `uri` leads to",
        "`shards.direct`: which shards there are, and which of them owned what",
    ),
    Rule(
        ("find",),
        f"{', '.join(f'`{each}`' for each in _OF_TRANSACTIONS)}: on each shard",
        "`shards.direct`: when a transaction across shards became visible",
    ),
)
OPTIONAL = (
    Rule(
        ("splitVector",),
        "the captured collections",
        "even splits; without it they are cut by sampling",
    ),
    Rule(
        ("collStats",),
        "the captured collections",
        "their sizes; without it they are estimated from a sample",
    ),
    Rule(
        ("find",),
        f"`{OPLOG}`, or `serverStatus` on the cluster",
        "the oplog window, in `plan` and in the metrics; without either it is unknown. And, `find`"
        " only, changes per second, and the limits of a micro-batch; without it a backlog is read"
        " in one, in slices of equal time",
    ),
)


@dataclass(frozen=True, slots=True)
class Need:
    """One action on one resource. As in a role, an empty name stands for all.

    `shard` is the one that has to grant it; empty for what `uri` leads to.
    """

    action: str
    db: str
    coll: str = ""
    shard: str = ""

    def __str__(self) -> str:
        return f'{self.action} on {{db: "{self.db}", collection: "{self.coll}"}}'

    @property
    def privilege(self) -> dict[str, Any]:
        """As createRole takes it."""
        resource = {"db": self.db, "collection": self.coll}
        return {"resource": resource, "actions": [self.action]}


def required(selection: Selection, shards: tuple[str, ...] = ("",)) -> list[Need]:
    """Without each of these a run cannot do. `shards` are those of the source; a replica set's only
    one has no name."""
    scope = selection.database or ""
    listed = {""} if selection.patterns else {name.db for name in selection.names}
    needs = [
        *(Need(action, scope) for action in ("find", "changeStream")),
        *(Need("listCollections", db) for db in sorted(listed)),
    ]
    if "" in shards:
        return needs
    needs += (Need("find", *namespace) for namespace in _OF_TRANSACTIONS)
    return [*of_metadata(), *(replace(need, shard=shard) for shard in shards for need in needs)]


def of_metadata() -> list[Need]:
    """What finding the shards of a cluster, and the owners of documents, needs."""
    return [Need("find", *namespace) for namespace in _METADATA]


def optional(captured: Iterable[Namespace], shard: str = "") -> list[Need]:
    """Each of these makes something better. `captured` are the collections that the shard holds."""
    actions = ("splitVector", "collStats")
    needs = [Need(action, *namespace, shard) for namespace in captured for action in actions]
    return needs if shard else [*needs, Need("find", *OPLOG)]


def missing(clients: Mapping[str, Client], needs: Iterable[Need]) -> list[Need] | None:
    """Those that no role of the user grants; None if nobody is logged in, be it that the servers
    have no access control. Needs no privilege itself.

    `clients` is one for each shard, and one without a name for what `uri` leads to.
    """
    granted = {shard: _granted(client, shard) for shard, client in clients.items()}
    if all(found is None for found in granted.values()):
        return None
    return [need for need in needs if not _is_held(need, granted[need.shard])]


def _is_held(need: Need, granted: list[dict[str, Any]] | None) -> bool:
    return granted is None or any(_grants(each, need) for each in granted)


def _granted(client: Client, shard: str) -> list[dict[str, Any]] | None:
    try:
        status = client.admin.command("connectionStatus", showPrivileges=True)
    except pymongo.errors.PyMongoError as error:
        raise translated(error, f"Asking for the user's privileges{on([shard])}") from error
    info = status["authInfo"]
    found: list[dict[str, Any]] = info["authenticatedUserPrivileges"]
    return found if info["authenticatedUsers"] else None


@contextmanager
def named(clients: Mapping[str, Client], needs: Iterable[Need]) -> Iterator[None]:
    """A refusal raised inside leaves as one that names which of `needs` the user lacks, where that
    is known."""
    try:
        yield
    except NotPermitted as refusal:
        lacking = missing(clients, needs)
        if lacking is None:
            raise NotPermitted(
                "The server lets in nobody without a name, and 'uri' names no user.",
                "Write it as mongodb://user:password@host/?authSource=admin, for a user with a role"
                " as listed under 'Privileges'.",
            ) from refusal.__cause__
        if not lacking:
            raise
        raise NotPermitted(
            f"The server refused the user, who lacks {_listed(lacking)}.",
            "Grant it by a role, as listed under 'Privileges'; check that 'uri' names the user and"
            " the authSource that are meant.",
        ) from refusal.__cause__


def _listed(needs: Iterable[Need]) -> str:
    """What several shards have to grant is told once."""
    shards: dict[str, list[str]] = {}
    for need in needs:
        shards.setdefault(str(need), []).append(need.shard)
    return ", ".join(f"{need}{on(names)}" for need, names in shards.items())


def on(shards: Iterable[str]) -> str:
    """The shards that something holds for, as a part of a sentence; empty if they have no name."""
    names = ", ".join(filter(None, shards))
    return f" on {names}" if names else ""


def table() -> str:
    """The privileges as a Markdown table, for the README."""
    rows = ["| action | on | for |", "| --- | --- | --- |"]
    for rule in (*REQUIRED, *REQUIRED_OF_CLUSTERS, *OPTIONAL):
        actions = ", ".join(f"`{action}`" for action in rule.actions)
        rows.append(f"| {actions} | {rule.on} | {rule.says} |")
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
        return need.db not in _NEVER_MEANT_BY_ALL
    return db in ("", need.db)
