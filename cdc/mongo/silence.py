"""The first question to a deployment, which takes as long as no server is found."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.mongo.client import Client
from cdc.mongo.refusals import NO_ANSWER, unreachable

_log = logging.getLogger(__name__)
_SECONDS = 3.0


@contextmanager
def broken(client: Client, timeout_ms: int) -> Iterator[None]:
    """While the question in the block is open for more than a few seconds, the log says once why.
    The driver says it when its time is over: it goes on looking, whatever is wrong."""

    def tell() -> None:
        reason = unreachable(repr(client.topology_description))
        _log.warning(
            "%s; looking for a server for %g s (server.timeout.ms)",
            "there is no answer yet" if reason is NO_ANSWER else reason.message,
            timeout_ms / 1000,
        )

    timer = threading.Timer(_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
