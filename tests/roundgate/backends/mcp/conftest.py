"""What tests of servers share: time for them to start."""

from __future__ import annotations

import pytest

from roundgate.backends.mcp import backend as mcp_backend


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server at start-up as long as a slow machine takes."""
    monkeypatch.setattr(mcp_backend, "START_S", 60.0)
