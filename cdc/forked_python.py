"""A program in place of `python`: a fork of a process that has imported the modules already.

Its arguments are the address of the server, see `cdc.fork_server`, and those of `python -m module`.
It passes its files, folder, arguments and environment to the server, and ends as the fork ends.
Without a server, or with other arguments, it is the interpreter itself.

It runs in place of each process, so it imports little, and nothing of this project.
"""

import array
import json
import os
import signal
import socket
import struct
import sys

STANDARD_FILES = (0, 1, 2)
# The length of a request, and the answer: the number of the forked process.
LENGTH = struct.Struct("<I")
PROCESS = struct.Struct("<i")
_KILLED = 128 + signal.SIGKILL
# Java destroys a process by SIGTERM and by the end of its stdin. Each makes Spark's daemon end its
# workers, but not the second one while it obeys the first: its workers would stay.
_STDIN_SECONDS = 1


def main() -> None:
    address, *arguments = sys.argv[1:]
    if arguments[:1] == ["-m"]:
        _be_forked(address, arguments[1:])
    os.execv(sys.executable, [sys.executable, *arguments])


def _be_forked(address: str, arguments: list[str]) -> None:
    """End this program as its fork ends. Return if there is no server."""
    request = {"arguments": arguments, "environment": dict(os.environ)}
    data = json.dumps(request).encode()
    files = array.array("i", [*STANDARD_FILES, os.open(".", os.O_RDONLY)]).tobytes()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
            # The files travel with the first bytes.
            head = [LENGTH.pack(len(data))]
            server.sendmsg(head, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
            server.sendall(data)
            answer = server.recv(PROCESS.size, socket.MSG_WAITALL)
        except OSError:
            return
        if len(answer) == PROCESS.size:
            _wait(server, *PROCESS.unpack(answer))


def _wait(server: socket.socket, process: int) -> None:
    """End this program as the process ends, which gets SIGTERM a second after this program."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(process, signal.SIGTERM))
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_STDIN_SECONDS))
    for file in STANDARD_FILES:
        os.close(file)  # so that their reader sees when the process closes them
    code = server.recv(1)
    os._exit(code[0] if code else _KILLED)


if __name__ == "__main__":
    main()
