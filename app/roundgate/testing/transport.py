"""Requests to an ASGI app in this process. Answers stream; the transport that httpx
has collects them first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from roundgate.client import HttpRequest
from roundgate.errors import ConnectionLost

if TYPE_CHECKING:
    from roundgate.testing.crashes import Watched

_LATER: Final = 50
"""How often a request is sent again that is answered with 503, "send it again"."""
_WITH_EFFECTS: Final = ("tools/call", "tasks/update")
Serve = Callable[[dict[str, Any], Callable[..., Any], Callable[..., Any]], Awaitable[None]]
"""An ASGI app that serves one request."""


class AsgiTransport:
    """Sends each request to an app, which `serve` finds for it."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    async def send(self, request: HttpRequest) -> AsgiResponse:
        """See `roundgate.client.transport.Transport`."""
        response = AsgiResponse(request, self._serve)
        await response.begin()
        return response

    async def close(self) -> None:
        """There are no connections."""


class ResendingTransport(AsgiTransport):
    """Sends a request again whose answer did not come, because the gateway died:
    what whoever calls would do.

    Answers are collected first: one that was begun cannot be taken back.
    """

    def __init__(self, serve: Serve, watched: Watched) -> None:
        super().__init__(serve)
        self._watched = watched
        self._answers = 0

    async def send(self, request: HttpRequest) -> CollectedResponse:  # type: ignore[override]
        """See `AsgiTransport`."""
        method = dict(request.headers).get("Mcp-Method", "")
        later = 0
        while True:
            had_died = self._watched.has_died
            try:
                response = await super().send(request)
                body = b"".join([part async for part in response.chunks()])
            except ConnectionLost:
                if had_died or not self._watched.has_died:
                    raise
                continue
            if response.status == 503 and self._watched.has_died and later < _LATER:
                later += 1  # what the dead one had begun is still waited for
                continue
            if method in _WITH_EFFECTS:
                self._answers += 1
                if self._watched.comes_to(f"request {self._answers} ({method})", "is answered"):
                    continue
            return CollectedResponse(response.status, response.headers, body)


@dataclass(frozen=True)
class CollectedResponse:
    """An answer that is whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """See `roundgate.client.transport.HttpResponse`."""
        yield self.body

    async def close(self) -> None:
        """There is nothing to close."""


class AsgiResponse:
    """An answer, while it is made."""

    def __init__(self, request: HttpRequest, serve: Serve) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._body = request.body or b""
        self._has_sent = False
        self._gone = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._begun = asyncio.Event()
        self._is_whole = False
        self._running = asyncio.ensure_future(serve(_scope(request), self._receive, self._send))
        self._running.add_done_callback(self._over)

    async def begin(self) -> None:
        """Wait for the head.

        Raises:
            ConnectionLost: there will be none. What the app raised is raised as it is.
        """
        try:
            await self._begun.wait()
        except BaseException:
            await self.close()
            raise
        if not self.status:
            self._raise()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """See `roundgate.client.transport.HttpResponse`."""
        while (part := await self._parts.get()) is not None:
            if part:
                yield part
        if not self._is_whole:
            self._raise()

    async def close(self) -> None:
        """Hang up, and wait until the app has noticed."""
        self._gone.set()
        await asyncio.wait([self._running], timeout=5)
        self._running.cancel()

    def _raise(self) -> None:
        if not self._running.cancelled() and (error := self._running.exception()) is not None:
            raise error
        raise ConnectionLost("The gateway died before its answer was whole", was_sent=True)

    def _over(self, running: asyncio.Future[None]) -> None:
        self._begun.set()
        self._parts.put_nowait(None)
        if not running.cancelled():
            running.exception()  # it is raised where the answer is read

    async def _receive(self) -> dict[str, Any]:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in message["headers"]
            }
            self._begun.set()
        elif message["type"] == "http.response.body":
            self._parts.put_nowait(message.get("body", b""))
            if not message.get("more_body"):
                self._is_whole = True
                self._parts.put_nowait(None)


def _scope(request: HttpRequest) -> dict[str, Any]:
    path, _, query = request.url.target.partition("?")
    lines = [("host", request.url.authority), *request.headers]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in lines],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
