"""What the user has to be allowed: declared once, and compared with what the server says he is.

Whether a run may read is decided by asking for what it reads. What this module finds out only gives
a refusal its name: roles may come from elsewhere, and a proxy may allow less than they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pymongo.errors

from cdc.errors import NotPermitted
from cdc.model.selection import Namespace, Selection
from cdc.mongo.client import Client, translated

_NEVER_MEANT_BY_ALL = frozenset({"local", "config"})
OPLOG = Namespace("local", "oplog.rs")


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
        "the oplog window in `plan`; without either it is unknown",
    ),
)


@dataclass(frozen=True, slots=True)
class Need:
    """One action on one resource. As in a role, an empty name stands for all."""

    action: str
    db: str
    coll: str = ""

    def __str__(self) -> str:
        return f'{self.action} on {{db: "{self.db}", collection: "{self.coll}"}}'

    @property
    def privilege(self) -> dict[str, Any]:
        """As createRole takes it."""
        resource = {"db": self.db, "collection": self.coll}
        return {"resource": resource, "actions": [self.action]}


def required(selection: Selection) -> list[Need]:
    """Without each of these a run cannot do."""
    scope = selection.database or ""
    listed = {""} if selection.patterns else {name.db for name in selection.names}
    return [
        *(Need(action, scope) for action in ("find", "changeStream")),
        *(Need("listCollections", db) for db in sorted(listed)),
    ]


def optional(captured: Iterable[Namespace]) -> list[Need]:
    """Each of these makes something better."""
    actions = ("splitVector", "collStats")
    on_captured = [Need(action, *namespace) for namespace in captured for action in actions]
    return [*on_captured, Need("find", *OPLOG)]


def missing(client: Client, needs: Iterable[Need]) -> list[Need] | None:
    """Those that no role of the user grants; None if nobody is logged in, be it that the server
    has no access control. Needs no privilege itself."""
    try:
        status = client.admin.command("connectionStatus", showPrivileges=True)
    except pymongo.errors.PyMongoError as error:
        raise translated(error, "Asking for the user's privileges") from error
    info = status["authInfo"]
    if not info["authenticatedUsers"]:
        return None
    granted = info["authenticatedUserPrivileges"]
    return [need for need in needs if not any(_grants(each, need) for each in granted)]


@contextmanager
def named(client: Client, selection: Selection) -> Iterator[None]:
    """A refusal raised inside leaves as one that names what the user lacks, where that is known."""
    try:
        yield
    except NotPermitted as refusal:
        lacking = missing(client, required(selection))
        if not lacking:
            raise
        raise NotPermitted(
            f"The server refused the user, who lacks {', '.join(map(str, lacking))}.",
            "Grant it by a role, as listed under 'Privileges'; check that 'uri' names the user and"
            " the authSource that are meant.",
        ) from refusal.__cause__


def table() -> str:
    """The privileges as a Markdown table, for the README."""
    rows = ["| action | on | for |", "| --- | --- | --- |"]
    for rule in (*REQUIRED, *OPTIONAL):
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
