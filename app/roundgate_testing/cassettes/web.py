"""The ASGI app of a replay or a recording proxy, with limits on the origin and the size of requests.

A reply may be lost or cut: then the connection closes before the response is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from roundgate.errors import UsageError
from roundgate.json import encode
from roundgate.net.addresses import host_of
from roundgate.net.serving import served

_MAX_BODY: Final = 32 * 1024 * 1024
_MAX_CONNECTIONS: Final = 256
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """An HTTP request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class WebReply:
    """An HTTP response. `None` in place of a reply closes the connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    stream: AsyncGenerator[bytes, None] | None = None
    """The chunks of a streamed body, sent instead of `body`."""
    is_cut: bool = False
    """Whether the response breaks off before its end."""


def refusal(request_id: Any, code: int, message: str, status: int = 200) -> WebReply:
    """Return a reply with a JSON-RPC error."""
    error = {"code": code, "message": message}
    body = encode({"jsonrpc": "2.0", "id": request_id, "error": error})
    return WebReply(status, {"content-type": "application/json"}, body)


Answerer = Callable[[IncomingRequest], Awaitable[WebReply | None]]


def address(text: str) -> tuple[str, int]:
    """Parse `127.0.0.1:0` into host and port. Raise `UsageError` if it is malformed."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"--listen {text}: write host and port, such as 127.0.0.1:8100")
    return host.strip("[]"), int(port)


@asynccontextmanager
async def serving(answer: Answerer, host: str, port: int) -> AsyncGenerator[int, None]:
    """Serve until the block ends; yield the port. Port 0 selects a free port.

    Raises:
        UsageError: the address cannot be bound.
    """
    try:
        app = _App(answer, is_local=host in _HERE)
        # cut replies are errors for uvicorn, so they are not logged
        options = {"log_level": "critical", "limit_concurrency": _MAX_CONNECTIONS}
        async with served(app, host, port, server_header=False, **options) as bound:
            yield bound
    except OSError as error:
        raise UsageError(f"--listen {host}:{port}: {error.strerror or error}") from None


class _App:
    """An ASGI app that answers requests with `answer`, and cancels the answer to a client that
    hangs up."""

    def __init__(self, answer: Answerer, *, is_local: bool) -> None:
        self._answer = answer
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if self._is_foreign(request.headers):
            text = "pages of other origins may not send requests to this server\n"
            return await PlainTextResponse(text, 403)(scope, receive, send)
        too_long = PlainTextResponse("the body is too long\n", 413)
        if int(request.headers.get("content-length", "0")) > _MAX_BODY:
            return await too_long(scope, receive, send)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                return await too_long(scope, receive, send)
        answering = asyncio.ensure_future(self._respond(request, bytes(body), send))
        hung_up = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            hung_up.cancel()
            await asyncio.gather(answering, hung_up, return_exceptions=True)

    def _is_foreign(self, headers: Mapping[str, str]) -> bool:
        """Return whether a web page of a non-local origin sent the request. At a local address, also
        check the Host header, against DNS rebinding."""
        origin, host = headers.get("origin"), headers.get("host")
        is_elsewhere = origin is not None and _host_in(origin) not in _HERE
        if self._is_local and host is not None:
            return is_elsewhere or (host_of(host) or "").strip("[]").lower() not in _HERE
        return is_elsewhere

    async def _respond(self, request: Request, body: bytes, send: Send) -> None:
        target = request.scope["raw_path"].decode("latin-1")
        target += f"?{request.url.query}" if request.url.query else ""
        incoming = IncomingRequest(request.method, target, dict(request.headers), body)
        reply = await self._answer(incoming)
        await _send(WebReply(200, {}, is_cut=True) if reply is None else reply, send)


def _host_in(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _send(reply: WebReply, send: Send) -> None:
    """Send a reply. The server closes the connection of a response that is not completed."""
    headers = {name.lower(): value for name, value in reply.headers.items()}
    if reply.stream is None and not reply.is_cut:
        headers["content-length"] = str(len(reply.body))
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    if reply.stream is not None:
        try:
            async for data in reply.stream:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            await reply.stream.aclose()
    elif reply.is_cut:
        await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    if not reply.is_cut:
        body = b"" if reply.stream is not None else reply.body
        await send({"type": "http.response.body", "body": body})
