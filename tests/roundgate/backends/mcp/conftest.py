"""What tests of servers share: time for them to start, and short pauses."""

from __future__ import annotations

import pytest

from roundgate.backends.mcp import backend as mcp_backend
from roundgate.backends.mcp import server as mcp_server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server at start-up as long as a slow machine takes."""
    monkeypatch.setattr(mcp_backend, "START_S", 60.0)


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a tenth of a second."""
    monkeypatch.setattr(mcp_server, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(mcp_server, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(mcp_backend, "LEAST_PAUSE_S", 0.05)
    monkeypatch.setattr(mcp_backend, "LEAST_TTL_S", 0.05)
    monkeypatch.setattr(mcp_backend, "EMPTY_POLL_PAUSES_S", (0.1, 0.1))
