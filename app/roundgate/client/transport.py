"""How requests reach a server: what every transport does, and the one that needs
nothing but asyncio's sockets.

A transport sends one HTTP request and hands out the response while it arrives. It follows no
redirect, keeps no cookies and reads no proxies from the environment;
`roundgate.client.httpx_transport` is there for who needs those.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from roundgate.client.http1 import END_OF_HEAD, Body, Head, parse_head, request_head
from roundgate.client.limits import Limits
from roundgate.errors import BadAnswer, ClientError, ConnectionLost, Remedy, TimedOut
from roundgate.protocol import is_plain_host

_READ: Final = 256 * 1024
_IDLE_PER_ORIGIN: Final = 16
_MAX_INTERIM: Final = 16
_LONGEST_LABEL: Final = 63


@dataclass(frozen=True, slots=True)
class Url:
    """Where a request goes. `origin` is what two URLs share that belong to one server."""

    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, text: str) -> Url:
        """An absolute http or https URL; a fragment is dropped.

        Raises:
            ClientError: it is none, or has a user name or password in it.
        """
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ClientError("The URL is malformed: write it as https://host/path") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(
                "The URL of a server starts with http:// or https:// and names a host"
            )
        if parts.username is not None or parts.password is not None:
            raise ClientError(
                "Leave user name and password out of the URL, which logs and histories keep",
                Remedy.CREDENTIALS,
            )
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not target.isascii() or not target.isprintable() or " " in target:
            raise ClientError("The URL has characters that must be percent-encoded")
        host = _host(parts.hostname)
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), target)

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def _host(name: str) -> str:
    """A host as it goes into requests and messages: a name in other letters as what the
    name system has for it."""
    try:
        host = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        host = ""
    labels = host.removesuffix(".").split(".") if ":" not in host else [host]
    if any(not label or len(label) > _LONGEST_LABEL for label in labels) or not is_plain_host(host):
        raise ClientError("The URL names a host that cannot be: write it as https://host/path")
    return host


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; `body` is `None` for a GET or DELETE."""

    method: str
    url: Url
    headers: Sequence[tuple[str, str]]
    body: bytes | None = None


class HttpResponse(Protocol):
    """A response whose body is still to come. Close it: that is how a request is cancelled."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives.

        Raises:
            ConnectionLost: it ended too early.
            TimedOut: nothing came for `idle_s`.
        """

    async def close(self) -> None:
        """Let go of the connection, and of the request if its answer is not whole."""


class Transport(Protocol):
    """Sends requests."""

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return once the head of its response is there.

        Raises:
            ConnectionLost, TimedOut, BadAnswer: as their names say.
        """

    async def close(self) -> None:
        """Close every connection."""


def refuse_compressed(response: HttpResponse) -> None:
    """What is compressed is not unpacked: a few bytes could become more than anybody has room for.

    Raises:
        BadAnswer: it is.
    """
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise BadAnswer(
            "The server compressed its answer, although the client takes none that is compressed"
        )


async def read_body(response: HttpResponse, limit: int) -> bytes:
    """The whole body.

    Raises:
        BadAnswer: it is longer than `limit`, or compressed.
        ConnectionLost, TimedOut: it did not come.
    """
    refuse_compressed(response)
    parts: list[bytes] = []
    size = 0
    async for part in response.chunks():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise BadAnswer(f"The server sent more than {limit} bytes (limit max_message)")
    return parts[0] if len(parts) == 1 else b"".join(parts)


class SocketTransport:
    """HTTP/1.1 over asyncio's sockets, with connections that are kept for the next request."""

    def __init__(self, limits: Limits, *, tls: ssl.SSLContext | None = None) -> None:
        self._limits = limits
        self._tls = tls
        self._idle: dict[tuple[str, str, int], list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._places = asyncio.Semaphore(limits.max_connections)  # one for each request under way

    async def send(self, request: HttpRequest) -> HttpResponse:
        sent = request_head(
            request.method,
            request.url.target,
            [("Host", request.url.authority), *request.headers],
            None if request.body is None else len(request.body),
        ) + (request.body or b"")
        await self._places.acquire()
        try:
            connection = self._take_idle(request.url.origin) or await self._connect(request.url)
            try:
                head, rest = await connection.begin(sent)
                return _SocketResponse(self, connection, head, rest)
            except BaseException:
                self._drop(connection)
                raise
        except BaseException:
            self._places.release()
            raise

    async def close(self) -> None:
        self._idle.clear()
        for connection in list(self._open):
            self._drop(connection)
        await asyncio.sleep(0)

    def _take_idle(self, origin: tuple[str, str, int]) -> _Connection | None:
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable and connection.idle_for_s() < self._limits.keep_alive_s:
                return connection
            self._drop(connection)
        return None

    async def _connect(self, url: Url) -> _Connection:
        # no more requests than that are under way: some are idle
        if len(self._open) >= self._limits.max_connections:
            for idle in self._idle.values():
                while idle:
                    self._drop(idle.pop())
        connection = await self._open_connection(url)
        self._open.add(connection)
        return connection

    async def _open_connection(self, url: Url) -> _Connection:
        try:
            async with asyncio.timeout(self._limits.connect_s):
                tls = self._tls_context() if url.scheme == "https" else None
                reader, writer = await asyncio.open_connection(
                    url.host, url.port, ssl=tls, limit=_READ
                )
        except TimeoutError:
            seconds = self._limits.connect_s
            raise TimedOut(
                f"No connection to {url.authority} within {seconds:g} s (limit connect_s)",
                was_sent=False,
            ) from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or "TLS failed"
            raise ConnectionLost(
                f"No secure connection to {url.authority}: {reason}", was_sent=False
            ) from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ConnectionLost(
                f"No connection to {url.authority}: {reason}", was_sent=False
            ) from None
        return _Connection(url, reader, writer, self._limits)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _keep(self, connection: _Connection) -> None:
        idle = self._idle.setdefault(connection.url.origin, [])
        if len(idle) < _IDLE_PER_ORIGIN and connection in self._open:
            connection.idle_since_s = time.monotonic()
            idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            connection.abort()


class _Connection:
    """One socket, with at most one request under way."""

    __slots__ = ("_limits", "_reader", "_writer", "idle_since_s", "url")

    def __init__(
        self, url: Url, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
    ) -> None:
        self.url = url
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self.idle_since_s = 0.0
        """When its last answer was read, monotonic."""

    def idle_for_s(self) -> float:
        """For how long it has had no request."""
        return time.monotonic() - self.idle_since_s

    @property
    def is_usable(self) -> bool:
        return not (self._writer.is_closing() or self._reader.at_eof() or self._reader.exception())

    async def begin(self, sent: bytes) -> tuple[Head, bytes]:
        """Send a request; the head of its answer, and what came of its body with it."""
        try:
            self._writer.write(sent)
            if len(sent) > _READ:
                await self._writer.drain()
        except (OSError, RuntimeError):
            raise self._lost() from None
        received = b""
        interim = 0
        while True:
            end = received.find(END_OF_HEAD)
            if end < 0:
                if len(received) > self._limits.max_head:
                    raise BadAnswer(
                        f"The server sent a head of more than {self._limits.max_head} bytes"
                    )
                if not (data := await self.read()):
                    raise self._lost()
                received = received + data if received else data
                continue
            head = parse_head(received[:end])
            received = received[end + len(END_OF_HEAD) :]
            if head.status == 101:
                raise BadAnswer("The server switches to another protocol, which nobody asked for")
            if head.status >= 200:
                return head, received
            interim += 1
            if interim > _MAX_INTERIM:
                raise BadAnswer(
                    f"The server announces an answer more than {_MAX_INTERIM} times and sends none"
                )

    async def read(self) -> bytes:
        """What arrives next; empty at the end of the connection."""
        try:
            async with asyncio.timeout(self._limits.idle_s):
                return await self._reader.read(_READ)
        except TimeoutError:
            raise TimedOut(
                f"Nothing came from {self.url.authority} for {self._limits.idle_s:g} s (limit "
                "idle_s)"
            ) from None
        except OSError:
            raise self._lost() from None

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(
            f"{self.url.authority} closed the connection before its answer was whole", was_sent=True
        )

    def abort(self) -> None:
        self._writer.transport.abort()


class _SocketResponse:
    """A response on one of the transport's own connections."""

    __slots__ = ("_body", "_connection", "_head", "_is_over", "_rest", "_transport")

    def __init__(
        self, transport: SocketTransport, connection: _Connection, head: Head, rest: bytes
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._head = head
        self._rest = rest
        self._is_over = False
        self._body = Body(head)

    @property
    def status(self) -> int:
        return self._head.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._head.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        body = self._body
        try:
            if self._rest:
                data, self._rest = self._rest, b""
                if part := body.feed(data):
                    yield part
            while not body.is_done:
                data = await self._connection.read()
                if not data:
                    if not body.end():
                        raise self._connection._lost()
                    break
                if part := body.feed(data):
                    yield part
        except BaseException:
            self._give_back(keep=False)
            raise
        self._give_back(
            keep=self._head.keeps_alive and not body.ends_with_the_connection and not body.left_over
        )

    async def close(self) -> None:
        if self._body.is_done and not self._rest and not self._body.left_over:
            self._give_back(keep=self._head.keeps_alive)
        self._give_back(keep=False)

    def _give_back(self, *, keep: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._transport._places.release()
        if keep:
            self._transport._keep(self._connection)
        else:
            self._transport._drop(self._connection)
