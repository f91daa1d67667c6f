"""A server on a real socket that answers as a test tells it to, right or wrong, and
remembers what it was asked."""

from __future__ import annotations

import asyncio
import inspect
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from roundgate.client import Client
from tests.support.listening import Converse, listening

Reply = bytes | AsyncGenerator[bytes, None] | None


@dataclass
class Asked:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def rpc(self) -> str:
        """The JSON-RPC method, or the HTTP method of a request without a body."""
        return str(self.message.get("method", "(answer)")) if self.body else self.method

    @property
    def params(self) -> dict[str, Any]:
        found: dict[str, Any] = self.message.get("params", {})
        return found


@dataclass
class Scripted:
    """A running server, and its requests in the order in which they came."""

    port: int
    asked: list[Asked] = field(default_factory=list)
    scheme: str = "http"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def methods(self) -> list[str]:
        return [one.rpc for one in self.asked]


Script = Callable[[Asked], Any]


@asynccontextmanager
async def scripted(
    script: Script, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Scripted, None]:
    """Serve what `script` returns for each request: bytes, pieces of bytes, or `None` to close the connection."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (asked := await _read(reader)) is not None:
            server.asked.append(asked)
            reply: Any = script(asked)
            if inspect.isawaitable(reply):
                reply = await reply
            if reply is None:
                break
            if isinstance(reply, bytes):
                writer.write(reply)
            else:
                async with aclosing(reply) as pieces:
                    async for piece in pieces:
                        writer.write(piece)
                        await writer.drain()
                break
            await writer.drain()

    async with listening(converse, tls) as port:
        server = Scripted(port, scheme="http" if tls is None else "https")
        yield server


@asynccontextmanager
async def connected(
    script: Script, **options: Any
) -> AsyncGenerator[tuple[Scripted, Client], None]:
    """A scripted server and a client of it, for at most two minutes; a test may skip half of them."""
    async with (
        asyncio.timeout(120),
        scripted(script) as server,
        Client(server.url, **options) as client,
    ):
        yield server, client


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    with suppress(asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Asked(method, target, headers, body)
    return None


def http(status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> bytes:
    """A whole response."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def says(document: Any, status: int = 200, **headers: Any) -> bytes:
    """A JSON response."""
    return http(status, json.dumps(document).encode(), **headers)


def result(asked: Asked, value: Any, **headers: Any) -> bytes:
    """A JSON-RPC result; one of this revision unless it says its type."""
    value = {"resultType": "complete", **value} if isinstance(value, dict) else value
    return says({"jsonrpc": "2.0", "id": asked.message["id"], "result": value}, **headers)


def error(
    asked: Asked, code: int, message: str = "no", data: Any = None, status: int = 400
) -> bytes:
    """A JSON-RPC error."""
    body: dict[str, Any] = {"code": code, "message": message} | (
        {} if data is None else {"data": data}
    )
    return says({"jsonrpc": "2.0", "id": asked.message["id"], "error": body}, status)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(message: Any, event_id: str | None = None, retry: int | None = None) -> bytes:
    """One event of a stream."""
    fields = [] if event_id is None else [f"id: {event_id}"]
    fields += [] if retry is None else [f"retry: {retry}"]
    fields.append(f"data: {json.dumps(message) if message is not None else ''}")
    return ("\n".join(fields) + "\n\n").encode()


def result_event(asked: Asked, value: Any) -> bytes:
    """The event with the JSON-RPC result of a request."""
    return event({"jsonrpc": "2.0", "id": asked.message["id"], "result": value})


def notice(method: str, **params: Any) -> bytes:
    """The event of a notification."""
    return event({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params})


def text(value: str) -> dict[str, Any]:
    """A tool's result."""
    return {"content": [{"type": "text", "text": value}]}


def modern(call: Script, tools: list[dict[str, Any]] | None = None) -> Script:
    """A server of this revision: it describes itself and lists tools; the rest is `call`'s."""

    def script(asked: Asked) -> Any:
        match asked.rpc:
            case "server/discover":
                about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                return result(asked, {**about, "ttlMs": 0, "cacheScope": "private"})
            case "tools/list":
                listed = tools or [{"name": "t", "inputSchema": {"type": "object"}}]
                return result(asked, {"tools": listed, "ttlMs": 0, "cacheScope": "private"})
        return call(asked)

    return script


@asynccontextmanager
async def serving(converse: Converse, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    """Yield the URL of a server that treats each connection with `converse`."""
    async with listening(converse, tls) as port:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/"
