"""A small HTTP/1.1 server for a replay or a recording proxy, with one request per connection and
limits on size, time and connections.

To imitate faults, it can close a connection without a response or in the middle of a response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from http.client import responses
from typing import Any, Final
from urllib.parse import urlsplit

from roundgate.errors import Inside, UsageError
from roundgate.json import encode

_MAX_HEAD: Final = 64 * 1024
_MAX_BODY: Final = 32 * 1024 * 1024
_MAX_CONNECTIONS: Final = 256
_READ_S: Final = 60.0
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class RequestMalformed(Inside):
    """A stand-in or a recording proxy refused a request; `status` is the HTTP status."""

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
class Reply:
    """An HTTP response. `None` in place of a reply closes the connection without a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    stream: AsyncGenerator[bytes, None] | None = None
    """The chunks of a streamed body, sent instead of `body`."""
    is_cut: bool = False
    """Whether the response breaks off before its end."""

    @property
    def sent_body(self) -> bytes:
        """The part of the body that is sent: the first half if the response is cut."""
        return self.body[: len(self.body) // 2] if self.is_cut else self.body


def refusal(request_id: Any, code: int, message: str, status: int = 200) -> Reply:
    """Return a reply with a JSON-RPC error."""
    error = {"code": code, "message": message}
    body = encode({"jsonrpc": "2.0", "id": request_id, "error": error})
    return Reply(status, {"content-type": "application/json"}, body)


Answerer = Callable[[IncomingRequest], Awaitable[Reply | None]]


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
    server = _Server(answer, is_local=host in _HERE)
    try:
        listening = await asyncio.start_server(server.connected, host, port, limit=_MAX_HEAD)
    except OSError as error:
        raise UsageError(f"--listen {host}:{port}: {error.strerror or error}") from None
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        stack.callback(listening.close)
        yield listening.sockets[0].getsockname()[1]


class _Server:
    """An HTTP server that answers requests with `answer`, and tracks its open connections."""

    def __init__(self, answer: Answerer, *, is_local: bool) -> None:
        self._answer = answer
        self._is_local = is_local
        self._open: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if len(self._open) > _MAX_CONNECTIONS:
                await _refuse(writer, RequestMalformed(503, "too many connections"))
            else:
                await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client hung up or was too slow
        finally:
            self._open.discard(task)
            writer.close()

    async def close(self) -> None:
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _refuse_foreign(self, request: IncomingRequest) -> None:
        """Raise `RequestMalformed` if a web page of a non-local origin sent the request. At a local
        address, also check the Host header, against DNS rebinding."""
        origin, host = request.headers.get("origin"), request.headers.get("host")
        is_foreign = origin is not None and _host_in(origin) not in _HERE
        if self._is_local and host is not None:
            is_foreign = is_foreign or _host_in(f"//{host}") not in _HERE
        if is_foreign:
            raise RequestMalformed(
                403, "pages of other origins may not send requests to this server"
            )

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                request = await _read(reader)
                self._refuse_foreign(request)
        except RequestMalformed as error:
            await _refuse(writer, error)
            return
        reply = await _unless_hung_up(self._answer(request), reader)
        if reply is None:
            writer.transport.abort()
        elif reply.stream is None:
            await _send_whole(writer, reply)
        else:
            async with aclosing(reply.stream):
                await _unless_hung_up(_send_stream(writer, reply), reader)


def _host_in(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _unless_hung_up(
    work: Awaitable[Reply | None], reader: asyncio.StreamReader
) -> Reply | None:
    """Return the result of `work`; cancel it and return `None` if the client hangs up or sends more
    data."""
    task = asyncio.ensure_future(work)
    hung_up = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({task, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        hung_up.cancel()
        await asyncio.gather(task, hung_up, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> IncomingRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not target.startswith("/"):
        raise RequestMalformed(400, "this is not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name.strip() != name or not name:
            raise RequestMalformed(400, "a header is malformed")
        headers[name.lower()] = value.strip()
    return IncomingRequest(method, target, headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader)
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length[:12]) > _MAX_BODY:
        raise RequestMalformed(413, "the body is too long")
    return await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0].strip(), 16)
        except ValueError:
            raise RequestMalformed(400, "a chunk is malformed") from None
        if size < 0 or len(body) + size > _MAX_BODY:
            raise RequestMalformed(413, "the body is too long")
        body += await reader.readexactly(size)
        await reader.readuntil(b"\r\n")
        if size == 0:
            return bytes(body)


async def _refuse(writer: asyncio.StreamWriter, error: RequestMalformed) -> None:
    headers = {"content-type": "text/plain"}
    await _send_whole(writer, Reply(error.status, headers, f"{error}\n".encode()))


def _head(reply: Reply, framing: str) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {responses.get(reply.status, '')}", framing]
    lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    clean = [line.replace("\r", " ").replace("\n", " ") for line in lines]
    return "\r\n".join([*clean, "", ""]).encode("latin-1", "replace")


async def _send_whole(writer: asyncio.StreamWriter, reply: Reply) -> None:
    writer.write(_head(reply, f"Content-Length: {len(reply.body)}") + reply.sent_body)
    with suppress(OSError):
        await writer.drain()


async def _send_stream(writer: asyncio.StreamWriter, reply: Reply) -> None:
    writer.write(_head(reply, "Transfer-Encoding: chunked"))
    await writer.drain()
    assert reply.stream is not None
    async for data in reply.stream:
        if data:
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
    if not reply.is_cut:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
