"""The embedded servers: what the demo and every test against MongoDB rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdc.demo import ReplicaSet
from cdc.errors import CdcError

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, threading, time
from cdc.demo import ReplicaSet
replica_set = ReplicaSet()
# Started by a thread that ends at once: the server must not end with it.
thread = threading.Thread(target=replica_set.__enter__)
thread.start()
thread.join()
time.sleep(0.5)
print(replica_set.primary().process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.soak
def test_three_members_outlive_kill_stop_and_freeze_of_their_primaries() -> None:
    with ReplicaSet(members=3) as replica_set, replica_set.client() as client:
        for fault, repair in (("kill", "start"), ("stop", "start"), ("freeze", "thaw")):
            failed = replica_set.wait_writable()
            getattr(failed, fault)()
            assert replica_set.wait_writable() is not failed
            client.test.faults.insert_one({"_id": fault})
            getattr(failed, repair)()
        assert client.test.faults.count_documents({}) == 3


def test_a_killed_member_starts_again_on_its_data() -> None:
    with ReplicaSet() as replica_set, replica_set.client() as client:
        client.test.kept.insert_one({"_id": 1})
        member = replica_set.members[0]
        member.kill()
        member.start()
        assert replica_set.wait_writable() is member
        assert client.test.kept.count_documents({}) == 1


def test_servers_and_data_are_gone_after_an_exception() -> None:
    with pytest.raises(KeyboardInterrupt), ReplicaSet() as replica_set:
        raise KeyboardInterrupt
    assert replica_set.members[0].process.poll() is not None
    assert not replica_set.members[0].log.parent.exists()


def test_a_server_outlives_the_thread_that_started_it_but_not_the_killed_program(
    tmp_path: Path,
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        # A killed program cannot delete the data; pytest does.
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    assert program.stdout is not None
    server = int(program.stdout.readline())
    program.send_signal(signal.SIGKILL)
    program.wait()
    deadline = time.monotonic() + 10
    while _runs(server):
        assert time.monotonic() < deadline, "the server outlived the program that started it"
        time.sleep(0.05)


def test_a_server_that_does_not_start_is_reported_with_the_tail_of_its_log() -> None:
    with (
        pytest.raises(CdcError, match=r"(?s)mongod at 127.0.0.1:\d+ ended.*no_such_parameter"),
        ReplicaSet(set_parameters={"no_such_parameter": 1}),
    ):
        pass


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
