"""GET and POST /sse: the transport of 2024-11-05, which is not served, answered so
that its clients show why.

Its clients open a stream, are told there where to post, post `initialize`, and wait for the
response on the stream. Of an answer that is an error they show a status and no text. So the
stream is opened, and has the response: an error with a sentence, under the ids with which the
official SDKs begin: 0, and 1 for Python's of today. A replica that takes the post knows nothing
of the stream; so the response is sent some moments later, and again, because one that comes
before the request is dropped.

    GET  /sse            event: endpoint, message (1 s), message (2 s), message (4 s), end
    POST /sse?from=sse   202: what came by that stream
    POST /sse            400 with the sentence, under the id of the request: another transport's client at this address
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from roundgate.errors import TransportError
from roundgate.http import bodies, exchange
from roundgate.protocol import jsonrpc, sse

OLD_TRANSPORT: Final = "/sse"
PAUSES_S: Final[Sequence[float]] = (1.0, 1.0, 2.0)
MAX_OPEN: Final = 100
"""Streams that one process holds open for this; more get the sentence as JSON."""
_FIRST_IDS: Final = (0, 1)
_FROM_STREAM: Final = "from=sse"
_ANNOUNCED: Final = f"{OLD_TRANSPORT}?{_FROM_STREAM}"


def not_served(endpoint: str, *, streams: bool) -> Callable[[Request], Awaitable[Response]]:
    """What answers such clients, where the MCP endpoint has this path. `streams` is
    whether a stream can be held."""
    refusal = TransportError(
        400,
        "This server does not speak the HTTP+SSE transport of 2024-11-05: use Streamable HTTP at "
        f"{endpoint} in place"
        ' of /sse; in the settings of clients that is the type "http", not "sse"',
    )
    open_streams = 0

    async def told() -> AsyncIterator[bytes]:
        nonlocal open_streams
        open_streams += 1
        try:
            yield b"event: endpoint\r\ndata: %b\r\n\r\n" % _ANNOUNCED.encode()
            for pause_s in PAUSES_S:
                await asyncio.sleep(pause_s)
                for first_id in _FIRST_IDS:
                    yield sse.event(jsonrpc.error_response(first_id, -32600, str(refusal)))
        finally:
            open_streams -= 1

    async def answer(request: Request) -> Response:
        wants_stream = b"text/event-stream" in request.headers.get("accept", "").encode()
        if request.method == "GET" and wants_stream and streams and open_streams < MAX_OPEN:
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            return StreamingResponse(told(), media_type="text/event-stream", headers=headers)
        if request.method == "POST" and request.url.query == _FROM_STREAM:
            return Response(status_code=202)
        found = exchange.of(request.scope)
        found.is_read = True
        found.request_id = await bodies.read_id(request.method, found.headers, request.receive)
        raise TransportError(refusal.status, str(refusal))

    return answer
