"""A gateway in this process: an app from a few functions, an httpx client for it, and raw
ASGI exchanges with it."""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import httpx
from fastapi import FastAPI
from msgspec.structs import replace
from starlette.applications import Starlette

from roundgate.config import ConfigFile, validated
from roundgate.main import build_app
from roundgate.settings import Origin
from roundgate.settings.process import DEFAULT_STORE, Settings
from roundgate.settings.yaml_file import Located
from roundgate.tokens.keys import new_key
from tests.support import wire

_numbers = count()


def config_file(*functions: Callable[..., Any], **sections: Any) -> ConfigFile:
    """A configuration with one back end: these decorated functions, under their own names; `backend` adds to it."""
    backend = of_functions(*functions, **sections.pop("backend", {}))
    return config_of({"backends": [backend], **sections})


def of_functions(*functions: Callable[..., Any], **more: Any) -> dict[str, Any]:
    """A back end of these decorated functions, under their own names."""
    module = ModuleType(f"functions_of_a_test_{next(_numbers)}")
    for function in functions:
        setattr(module, function.__name__, function)
    sys.modules[module.__name__] = module
    return {"kind": "python", "name": "python", "prefix": "", "module": module.__name__, **more}


def config_of(value: dict[str, Any], folder: Path = Path()) -> ConfigFile:
    """A configuration as it is in a gateway.yaml of a folder."""
    return validated(value, Origin(Located(folder / "gateway.yaml", {}, {})))


STATE_KEY = new_key()
NO_FALLBACK = {"ask_in_words": False, "without_tasks": "none"}
"""A client without a capability gets an error (-32021)."""


def gateway(
    *functions: Callable[..., Any],
    using: Settings = Settings(),  # noqa: B008 — frozen
    **sections: Any,
) -> FastAPI:
    """Return an app that serves decorated functions (`built`)."""
    return built(config_file(*functions, **sections), using)


def built(
    file: ConfigFile,
    using: Settings = Settings(),  # noqa: B008 — frozen
    **more: Any,
) -> FastAPI:
    """Return the app of a configuration. It has keys and a store of the tests unless named, so that nothing is written
    into the folder in which the tests were started."""
    if not using.state_keys:
        using = replace(using, state_keys=STATE_KEY)
    if using.store == DEFAULT_STORE:
        using = replace(using, store=f"sqlite:///{_folder()}/gateway.sqlite3")
    return build_app(file, using, **more)


@cache
def _folder() -> str:
    """Return a folder of this process, so that no other worker of the tests writes to its store."""
    folder = tempfile.mkdtemp(prefix="roundgate-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Client:
    """A correct client of one app or server, at the path of its endpoint."""

    def __init__(self, http: httpx.AsyncClient, path: str = "/mcp") -> None:
        self.http = http
        self.path = path

    async def post(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        request_id: Any = 1,
        headers: dict[str, str | None] | None = None,
        **meta: Any,
    ) -> httpx.Response:
        """Send a request; `headers` change those of a correct client, `None` drops one."""
        asked = wire.message(method, params, request_id, **meta)
        changed = {
            k: v for k, v in {**wire.headers(asked), **(headers or {})}.items() if v is not None
        }
        async with asyncio.timeout(60):
            return await self.http.post(self.path, content=json.dumps(asked), headers=changed)

    async def result(
        self, method: str, params: dict[str, Any] | None = None, **meta: Any
    ) -> dict[str, Any]:
        """The result of a request that succeeds, checked against the official model."""
        response = await self.post(method, params, **meta)
        assert response.status_code == 200, response.text
        is_stream = response.headers["content-type"] == "text/event-stream"
        answer = wire.events(response.text)[-1] if is_stream else response.json()
        return wire.valid_result(method, answer)

    async def error(
        self, method: str, params: dict[str, Any] | None = None, **meta: Any
    ) -> tuple[int, dict[str, Any]]:
        """HTTP status and JSON-RPC error of a request that fails."""
        response = await self.post(method, params, **meta)
        error = wire.valid_error(response)
        assert response.json()["id"] == 1
        return response.status_code, error

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, **meta: Any
    ) -> dict[str, Any]:
        """The result of tools/call."""
        return await self.result("tools/call", {"name": name, "arguments": arguments or {}}, **meta)

    async def text(self, name: str, arguments: dict[str, Any] | None = None, **meta: Any) -> str:
        """The text of a tool's first block."""
        text: str = (await self.call(name, arguments, **meta))["content"][0]["text"]
        return text


@asynccontextmanager
async def client(app: Starlette, root_path: str = "") -> AsyncIterator[Client]:
    """A client of an app in this process; what the app raises, the test sees."""
    transport = httpx.ASGITransport(app, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield Client(http)


@asynccontextmanager
async def stoppable(app: FastAPI) -> AsyncIterator[FastAPI]:
    """An app that has started as in a server, which would not die of the signal that tells it to stop."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        async with app.router.lifespan_context(app):
            yield app
    finally:
        signal.signal(signal.SIGTERM, before)


class Exchange:
    """One HTTP request, message by message: the test plays the ASGI server and the network.

    `receive` hands out what was fed, in order and each once, as a server with a queue does. `send` waits while
    `reading` is clear, as a server does whose client does not read.
    """

    def __init__(
        self,
        app: FastAPI,
        asked: dict[str, Any] | bytes,
        headers: dict[str, str] | None = None,
        more_headers: Sequence[tuple[str, str]] = (),
        method: str = "POST",
    ) -> None:
        self._app = app
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.receive = self._incoming.get
        self._outgoing: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._buffer = b""
        self.reading = asyncio.Event()
        self.reading.set()
        self.sends = asyncio.Event()
        """Set when the app sends something, whether or not the client reads it."""
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        sent = headers or (wire.headers(asked) if isinstance(asked, dict) else {})
        lines = [("host", "127.0.0.1"), *sent.items(), *more_headers]
        raw = [(name.lower().encode(), value.encode()) for name, value in lines]
        self.scope = {
            "type": "http",
            "method": method,
            "path": "/mcp",
            "query_string": b"",
            "headers": raw,
        }
        self.feed(
            json.dumps(asked).encode() if isinstance(asked, dict) else asked,
            more=not isinstance(asked, dict),
        )
        self.running: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self.running = asyncio.create_task(self._app(self.scope, self.receive, self._send))
        return self

    async def __aexit__(self, *exception: object) -> None:
        if not self.running.done():
            self.hang_up()
        await asyncio.wait_for(self.running, 60)

    def feed(self, body: bytes, more: bool = True) -> None:
        """The client sends (a part of) the body."""
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def hang_up(self) -> None:
        """The client closes the connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def gone(self) -> None:
        """The client closes the connection, and the app notices."""
        self.hang_up()
        async with asyncio.timeout(60):
            while not (self._incoming.empty() or self.running.done()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def event(self) -> dict[str, Any] | None:
        """The next message of the event stream; `None` is a comment."""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += await self._next_body()
        block, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        if block.startswith(b":"):
            return None
        (one,) = wire.events(block.decode())
        return one

    async def body(self) -> bytes:
        """The whole body of an answer that is not a stream."""
        await asyncio.wait_for(asyncio.shield(self.running), 60)
        while not self._outgoing.empty():
            self._buffer += await self._next_body()
        return self._buffer

    async def rest(self) -> list[dict[str, Any]]:
        """All messages that are left, after the app has ended the stream."""
        return wire.events((await self.body()).decode())

    async def _next_body(self) -> bytes:
        sent = await asyncio.wait_for(self._outgoing.get(), 60)
        if sent["type"] == "http.response.start":
            assert self.status is None, "an answer begins once"
            self.status, self.headers = sent["status"], dict(sent["headers"])
            return b""
        assert self.status is not None, "an answer begins with its head"
        body: bytes = sent["body"]
        return body

    async def _send(self, sent: MutableMapping[str, Any]) -> None:
        self.sends.set()
        await self.reading.wait()
        self._outgoing.put_nowait(sent)
