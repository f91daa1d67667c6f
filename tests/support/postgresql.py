"""PostgreSQL for tests: a server for each process of pytest, and an empty database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.postgresql import Server as Server
from bench.postgresql import server, why_not


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A server; tests that need it are skipped where it is not installed."""
    if reason := why_not():
        pytest.skip(reason)
    with server() as running:
        yield running


@pytest.fixture
def postgresql(postgresql_server: Server) -> Server:
    """The server, with no rows of a gateway in its database."""
    postgresql_server.empty()
    return postgresql_server
