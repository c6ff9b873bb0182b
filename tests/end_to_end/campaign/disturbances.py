"""What befalls servers, network, commands and processes. Each is over when its function returns,
but for processes that have to be started again."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pymongo.errors import NotPrimaryError, PyMongoError
from pymongo.write_concern import WriteConcern
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.model.selection import Namespace
from jobs.config import Config
from jobs.mongod import Member
from tests.end_to_end.campaign.supervised import Supervised
from tests.mongo.trio import Trio


@dataclass(frozen=True)
class Scene:
    trio: Trio
    job: Supervised
    config: Config
    namespace: Namespace
    spark: SparkSession
    chance: random.Random

    def primary(self) -> Member:
        return self.trio.replica_set.wait_writable()

    def secondary(self) -> Member:
        return self.chance.choice(self.trio.others(self.primary()))

    def a_while(self, most: float = 3.0) -> None:
        time.sleep(self.chance.uniform(0.1, most))


Disturbance = Callable[[Scene], object]

# --- servers -------------------------------------------------------------------------------------


def _killed(scene: Scene, member: Member) -> None:
    member.kill()
    scene.a_while()
    member.start()


def _frozen(scene: Scene, member: Member) -> None:
    member.freeze()
    scene.a_while(5.0)
    member.thaw()


def _steps_down(scene: Scene) -> None:
    with scene.primary().client() as client, suppress(NotPrimaryError):
        client.admin.command("replSetStepDown", 3, secondaryCatchUpPeriodSecs=2)


def _rolled_back(scene: Scene) -> None:
    """The primary goes on taking writes that nobody replicates, and answers reads meanwhile; then
    another one is elected, and it has to take the other's writes instead."""
    primary = scene.primary()
    others = scene.trio.others(primary)
    for other in others:
        scene.trio.replicates(other, "alwaysOn")
    with suppress(PyMongoError), primary.client(timeoutMS=5_000) as client:
        alone = client.get_database(scene.namespace.db, write_concern=WriteConcern(1, j=True))
        for key in range(50):
            alone[scene.namespace.coll].update_one({"_id": key}, {"$set": {"doomed": True}})
    scene.a_while(1.0)
    freezes = scene.chance.random() < 0.5
    primary.freeze() if freezes else primary.kill()
    for other in others:
        scene.trio.replicates(other)
    scene.trio.lead(scene.chance.choice(others))
    primary.thaw() if freezes else primary.start()


# --- network -------------------------------------------------------------------------------------


def _cut(scene: Scene) -> None:
    scene.trio.network.cut()
    scene.a_while(5.0)
    scene.trio.network.restore()


def _silent(scene: Scene) -> None:
    scene.trio.network.silence()
    scene.a_while(8.0)
    scene.trio.network.restore()


def _slow(scene: Scene) -> None:
    scene.trio.network.delay = scene.chance.uniform(0.01, 0.2)
    scene.a_while(5.0)
    scene.trio.network.delay = 0.0


# --- commands ------------------------------------------------------------------------------------

# Those of cdc.mongo.codes that say to read again, and others that do not.
_TRANSIENT = (6, 7, 43, 89, 91, 134, 175, 189, 202, 234, 237, 262, 9001, 10107, 11600, 11602)
_FINAL = (1, 2, 8, 13, 96, 136, 239, 246, 280, 286)
_COMMANDS = ("find", "getMore", "aggregate", "splitVector", "hello", "listCollections")


def _refused(scene: Scene, codes: tuple[int, ...]) -> None:
    how: dict[str, Any] = {"errorCode": scene.chance.choice(codes)}
    if scene.chance.random() < 0.2:
        how = {"closeConnection": True}
    commands = scene.chance.sample(_COMMANDS, scene.chance.randrange(1, 4))
    data = {"failCommands": commands, "appName": "mongodb-cdc", **how}
    times = {"times": scene.chance.randrange(1, 4)}
    for each in scene.trio.members:
        with suppress(PyMongoError), each.client(timeoutMS=2_000) as client:
            client.admin.command({"configureFailPoint": "failCommand", "mode": times, "data": data})
    scene.a_while()


# --- processes -----------------------------------------------------------------------------------


def _ended(process: psutil.Process | None) -> None:
    if process is not None:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _worker_killed(scene: Scene) -> None:
    workers = scene.job.workers()
    _ended(scene.chance.choice(workers) if workers else None)


def _disk_full(scene: Scene) -> None:
    """No file of the JVM's can grow beyond some bytes: what it writes to tables and checkpoint
    fails at once, or half-way."""
    jvm = scene.job.jvm()
    if jvm is None:
        return
    with suppress(psutil.NoSuchProcess):
        was = jvm.rlimit(resource.RLIMIT_FSIZE)
        jvm.rlimit(resource.RLIMIT_FSIZE, (scene.chance.choice([0, 100, 5_000, 100_000]), was[1]))
        scene.a_while()
        jvm.rlimit(resource.RLIMIT_FSIZE, was)


# --- tables --------------------------------------------------------------------------------------


def _other_writer(scene: Scene) -> None:
    """Another process rewrites the files of a table meanwhile."""
    table = scene.config.table(scene.chance.choice(["changelog", "mirror"]), scene.namespace)
    assert table is not None
    with suppress(PySparkException, Py4JError):  # the job may have been the first
        if table.target.exists(scene.spark):
            found: DeltaTable = table.target.delta(scene.spark)
            found.optimize().executeCompaction()


# By how often, beside the others. Those that a new JVM follows take longest.
DISTURBANCES: dict[str, tuple[float, Disturbance]] = {
    "primary killed": (4, lambda s: _killed(s, s.primary())),
    "secondary killed": (3, lambda s: _killed(s, s.secondary())),
    "primary steps down": (6, _steps_down),
    "primary stands still": (3, lambda s: _frozen(s, s.primary())),
    "secondary stands still": (3, lambda s: _frozen(s, s.secondary())),
    "writes rolled back": (3, _rolled_back),
    "network cut": (5, _cut),
    "network silent": (3, _silent),
    "network slow": (3, _slow),
    "commands refused for now": (20, lambda s: _refused(s, _TRANSIENT)),
    "commands refused for good": (3, lambda s: _refused(s, _FINAL)),
    "job killed": (1, lambda s: s.job.kill()),
    "JVM killed": (1, lambda s: _ended(s.job.jvm())),
    "Python worker killed": (1.5, _worker_killed),
    "disk full": (1.5, _disk_full),
    "another writer of a table": (4, _other_writer),
}
