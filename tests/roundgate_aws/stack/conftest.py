"""One stack for all of these tests: three gateways and two workers of AWS
Lambda, behind API Gateway: an HTTP API, or a REST API with STACK_API=rest."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from roundgate_aws.stack.functions import Environment, EnvironmentPool, why_not
from roundgate_aws.stack.stack import Deployment, Stack, Times, build_zips, running
from tests.support.asgi import Client
from tests.support.task_client import TaskClient

CONFIG = Path(__file__).parent / "served/gateway.yaml"
FUNCTIONS = Path(__file__).parent / "served_functions/functions.yaml"
API = os.environ.get("STACK_API", "http")
only_http = pytest.mark.skipif(API != "http", reason="of an HTTP API alone")
"""Marks tests of limits and answers of an HTTP API, and of functions whose responses are whole."""
TIMES = Times(sweep_every_s=1, gateway_s=8)
"""A quarter of the function's deployed time-out, because tests wait for it. The API's is as deployed:
it includes cold starts, which take 9 s and more on a busy machine."""


@dataclass
class Deployed:
    """A stack, and where what its tools do leaves its traces."""

    stack: Stack
    effects: Path

    def done(self, order: str) -> list[str]:
        """What was done for an order: `what receipt`, once for each time."""
        lines = self.effects.read_text().splitlines() if self.effects.exists() else []
        return [line.removeprefix(f"{order} ") for line in lines if line.startswith(f"{order} ")]


async def begun(stack: Deployed, order: str, what: str, within_s: float = 90) -> None:
    """Wait until something has happened for an order."""
    end = time.monotonic() + within_s
    while not any(line.startswith(what) for line in stack.done(order)):
        assert time.monotonic() < end, f"{what} does not happen"
        await asyncio.sleep(0.02)


def last(pool: EnvironmentPool) -> Environment:
    """The environment that the latest invocation went to."""
    return next(one for one in pool.environments if one.name == pool.recent[-1])


async def until(
    tasks: TaskClient, task_id: str, status: str, within_s: float = 90
) -> dict[str, Any]:
    """The task once it has a status; asked for no more often than a good client would."""
    end = time.monotonic() + within_s
    while (task := await tasks.get(task_id))["status"] != status:
        assert time.monotonic() < end, task
        await asyncio.sleep(0.2)
    return task


def to_api(deployment: Deployment, pool: EnvironmentPool) -> httpx.AsyncClient:
    """Speaks to an API of its own in front of a pool."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(deployment.api(pool)), base_url="http://127.0.0.1"
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    """The stack, up; skipped where it cannot be."""
    if reason := why_not():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("stack")
    effects = directory / "effects.txt"
    zips = build_zips(CONFIG, directory / "zips")
    more = {"EFFECTS": str(effects)}
    api = os.environ.get("STACK_API", "http")
    async with running(directory, zips, api=api, times=TIMES, more=more, functions=FUNCTIONS) as up:
        yield Deployed(up, effects)


@pytest_asyncio.fixture(loop_scope="session")
async def http(stack: Deployed) -> AsyncIterator[httpx.AsyncClient]:
    """Speaks to the API, with a connection for each request."""
    url = stack.stack.url.removesuffix("/mcp")
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, trust_env=False, limits=limits, timeout=60) as made:
        yield made


@pytest.fixture
def mcp(http: httpx.AsyncClient) -> Client:
    """A client of the API."""
    return Client(http)


@pytest.fixture
def tasks(mcp: Client) -> TaskClient:
    """One that declares the tasks extension."""
    return TaskClient(mcp)
