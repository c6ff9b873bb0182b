"""Faults of an object store, at random: as those of a busy store, or of the way to it."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

# `GET /faults/0.1` lets a tenth of the requests from then on meet a fault.
_SWITCH = re.compile(r"/faults/([0-9.]+)")
# So much more often is a request refused that changes something.
_MORE_OFTEN = 3
_SILENT_SECONDS, _SLOW_SECONDS = 1.0, 0.5
_BUSY = "503 Slow Down", "SlowDown"
_BROKEN = "500 Internal Server Error", "InternalError"


class StoreFaults:
    """Faults of the requests to an application. `counted`: how many, by kind and request."""

    def __init__(self, seed: int) -> None:
        self._chance, self._lock, self._rate = random.Random(seed), threading.Lock(), 0.0
        self.counted = Counter[str]()

    def upon(self, store: Application) -> Application:
        """The application with faults."""

        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            switch = _SWITCH.fullmatch(environ["PATH_INFO"])
            if switch:
                self._rate = float(switch[1])
                start("200 OK", [])
                return []
            return self._answer(store, environ, start)

        return answer

    def _answer(
        self, store: Application, environ: dict[str, Any], start: Callable[..., Any]
    ) -> Iterable[bytes]:
        request = _name(environ)
        kind = self._choose(request)
        if kind == "slow":
            time.sleep(_SLOW_SECONDS)
        if kind == "refused":
            _read(environ)
            return _refuse(environ, start, *_BUSY)
        if kind == "silent":
            time.sleep(_SILENT_SECONDS)
        if kind in ("cut", "silent"):
            return _cut(environ)
        if kind == "done, then refused":
            _do(store, environ)
            return _refuse(environ, start, *_BROKEN)
        if kind == "done, then cut":
            _do(store, environ)
            return _cut(environ)
        return store(environ, start)

    def _choose(self, request: str) -> str | None:
        kinds, rate = ["refused", "slow", "silent", "cut"], self._rate
        if request in ("PUT", "POST", "DELETE"):
            kinds += 2 * ["done, then refused", "done, then cut"]
            rate *= _MORE_OFTEN
        with self._lock:
            if self._chance.random() >= rate:
                return None
            kind = self._chance.choice(kinds)
            self.counted[f"{request} {kind}"] += 1
            return kind


def _name(environ: dict[str, Any]) -> str:
    """The method, or LIST."""
    is_list = environ["REQUEST_METHOD"] == "GET" and "list-type" in environ["QUERY_STRING"]
    return "LIST" if is_list else str(environ["REQUEST_METHOD"])


def _do(store: Application, environ: dict[str, Any]) -> None:
    """Let the store do what is requested; the answer is lost."""
    b"".join(store(environ, lambda *_: None))


def _refuse(
    environ: dict[str, Any], start: Callable[..., Any], status: str, code: str
) -> Iterable[bytes]:
    body = f"<Error><Code>{code}</Code><Message>Later.</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def _cut(environ: dict[str, Any]) -> Iterable[bytes]:
    own: socket.socket = environ["werkzeug.socket"]
    own.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


def _read(environ: dict[str, Any]) -> None:
    """All that the client sends: before that it does not look for an answer."""
    is_chunked = environ.get("wsgi.input_terminated", False)
    environ["wsgi.input"].read(-1 if is_chunked else int(environ.get("CONTENT_LENGTH") or 0))
