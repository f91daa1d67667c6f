"""Gateways in front of older servers that ask, and their clients."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from roundgate.clock import Clock
from roundgate.main import build_app
from tests.support.asgi import STATE_KEY, client, config_of, stoppable
from tests.support.asgi import Client as Mcp
from tests.support.scripted import STREAM_HEAD, Asked, Scripted, event, scripted, text
from tests.support.sdk_servers import NEW, OLDER, SdkServer, needs_older, over_http
from tests.support.server import Server, running
from tests.support.task_client import task_settings
from tests.support.upstreams import Upstream, names, until

CAPABLE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
ADA = {"action": "accept", "content": {"name": "Ada"}}
BOB = {"action": "accept", "content": {"name": "Bob"}}
SAMPLE = {"role": "assistant", "content": {"type": "text", "text": "Carpe"}, "model": "m"}


def older_server(
    folder: Path, kind: str = "2.x", **settings: Any
) -> AbstractAsyncContextManager[SdkServer]:
    """A server that is asked by its older revisions; kinds with `keeps` keep their events."""
    version, *options = kind.split()
    interpreter = NEW if version == "2.x" else OLDER
    return over_http(interpreter, folder, "older", *options, **settings)


KINDS = [
    *("2.x", "2.x keeps"),
    *(pytest.param(kind, marks=needs_older) for kind in ("1.x", "1.x keeps")),
]
BOTH = ["2.x", "2.x keeps"]
"""With a holder, and without."""


@asynccontextmanager
async def replica(
    folder: Path,
    entry: dict[str, Any],
    clock: Clock | None = None,
    sections: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[FastAPI]:
    """One of several gateways over the store of a folder, whose server has been read."""
    tasks = {"poll_interval_ms": 100, "sweep_every_s": 0.1}
    file = config_of({"backends": [entry], "tasks": tasks, **sections})
    using = task_settings(folder, **settings)
    app = await asyncio.to_thread(partial(build_app, file, using, clock=clock))
    async with stoppable(app), client(app) as mcp:

        async def is_listed() -> bool:
            return bool(await names(mcp))

        await until(True, is_listed)
        yield app


@asynccontextmanager
async def clients(
    folder: Path, entry: dict[str, Any], **settings: Any
) -> AsyncIterator[tuple[Mcp, Mcp]]:
    """Clients of two gateways over the store of a folder."""
    async with (
        replica(folder, entry, **settings) as a,
        replica(folder, entry, **settings) as b,
        client(a) as one,
        client(b) as two,
    ):
        yield one, two


async def call(mcp: Mcp, tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """The body of a call by a client that can be asked."""
    params = {"name": f"up__{tool}", "arguments": arguments or {}, **more}
    response = await mcp.post("tools/call", params, clientCapabilities=CAPABLE)
    body: dict[str, Any] = response.json()
    return body


def said(body: dict[str, Any]) -> str:
    return str(body["result"]["content"][0]["text"])


async def to_the_end(mcp: Mcp, tool: str, ended: dict[str, Any]) -> dict[str, Any]:
    """The answer after the rounds that have only a state."""
    while "requestState" in ended["result"]:
        assert "inputRequests" not in ended["result"]
        ended = await call(mcp, tool, requestState=ended["result"]["requestState"])
    return ended


async def again(
    mcp: Mcp, tool: str, asked: dict[str, Any], *answers: Any, arguments: Any = None
) -> dict[str, Any]:
    """The next round, with answers in the order of the questions."""
    result = asked["result"]
    responses = dict(zip(result["inputRequests"], answers, strict=True))
    return await call(
        mcp, tool, arguments, inputResponses=responses, requestState=result["requestState"]
    )


def answer_to(question: Any) -> Any:
    """The answer of a client's user."""
    if question.kind == "sampling":
        return "Carpe"
    if question.kind == "roots":
        return ["file:///home/ada"]
    return {"name": "Bob" if "second" in question.message else "Ada"}


@contextmanager
def gateways(
    folder: Path, entry: dict[str, Any], count: int = 2, **sections: Any
) -> Iterator[list[Server]]:
    """Gateways in processes of their own over one store, which list the server's tools."""
    settings = {
        "GATEWAY_STORE": f"sqlite:///{folder / 'store.sqlite3'}",
        "GATEWAY_STATE_KEYS": STATE_KEY,
    }
    with ExitStack() as stack:
        servers = []
        for number in range(count):
            (folder / str(number)).mkdir()
            config = folder / str(number) / "gateway.json"
            config.write_text(json.dumps({"backends": [entry], **sections}))
            servers.append(stack.enter_context(running(config, settings)))
        for server in servers:
            until_s = time.monotonic() + 60
            while (
                httpx.get(f"{server.url}/healthz", timeout=60).json()["upstreams"][0]["status"]
                != "up"
            ):
                assert time.monotonic() < until_s
                time.sleep(0.05)
        yield servers


class Asking:
    """A tool of an older server that works, asks, and says what `after` returns."""

    def __init__(self, after: Any = None, works: Callable[[], None] = lambda: None) -> None:
        self.after = after
        self.works = works
        self.server: Scripted | None = None

    async def __call__(self, asked: Asked) -> AsyncIterator[bytes]:
        assert self.server is not None
        answered = self.server.methods().count("(answer)") + 1
        yield STREAM_HEAD
        self.works()
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = {"message": "Who?", "requestedSchema": schema}
        yield event({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params})
        while self.server.methods().count("(answer)") < answered:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for message in [] if self.after is None else self.after(asked):
            yield event({"jsonrpc": "2.0", **message})
        yield event({"jsonrpc": "2.0", "id": asked.message["id"], "result": text("done")})


@asynccontextmanager
async def asking(
    folder: Path, call_: Any, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[tuple[Scripted, FastAPI]]:
    """A replica in front of a scripted older server."""
    async with scripted(Upstream(lambda asked: call_(asked), session="s1")) as server:
        if isinstance(call_, Asking):
            call_.server = server
        entry = {"kind": "mcp", "name": "up", "url": server.url, **settings}
        async with replica(folder, entry, clock) as app:
            yield server, app
