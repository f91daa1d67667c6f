"""A transport to an ASGI app in this process, which streams responses, unlike httpx's ASGI
transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from roundgate.client import HttpRequest
from roundgate.errors import ConnectionLost
from roundgate_testing.crashes import Watched

_MAX_RESENDS: Final = 50
"""The maximum number of times that a request with the status 503 is sent again."""
_WITH_EFFECTS: Final = ("tools/call", "tasks/update")
Serve: TypeAlias = Callable[
    [dict[str, Any], Callable[..., Any], Callable[..., Any]], Awaitable[None]
]
"""An ASGI app that serves one request."""


class AsgiTransport:
    """A transport that sends each request of a client to an instance.

    In a crash test, the transport repeats a request whose response was lost because its instance
    died, as callers would do. It first reads the whole response, because half a response cannot be
    withdrawn.
    """

    def __init__(self, serve: Serve, watched: Watched | None) -> None:
        self._serve = serve
        self._watched = watched
        self._answers = 0

    async def send(self, request: HttpRequest) -> _Response:
        """Send a request and return its response once the head has arrived.

        Raises:
            ConnectionLost: the instance died first.
            Exception: the app raised it.
        """
        if self._watched is None:
            return await _Response(request, self._serve).begun()
        return await self._send_again(request, self._watched)

    async def _send_again(self, request: HttpRequest, watched: Watched) -> _Response:
        method = dict(request.headers).get("Mcp-Method", "")
        resends = 0
        while True:
            had_died = watched.has_died
            try:
                response = await _Response(request, self._serve).begun()
                await response.collect()
            except ConnectionLost:
                if had_died or not watched.has_died:
                    raise
                continue
            if response.status == 503 and watched.has_died and resends < _MAX_RESENDS:
                resends += 1  # the lease of the dead instance still holds
                continue
            if method in _WITH_EFFECTS:
                self._answers += 1
                if watched.reaches(f"request {self._answers} ({method})", "is answered"):
                    continue
            return response

    async def close(self) -> None:
        """Do nothing, because there are no connections."""


class _Response:
    """The response of an app, while the app produces it."""

    def __init__(self, request: HttpRequest, serve: Serve) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._body: bytes | None = request.body or b""
        self._gone = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._begun = asyncio.Event()
        self._is_complete = False
        self._running = asyncio.ensure_future(serve(_scope(request), self._receive, self._send))
        self._running.add_done_callback(self._end)

    async def begun(self) -> _Response:
        """Return this response once its head has arrived.

        Raises:
            ConnectionLost, Exception: as for `AsgiTransport.send`.
        """
        try:
            await self._begun.wait()
        except BaseException:
            await self.close()
            raise
        if not self.status:
            self._raise()
        return self

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while (part := await self._parts.get()) is not None:
            if part:
                yield part
        if not self._is_complete:
            self._raise()

    async def collect(self) -> None:
        """Read the whole body, which `chunks` then yields."""
        body = b"".join([part async for part in self.chunks()])
        self._parts = asyncio.Queue()
        self._parts.put_nowait(body)
        self._parts.put_nowait(None)

    async def close(self) -> None:
        """Disconnect from the app, and wait up to 5 s until it has ended."""
        self._gone.set()
        await asyncio.wait([self._running], timeout=5)
        self._running.cancel()

    def _raise(self) -> None:
        if not self._running.cancelled() and (error := self._running.exception()) is not None:
            raise error
        raise ConnectionLost("The gateway died before its response was complete", was_sent=True)

    def _end(self, running: asyncio.Future[None]) -> None:
        self._begun.set()
        self._parts.put_nowait(None)
        if not running.cancelled():
            running.exception()  # mark it as retrieved: `_raise` raises it for the reader

    async def _receive(self) -> dict[str, Any]:
        if (body := self._body) is not None:
            self._body = None
            return {"type": "http.request", "body": body, "more_body": False}
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
                self._is_complete = True
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
