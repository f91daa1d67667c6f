"""A client of a gateway that serves one of everything."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from tests.support.asgi import Client, client, gateway
from tests.support.functions import EVERYTHING


@pytest.fixture(scope="session")
def everything() -> FastAPI:
    """Built once: no request leaves anything behind that another could meet."""
    return gateway(*EVERYTHING)


@pytest.fixture
async def mcp(everything: FastAPI) -> AsyncIterator[Client]:
    async with client(everything) as made:
        yield made
