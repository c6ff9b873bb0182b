"""What befalls the job: its commands are refused, its processes killed, its tables written to, its
disk full, its clock wrong."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pymongo.errors import PyMongoError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from cdc.demo.mongod import Member
from tests.end_to_end.campaign.scene import Disturbances, Refuse, Scene
from tests.end_to_end.campaign.supervised import MAY_END_WITH
from tests.end_to_end.job import ROOT, arguments, program_environment
from tests.mongo.capture import until

_MOMENT_SECONDS, _STARTS_SECONDS = 10.0, 180.0
_REPAIRS = 5


def disturbances(scene: Scene, refuse: Refuse) -> Disturbances:
    """`refuse`: who does not answer its commands."""

    def refused(codes: tuple[int, ...]) -> Callable[[], None]:
        return lambda: _refused(scene, refuse, {"errorCode": scene.chance.choice(codes)})

    def killed(pattern: str) -> Callable[[], None]:
        return lambda: killed_at(scene, pattern)

    job, follower = scene.job, scene.follower
    apart: Disturbances = {"follower killed": (2, follower.kill)} if follower else {}
    of_tables: Disturbances = {
        "killed before a table's commit": (0.7, killed("*/*/*/cdc-*.parquet")),
        "killed after a table's commit": (1, killed("*/*/*/_delta_log/[0-9]*.json")),
        "table compacted by another": (3, lambda: _compacted(scene)),
        "mirror rewritten by another": (3, lambda: _rewritten(scene)),
    }
    return {
        **apart,
        **(of_tables if scene.has_tables else {}),
        "commands refused for now": (24, refused(_TRANSIENT)),
        "commands refused for good": (3, refused(_FINAL)),
        "commands unanswered": (5, lambda: _refused(scene, refuse, {"closeConnection": True})),
        "commands slow": (5, lambda: _refused(scene, refuse, _slowly(scene))),
        "job killed": (0.5, job.kill),
        "killed once a batch is planned": (0.7, killed("_checkpoint/offsets/[0-9]*")),
        "killed once a batch is written": (0.7, killed("_checkpoint/commits/[0-9]*")),
        "JVM killed": (0.5, lambda: _ended(job.jvm())),
        "executor or Python worker killed": (2, lambda: _one_ended(scene)),
        "checkpoint cut off": (0.4, lambda: _checkpoint_cut_off(scene)),
        "disk full": (1, lambda: _disk_full(scene)),
        "clock jumps": (3, lambda: _clock_jumps(scene)),
    }


# --- commands ------------------------------------------------------------------------------------

# Those of cdc.mongo.connection.error_codes that say to read again, and others that do not.
_TRANSIENT = (6, 7, 43, 89, 91, 134, 175, 189, 202, 234, 237, 262, 9001, 10107, 11600, 11602)
_FINAL = (1, 2, 8, 13, 96, 136, 239, 246, 280, 286)
_COMMANDS = ("find", "getMore", "aggregate", "splitVector", "hello", "listCollections")


def _slowly(scene: Scene) -> dict[str, Any]:
    return {"blockConnection": True, "blockTimeMS": scene.chance.randrange(100, 3_000)}


def _refused(scene: Scene, refuse: Refuse, how: dict[str, Any]) -> None:
    commands = scene.chance.sample(_COMMANDS, scene.chance.randrange(1, 4))
    refuse(commands, scene.chance.randrange(1, 4), how)
    scene.a_while(2.0)


def fail_commands(
    members: Sequence[Member], commands: Sequence[str], times: int, how: Mapping[str, Any]
) -> None:
    """Each server does not answer the next ones that the connector sends."""
    data = {"failCommands": commands, "appName": "mongodb-cdc", **how}
    fail = {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data}
    for each in members:
        with suppress(PyMongoError), each.client(timeoutMS=2_000) as client:
            client.admin.command(fail)


# --- processes -----------------------------------------------------------------------------------


def _ended(process: psutil.Process | None) -> None:
    if process is not None:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _one_ended(scene: Scene) -> None:
    found = scene.job.workers()
    _ended(scene.chance.choice(found) if found else None)


def killed_at(scene: Scene, pattern: str) -> None:
    """As soon as there is a file that was not there before."""
    base = Path(scene.config.checkpoint).parent

    def files() -> set[Path]:
        return set(base.glob(pattern))

    before, deadline = files(), time.monotonic() + _MOMENT_SECONDS
    while time.monotonic() < deadline and files() <= before:
        time.sleep(0.002)
    scene.job.kill()


# --- disk and clock ------------------------------------------------------------------------------


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


def _checkpoint_cut_off(scene: Scene) -> None:
    """Of its last file a part is left, as after a power loss; whoever reads what the job says of it
    does so."""
    scene.job.kill()
    logs = [Path(scene.config.checkpoint) / log for log in ("offsets", "commits")]
    found = [max(log.glob("[0-9]*"), key=lambda path: int(path.name), default=None) for log in logs]
    last = scene.chance.choice(found)
    if last is None:
        return
    is_reported = scene.job.says("repair-checkpoint")
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    os.truncate(last, scene.chance.randrange(last.stat().st_size))
    until(is_reported, _STARTS_SECONDS)
    repair = [sys.executable, "jobs/repair_checkpoint.py", *arguments(scene.config)]
    environment = {**program_environment(), **scene.job.environment}
    for _ in range(_REPAIRS):
        done = subprocess.run(
            repair, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in MAY_END_WITH:  # an object store may fail it
            break
    assert done.returncode == 0, done.stderr


def _clock_jumps(scene: Scene) -> None:
    """By seconds to days, ahead or back; then it is right again, which is another jump."""
    seconds = scene.chance.choice([1, 60, 3_600, 86_400, 40 * 86_400])
    scene.job.set_clock(scene.chance.choice([-1, 1]) * scene.chance.randrange(seconds + 1))
    scene.a_while(6.0)
    scene.job.set_clock(0)


# --- tables --------------------------------------------------------------------------------------


def _compacted(scene: Scene) -> None:
    _written(scene, ["changelog", "mirror"], lambda table: table.optimize().executeCompaction())


def _rewritten(scene: Scene) -> None:
    """Each row is as it was, and each file another one: so the job's merges are in conflict."""
    _written(scene, ["mirror"], lambda table: table.update(set={"document": F.col("document")}))


def _written(scene: Scene, kinds: list[str], write: Callable[[DeltaTable], object]) -> None:
    namespace = scene.chance.choice(scene.namespaces)
    table = scene.config.table(scene.chance.choice(kinds), namespace)
    with suppress(PySparkException, Py4JError):  # the job may have been the first
        if table is not None and table.target.exists(scene.spark):
            write(table.target.delta(scene.spark))
