"""The network between the connector and a replica set's members, for a test to break.

Every member is known by the address of a forwarder of its own, to the other members too: what a
driver finds out of the set leads through here. Only the connector's connections are ever harmed;
they are reported by their application's name, which a driver says in its first message.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence

from cdc.demo.mongod import find_free_ports

APP_NAME = b"mongodb-cdc"
_CHUNK = 2**16


class Network:
    """Forwarders to these ports of 127.0.0.1; closed, with all connections, by `close`."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._passable, self._closing = threading.Event(), threading.Event()
        self._passable.set()
        self._is_cut = False
        # Of whatever passes, in seconds.
        self.delay = 0.0
        self._of_connector: set[socket.socket] = set()
        self._lock = threading.Lock()
        # Not those that the system gives to any process: clients go on connecting to them when this
        # is closed. A JVM that gets such a port for its Python processes runs out of memory: it
        # takes the first four bytes for a length.
        own = find_free_ports(len(ports))
        self._listeners = [socket.create_server(("127.0.0.1", each)) for each in own]
        self.hosts = [f"127.0.0.1:{each}" for each in own]
        for listener, port in zip(self._listeners, ports, strict=True):
            _run(self._accept, listener, port)

    def cut(self) -> None:
        """Ends all connections of the connector; new ones end at once."""
        with self._lock:
            self._is_cut = True
            for each in self._of_connector:
                _end(each)

    def silence(self) -> None:
        """The connector's connections stay open, and new ones are accepted, but nothing passes."""
        self._passable.clear()

    def restore(self) -> None:
        """What was held back arrives, if somebody still waits for it."""
        self._is_cut, self.delay = False, 0.0
        self._passable.set()

    def close(self) -> None:
        self.cut()
        self.restore()
        for each in self._listeners:
            _end(each)

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            _run(self._serve, client, port)

    def _serve(self, client: socket.socket, port: int) -> None:
        with client, contextlib.suppress(OSError):
            first = client.recv(_CHUNK)
            is_connector = APP_NAME in first
            with socket.create_connection(("127.0.0.1", port)) as server:
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    if is_connector and self._is_cut:
                        return
                    if is_connector:
                        self._of_connector |= {client, server}
                try:
                    back = _run(self._pump, server, client, is_connector, b"")
                    self._pump(client, server, is_connector, first)
                    back.join()
                finally:
                    with self._lock:
                        self._of_connector -= {client, server}

    def _pump(
        self, source: socket.socket, target: socket.socket, is_connector: bool, data: bytes
    ) -> None:
        with contextlib.suppress(OSError):
            while data or (data := source.recv(_CHUNK)):
                if is_connector:
                    self._passable.wait()
                    time.sleep(self.delay)
                target.sendall(data)
                data = b""
        _end(source)
        _end(target)


def _run(target: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def _end(open_socket: socket.socket) -> None:
    """Wakes up whoever reads from it."""
    with contextlib.suppress(OSError):
        open_socket.shutdown(socket.SHUT_RDWR)
