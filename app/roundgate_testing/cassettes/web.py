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

from roundgate.errors import Inside, UsageError
from roundgate.json import encode
from roundgate.net.addresses import host_of
from roundgate.net.serving import served

_MAX_BODY: Final = 32 * 1024 * 1024
_MAX_CONNECTIONS: Final = 256
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class RequestRefused(Inside):
    """A replay or a recording proxy refused a request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


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

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            request = await self._request(scope, receive)
        except RequestRefused as error:
            await _send(
                WebReply(error.status, {"content-type": "text/plain"}, f"{error}\n".encode()), send
            )
            return
        answering = asyncio.ensure_future(self._respond(request, send))
        hung_up = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            hung_up.cancel()
            await asyncio.gather(answering, hung_up, return_exceptions=True)

    async def _request(self, scope: Any, receive: Any) -> IncomingRequest:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self._refuse_foreign(headers)
        body, is_over = bytearray(), False
        while not is_over:
            if len(body) > _MAX_BODY or int(headers.get("content-length", "0")) > _MAX_BODY:
                raise RequestRefused(413, "the body is too long")
            message = await receive()
            body += message.get("body", b"")
            is_over = not message.get("more_body", False)
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        return IncomingRequest(scope["method"], target, headers, bytes(body))

    def _refuse_foreign(self, headers: Mapping[str, str]) -> None:
        """Raise `RequestRefused` if a web page of a non-local origin sent the request. At a local
        address, also check the Host header, against DNS rebinding."""
        origin, host = headers.get("origin"), headers.get("host")
        is_foreign = origin is not None and _host_in(origin) not in _HERE
        if self._is_local and host is not None:
            is_foreign = is_foreign or (host_of(host) or "").strip("[]").lower() not in _HERE
        if is_foreign:
            raise RequestRefused(403, "pages of other origins may not send requests to this server")

    async def _respond(self, request: IncomingRequest, send: Any) -> None:
        reply = await self._answer(request)
        await _send(WebReply(200, {}, is_cut=True) if reply is None else reply, send)


def _host_in(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _send(reply: WebReply, send: Any) -> None:
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
