"""Processes that end when this one ends, however that happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Self

from cdc.errors import CdcError
from cdc.shutdown import descendants, kill

_POLL_SECONDS = 0.1
_STDERR = 2

# Linux sends the signal of PR_SET_PDEATHSIG when the *thread* that started the child ends. This
# single thread starts every process and ends with the interpreter. So a process does not outlive a
# killed parent, and does not die with a short-lived thread that started it.
_LAUNCHER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")

# A separate program instead of `preexec_fn`, which may deadlock in a process with threads. It
# checks its parent: if the parent died before the call of prctl, no signal would be sent.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def launch(command: Sequence[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start a command; without `output`, it prints to stderr of this process."""
    return _LAUNCHER.submit(_launch, command, output).result()


def _launch(command: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=_STDERR if output is None else output,
        stderr=subprocess.STDOUT,
        # Ctrl-C must not reach the process: the program needs it for its cleanup.
        start_new_session=True,
    )


class Replicate:
    """The program `replicate` in processes of its own, until the block ends; then it is killed.

    `options` are those that `-o` takes.
    """

    def __init__(self, options: Sequence[str]) -> None:
        given = [part for option in options for part in ("-o", option)]
        self._command = [sys.executable, "-m", "cdc.cli.replicate", *given]

    def __enter__(self) -> Self:
        self._process = launch(self._command)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The id of its first process."""
        return self._process.pid

    def wait_until(
        self, is_reached: Callable[[], object], seconds: float, poll: float = _POLL_SECONDS
    ) -> None:
        """Wait for a state. Raises CdcError if the program ends, or the time is over, before."""
        deadline = time.monotonic() + seconds
        while not is_reached():
            if (code := self._process.poll()) is not None:
                raise CdcError(f"replicate ended with code {code}; its last lines say why.")
            if time.monotonic() > deadline:
                raise CdcError(f"replicate did not get there within {seconds:.0f} s.")
            time.sleep(poll)

    def kill(self) -> None:
        """`kill -9` of all its processes. No effect if it has ended."""
        # Listed before the kill: orphans get another parent.
        processes = [self.pid, *descendants(self.pid)] if self._process.poll() is None else []
        for each in processes:
            kill(each)
        self._process.wait()
