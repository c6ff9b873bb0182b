"""A process that has imported what Spark's Python processes need, and forks them.

A stream of this source needs four Python processes: the source, its planner, the plan of its tasks,
and the tasks. Spark starts each of them anew, or a daemon that forks it, and each imports PyArrow
and PyMongo: half a CPU second. Here one process imports them, while Java starts. Spark gets
`cdc.forked_python` as its interpreter, which lets the server fork the process.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cdc import forked_python
from cdc.forked_python import LENGTH, PROCESS, STANDARD_FILES

_MODULE = "cdc.fork_server"
_SOCKET, _PROGRAM = "socket", "python"
# More often than a folder for temporary files is cleaned of what was not used for days.
_USE_SECONDS = 3600


class ForkServer:
    """The server of this process. It ends with this process, or by `end`.

    Attributes:
        python: the program to start in place of the interpreter of this process. As long as the
            server runs, `python -m module` is a fork of it.

    Args:
        modules: what to import. If that starts threads, which a fork would lack, the server ends.
        environment: variables that the imports depend on. A fork has the environment of whoever
            starts it, not these.

    Raises OSError if the folder for temporary files cannot have programs or sockets: it may be
    mounted without them, or have too long a name.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="mongodb-cdc-python-"))  # only its owner enters it
        try:
            self.python = str(_write_program(folder))
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(folder / _SOCKET))
                listener.listen()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _MODULE, str(listener.fileno()), *modules],
                    stdin=subprocess.PIPE,
                    env={**os.environ, **environment},
                    pass_fds=[listener.fileno()],
                    process_group=0,  # Ctrl-C in a terminal is for this process
                )
        except OSError:
            shutil.rmtree(folder)
            raise

    def end(self) -> None:
        """End the server. Processes that it has forked go on."""
        self._process.communicate()


def _write_program(folder: Path) -> Path:
    command = [sys.executable, "-I", "-S", forked_python.__file__, str(folder / _SOCKET)]
    program = folder / _PROGRAM
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o700)
    if not os.access(program, os.X_OK):
        raise PermissionError(f"{folder} is mounted without programs.")
    return program


def main() -> None:
    """Be the server: import the modules, then fork for each connection until stdin ends."""
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        folder = Path(listener.getsockname()).parent
        try:
            for name in sys.argv[2:]:
                importlib.import_module(name)
            gc.freeze()  # a collection in a fork would copy all pages of these objects
            if len(list(Path("/proc/self/task").iterdir())) == 1:
                _serve(listener, folder / _PROGRAM)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _serve(listener: socket.socket, program: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with selectors.DefaultSelector() as events:
        events.register(sys.stdin, selectors.EVENT_READ)
        events.register(listener, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in events.select(_USE_SECONDS)]
            if sys.stdin in ready:
                return
            os.utime(program)
            if listener in ready:
                connection, _ = listener.accept()
                if os.fork() == 0:
                    events.close()
                    listener.close()
                    _run(connection)
                connection.close()


def _run(connection: socket.socket) -> None:
    """Run what a connection requests in this process, and end it."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if (request := _receive(connection)) is not None:
            connection.sendall(PROCESS.pack(os.getpid()))
            _run_module(request)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):  # nobody reads it, or the module has closed it
            sys.stdout.flush()
        with suppress(OSError):  # the program that waits for the code was killed
            connection.send(bytes([code & 0xFF]))
        os._exit(code & 0xFF)


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """Receive a request, and make its files and folder those of this process.

    Returns None if its sender was killed meanwhile.
    """
    count = len(STANDARD_FILES) + 1
    size = socket.CMSG_SPACE(count * array.array("i").itemsize)
    head, found, _, _ = connection.recvmsg(LENGTH.size, size)
    if not found:
        return None
    *files, folder = array.array("i", found[0][2])
    for standard, file in zip(STANDARD_FILES, files, strict=True):
        os.dup2(file, standard)
        os.close(file)
    os.fchdir(folder)
    os.close(folder)
    [length] = LENGTH.unpack(head)
    with connection.makefile("rb") as stream:
        data = stream.read(length)
    return json.loads(data) if len(data) == length else None


def _run_module(request: Mapping[str, Any]) -> None:
    """Do what `python -m` does with these arguments in that environment."""
    os.environ.clear()
    os.environ.update(request["environment"])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    new = [path for path in given if path and path not in sys.path]
    sys.path[:] = [str(Path.cwd()), *new, *sys.path[1:]]
    module, *sys.argv[1:] = request["arguments"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
