"""Services behind a gateway: an HTTP back end in front of any URL, and a service that says
the bytes it is told to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from roundgate.settings.process import Settings
from tests.support.asgi import Client, built, client, config_of
from tests.support.listening import listening


@asynccontextmanager
async def gateway_to(
    base_url: str, *tools: dict[str, Any], **backend: Any
) -> AsyncIterator[Client]:
    """A client of a gateway whose one back end has these tools of the service at a URL, under their own names."""
    declared = [{"name": "tool", "path": "/", "description": "A tool.", **tool} for tool in tools]
    entry = {
        "kind": "http",
        "name": "api",
        "prefix": "",
        "base_url": base_url,
        "tools": declared,
        **backend,
    }
    app = built(config_of({"backends": [entry]}), Settings())
    async with app.router.lifespan_context(app), client(app) as one:
        yield one


def answer(
    body: bytes = b"{}",
    status: str = "200 OK",
    content_type: str | None = "application/json",
    length: int | None = None,
    **headers: str,
) -> bytes:
    """One HTTP answer; a `length` that is not the body's makes it a lie."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"Content-Type: {content_type}"] if content_type else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Service:
    """Answers each request with the next of its answers, the last one again and again. `requests` has them all, raw."""

    def __init__(self, answers: tuple[bytes, ...], pause_s: float, at_once: int) -> None:
        self.answers = answers
        self._pause_s = pause_s
        self._at_once = at_once
        self.requests: list[bytes] = []
        self.connections = 0
        self.open_connections = 0
        self.most_connections = 0
        self.port = 0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def request_lines(self) -> list[str]:
        return [request.partition(b"\r\n")[0].decode() for request in self.requests]

    def header(self, name: str, request: int = -1) -> list[str]:
        """Every value of a header of a request."""
        lines = self.requests[request].partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        pairs = [line.partition(":") for line in lines]
        return [value.strip() for found, _, value in pairs if found.lower() == name.lower()]

    def body(self, request: int = -1) -> bytes:
        return self.requests[request].partition(b"\r\n\r\n")[2]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        self.most_connections = max(self.most_connections, self.open_connections)
        try:
            while await self._one(reader, writer):
                pass
        finally:
            self.open_connections -= 1

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        if length := self.header("content-length"):
            self.requests[-1] += await reader.readexactly(int(length[0]))
        said = self.answers[min(len(self.requests), len(self.answers)) - 1]
        for start in range(0, len(said), self._at_once):
            await asyncio.sleep(self._pause_s)
            writer.write(said[start : start + self._at_once])
            await writer.drain()
        return b"connection: close" not in said.lower() and said.startswith(b"HTTP/")


@asynccontextmanager
async def service(
    *answers: bytes,
    pause_s: float = 0,
    at_once: int = 1_000_000,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Service]:
    """A service on a port of its own; it pauses before each `at_once` bytes that it says."""
    told = Service(answers or (answer(),), pause_s, at_once)
    told.scheme = "http" if tls is None else "https"
    async with listening(told.serve, tls) as told.port:
        yield told
