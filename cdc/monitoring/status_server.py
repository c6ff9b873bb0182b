"""The page of a pipeline's status on a port of this machine, for `status --serve`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cdc.errors import BadOption, CdcError
from cdc.monitoring.html_report import render_error, render_page
from cdc.monitoring.pipeline_status import View

LOOPBACK = "127.0.0.1"
_REFRESH_SECONDS = 10.0
# Several browsers together query the source and the tables no more often than this.
_CACHE_SECONDS = 2.0
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}


class StatusServer(ThreadingHTTPServer):
    """Answers `GET /` with the page, and is reachable from this machine only.

    `serve_forever` answers requests; `url` is the address for a browser.

    Args:
        name: the name of the pipeline, for the page of an error.
        read: reads the status. Its CdcError becomes a page with the error.
        port: 0 means any free port.

    Raises BadOption if the port cannot be used.
    """

    daemon_threads = True

    def __init__(self, name: str, read: Callable[[], View], port: int) -> None:
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise BadOption(
                f"Port {port} of {LOOPBACK} cannot be used: {error.strerror}.",
                "Choose another port for --serve.",
            ) from error
        self.url = f"http://{LOOPBACK}:{self.server_address[1]}/"
        self._name, self._read = name, read
        self._lock = threading.Lock()
        self._page, self._moment = "", -_CACHE_SECONDS

    def page(self) -> str:
        """The page, at most two seconds old."""
        with self._lock:
            if time.monotonic() - self._moment >= _CACHE_SECONDS:
                self._page, self._moment = self._render(), time.monotonic()
            return self._page

    def _render(self) -> str:
        try:
            return render_page(self._read(), _REFRESH_SECONDS)
        except CdcError as error:
            return render_error(self._name, str(error), _REFRESH_SECONDS)


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer

    def do_GET(self) -> None:
        # A page of a foreign site that resolves its own name to 127.0.0.1 must not read this one.
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in (LOOPBACK, "localhost"):
            self.send_error(403, "Use 127.0.0.1 or localhost")
            return
        if self.path != "/":
            self.send_error(404)
            return
        body = self.server.page().encode()
        self.send_response(200)
        for name, value in {**_HEADERS, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: each browser asks every few seconds."""
