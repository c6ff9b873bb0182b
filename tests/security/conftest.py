"""A server that asks for TLS and certificates, started once per process of the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.certificates import Secured, secured_server


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("secured")) as server:
        yield server
