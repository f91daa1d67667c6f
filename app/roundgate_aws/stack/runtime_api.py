"""Lambda's Runtime API for one execution environment, with responses that stream. AWS's Runtime
Interface Emulator hands a streamed response on only when it is complete.

    invoke ──▶ GET next ──▶ POST response ── chunk ── chunk ── end, or a truncated request
                       └──▶ POST error

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import h11

from roundgate.errors import Inside

READ_BYTES: Final = 65_536
MAX_HEADER_BYTES: Final = 1024 * 1024
"""The limit on the head of a request. The runtime client reports an exception in a header."""
VERSION: Final = "/2018-06-01/runtime"
STREAMING: Final = {
    "content-type": "application/vnd.awslambda.http-integration-response",
    "lambda-runtime-function-response-mode": "streaming",
    "transfer-encoding": "chunked",
}
DELIMITER: Final = bytes(8)
MAX_ANSWER_BYTES: Final = 6 * 1024 * 1024 + 100
"""The limit on a response that does not stream."""
MAX_HEAD_BYTES: Final = 16_384
"""The limit on the bytes of a stream within which its head ends."""


class InvocationFailed(Inside):
    """A function of the local stack raised an error, timed out, or its environment died. `report`
    is AWS's response to the invoker."""

    def __init__(self, message: str, error: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.report = error or {"errorType": "Runtime.ExitError", "errorMessage": message}


@dataclass
class Streamed:
    """An invocation, and its response as far as it has arrived."""

    event: bytes
    timeout_s: float
    client_context: str = ""
    """The client context as JSON, in base64."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    _arrived: asyncio.Queue[bytes | Exception | None] = field(default_factory=asyncio.Queue)
    ends_s: float = math.inf
    """The time of `time.monotonic` at which the function has to have taken the event, or, once it
    has, to have ended."""
    error: Exception | None = None
    """The error with which the response has ended."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    is_read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while Lambda reads the response."""
    _writer: asyncio.StreamWriter | None = None

    def __post_init__(self) -> None:
        self.is_read.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the response as they arrive. Raise InvocationFailed if it fails."""
        while (item := await self._arrived.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def fail(self, report: Mapping[str, Any]) -> None:
        """End the response with the function's report of an error."""
        message = f"{report.get('errorType')}: {report.get('errorMessage')}"
        self.end(InvocationFailed(message, report))

    def leave(self) -> None:
        """Close the function's connection, as if Lambda no longer took the response."""
        if self._writer is not None:
            self._writer.transport.abort()
        self.end(None)

    def end(self, error: Exception | None) -> None:
        """End the response, unless it has ended."""
        if not self.is_over.is_set():
            self.error = error
            self.is_over.set()
            self._arrived.put_nowait(error)


class RuntimeApi:
    """The server that one environment asks for events."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Streamed] = asyncio.Queue()
        self._running: dict[str, Streamed] = {}
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.init_error: Mapping[str, Any] | None = None

    async def start(self) -> str:
        """Listen on a free port; return the value of AWS_LAMBDA_RUNTIME_API."""
        # not `asyncio.start_server`, which leaves a connection open that it accepts while it closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        """Stop listening, and end all connections."""
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            loop.call_soon(connection.cancel)  # after its first step, which takes the socket

    def invoke(self, streamed: Streamed) -> Streamed:
        """Queue an invocation, and return it."""
        self._waiting.put_nowait(streamed)
        return streamed

    def _accept(self, listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        connection = asyncio.create_task(self._serve(accepted))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        with suppress(OSError, h11.RemoteProtocolError, asyncio.CancelledError):
            reader, writer = await asyncio.open_connection(sock=accepted)
            with closing(writer):
                await self._exchange(_Connection(reader, writer))

    async def _exchange(self, connection: _Connection) -> None:
        request = await connection.event()
        if not isinstance(request, h11.Request):
            return
        match request.target.decode().removeprefix(f"{VERSION}/").split("/"):
            case ["invocation", "next"]:
                await self._send_next(connection)
            case ["invocation", name, "response"] if name in self._running:
                headers = {key.decode(): value.decode() for key, value in request.headers}
                await self._take(connection, self._running.pop(name), headers)
            case ["invocation", name, "error"] if name in self._running:
                self._running.pop(name).fail(json.loads(await connection.body()))
                await connection.answer(202)
            case ["init", "error"]:
                self.init_error = json.loads(await connection.body())
                await connection.answer(202)
            case _:
                await connection.answer(404)

    async def _send_next(self, connection: _Connection) -> None:
        streamed = await self._waiting.get()
        self._running[streamed.id] = streamed
        streamed.ends_s = time.monotonic() + streamed.timeout_s
        deadline_ms = int((time.time() + streamed.timeout_s) * 1000)
        headers = [
            ("Lambda-Runtime-Aws-Request-Id", streamed.id),
            ("Lambda-Runtime-Deadline-Ms", str(deadline_ms)),
            ("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:local:1:function:gateway"),
            ("Lambda-Runtime-Trace-Id", "Root=1-00000000-000000000000000000000000"),
            ("Content-Type", "application/json"),
        ]
        if streamed.client_context:
            context = base64.b64decode(streamed.client_context)
            headers.append(("Lambda-Runtime-Client-Context", context.decode("latin-1")))
        await connection.answer(200, headers, streamed.event)

    async def _take(
        self, connection: _Connection, streamed: Streamed, headers: Mapping[str, str]
    ) -> None:
        is_whole = "lambda-runtime-function-response-mode" not in headers
        if not is_whole and any(headers.get(name) != value for name, value in STREAMING.items()):
            streamed.fail({"errorType": "Runtime.BadResponse", "errorMessage": f"{headers}"})
            return
        if is_whole:
            await self._take_whole(connection, streamed)
            return
        streamed._writer = connection.writer
        try:
            while isinstance(part := await connection.event(), h11.Data):
                streamed._arrived.put_nowait(bytes(part.data))
                await streamed.is_read.wait()
        except (OSError, h11.RemoteProtocolError):  # the app failed, or the environment died
            streamed.fail({"errorType": "Runtime.TruncatedResponse", "errorMessage": "cut off"})
            raise
        streamed.end(None)
        await connection.answer(202)

    async def _take_whole(self, connection: _Connection, streamed: Streamed) -> None:
        answer = await connection.body()
        if len(answer) > MAX_ANSWER_BYTES:
            message = (
                "Response payload size exceeded maximum allowed payload size "
                f"({MAX_ANSWER_BYTES} bytes)."
            )
            report = {"errorType": "Function.ResponseSizeTooLarge", "errorMessage": message}
            streamed.fail(report)
            await connection.answer(413)
            return
        streamed._arrived.put_nowait(answer)
        streamed.end(None)
        await connection.answer(202)


class _Connection:
    """One exchange with the function."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._http = h11.Connection(h11.SERVER, MAX_HEADER_BYTES)

    async def event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    async def body(self) -> bytes:
        body = b""
        while isinstance(part := await self.event(), h11.Data):
            body += part.data
        return body

    async def answer(
        self, status: int, headers: Sequence[tuple[str, str]] = (), body: bytes = b""
    ) -> None:
        fields = [*headers, ("Content-Length", str(len(body))), ("Connection", "close")]
        for event in (h11.Response(status_code=status, headers=fields), h11.Data(data=body)):
            self.writer.write(self._http.send(event) or b"")
        self.writer.write(self._http.send(h11.EndOfMessage()) or b"")
        await self.writer.drain()


@dataclass(frozen=True)
class Head:
    """The head of a streamed response."""

    status: int
    headers: Sequence[tuple[str, str]]


async def parted(chunks: AsyncIterator[bytes]) -> tuple[Head, bytes]:
    """Read the head of a stream; return it, and the bytes of the body that came with it.

    Raises:
        InvocationFailed: the function failed, or sent no head.
    """
    begun = b""
    async for chunk in chunks:
        begun += chunk
        text, delimiter, rest = begun.partition(DELIMITER)
        if delimiter:
            metadata = json.loads(text)
            headers = [*metadata.get("headers", {}).items()]
            headers += [("set-cookie", cookie) for cookie in metadata.get("cookies", ())]
            return Head(metadata["statusCode"], headers), rest
        if len(begun) > MAX_HEAD_BYTES:
            break
    raise InvocationFailed("the stream has no head")
