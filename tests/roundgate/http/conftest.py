"""A client of a gateway that serves one of everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from roundgate.settings.process import Settings
from tests.support.asgi import Client, client, gateway
from tests.support.functions import EVERYTHING
from tests.support.rounds import KEYS


@pytest.fixture(scope="session")
def everything() -> FastAPI:
    """Built once: no request leaves anything behind that another could meet."""
    return gateway(*EVERYTHING)


@pytest.fixture
async def mcp(everything: FastAPI) -> AsyncIterator[Client]:
    async with client(everything) as made:
        yield made


@pytest.fixture
def using(tmp_path: Path) -> Settings:
    """Settings of gateways that have nothing in common but a store and a key."""
    return Settings(store=f"sqlite:///{tmp_path}/shared.sqlite3", state_keys=KEYS)
