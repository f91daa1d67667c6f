"""POST /mcp: raw bytes in; JSON, an event stream or 202 out (basic/transports/streamable-http).

Requests of revision 2026-07-28 are answered here, those of the revisions with
sessions in `roundgate.http.older`.

A plain ASGI callable in front of FastAPI's router: routing and FastAPI's own request machinery
would cost more than serving the call does (docs/decisions/0002). By now the head is looked at and
the caller known; what is raised here, the layers outside answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate import json
from roundgate.errors import ProtocolError, TransportError
from roundgate.http import bodies
from roundgate.http import exchange as exchanges
from roundgate.http.bodies import SMALL, BodyBudget
from roundgate.http.exchange import Exchange
from roundgate.http.request import EVENT_STREAM
from roundgate.http.responder import DisconnectWatch, Responder, State
from roundgate.methods.extensions import ROUTES
from roundgate.methods.results import Reply, Stream
from roundgate.methods.rounds import RequestContext
from roundgate.methods.table import CurrentMethods
from roundgate.observability.correlation import CORRELATION
from roundgate.observability.tracing import Tracing, context_of
from roundgate.protocol import Meta, Notification, RequestId, is_older, jsonrpc, may_be_older

if TYPE_CHECKING:
    from roundgate.http.older.endpoint import OlderEndpoint

_LISTEN: Final = "subscriptions/listen"
_MAX_LISTEN_BYTES: Final = 65_536
"""What asks for a stream is kept as long as the stream is open."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Who answers at one address: requests of 2026-07-28, and those of the
    revisions with sessions."""

    methods: CurrentMethods
    older: Callable[[], OlderEndpoint]


class McpEndpoint:
    """Answers what is for an MCP endpoint, passes everything else on.

    Args:
        app: what everything else is passed to.
        endpoints: who answers, by the name of the view; that of everything has the name "".
        tracing: makes the span of a request.
        max_body_bytes: longer bodies are refused with 413.
        budget: what all bodies that are served at once may take together.
        keep_alive_s: seconds between comments on a stream on which nothing happens.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Mapping[str, Endpoint],
        tracing: Tracing,
        max_body_bytes: int,
        budget: BodyBudget,
        keep_alive_s: float,
    ) -> None:
        self._app = app
        self._endpoints = endpoints
        self._tracing = tracing
        self._max_body_bytes = max_body_bytes
        self._budget = budget
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchanges.of(scope) if scope["type"] == "http" else None
        if exchange is None or not exchange.is_mcp:
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(scope, receive, exchange)
        finally:
            if exchange.held_bytes:
                self._budget.give_back(exchange.held_bytes)

    async def _answer(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        endpoint = self._endpoints[exchange.view]
        if scope["method"] != "POST":
            await endpoint.older().answer(scope["method"], None, receive, exchange)
            return
        body, responder = await self._read(receive, exchange), exchange.responder
        if may_be_older(exchange.headers):
            decoded = json.decode(body)
            if is_older(exchange.headers, decoded):
                await endpoint.older().answer("POST", decoded, receive, exchange)
                return
            message = jsonrpc.message_of(decoded)
        else:
            message = jsonrpc.parse(body)
        exchange.method = message.method
        if message.method == _LISTEN and len(body) > _MAX_LISTEN_BYTES:
            raise TransportError(
                413, f"A request of {_LISTEN} has at most {_MAX_LISTEN_BYTES} bytes"
            )
        if isinstance(message, Notification):
            await responder.accepted()
            return
        exchange.request_id = message.id
        inbound = exchange.revision.validate_request(
            message, exchange.headers, endpoint.methods.features, ROUTES
        )
        exchange.name = inbound.name
        trace = context_of(inbound.meta.raw)
        exchange.trace = trace.get("traceparent")
        span_around = self._tracing.request(inbound.method, inbound.name, trace, inbound.version)
        # not before: the body has one reader
        with (
            DisconnectWatch(receive) as watch,
            span_around as span,
        ):
            responder.give_up = watch.hang_up
            notify = (
                responder.notify if _wants_notifications(inbound.meta, exchange.accepted) else None
            )
            context = RequestContext(
                inbound,
                exchange.caller,
                notify,
                span,
                exchange.correlation,
                exchange.host.remaining_ms,
            )
            await self._serve(endpoint.methods, context, exchange)
        if watch.disconnected and responder.state is not State.DONE:
            exchange.label = "cancelled"

    async def _serve(
        self, methods: CurrentMethods, context: RequestContext, exchange: Exchange
    ) -> None:
        responder, request_id = exchange.responder, context.inbound.id
        token = CORRELATION.set(context.correlation)
        try:
            answer = await methods.serve(context)
        except ProtocolError as error:
            context.span.end("error", exchange.revision.look_up(error).code)
            raise
        finally:
            CORRELATION.reset(token)
        match answer:
            case Reply(result, label, reason):
                exchange.label, exchange.reason = label, reason
                await responder.result(
                    request_id, result, as_event=exchange.accepted == {EVENT_STREAM}
                )
            case Stream() as stream:
                await self._stream(methods, request_id, stream, exchange.accepted, responder)
        context.span.end(exchange.label, None)

    async def _stream(
        self,
        methods: CurrentMethods,
        request_id: RequestId,
        stream: Stream,
        accepted: frozenset[bytes],
        responder: Responder,
    ) -> None:
        try:
            if EVENT_STREAM not in accepted:
                raise TransportError(
                    406,
                    "subscriptions/listen answers with a stream: the Accept header must list text/event-stream",
                )
            async for message in stream.subscription.messages(self._keep_alive_s):
                await responder.event(message)
            await responder.result(request_id, stream.closing_result)
        finally:
            methods.now.end(stream)

    async def _read(self, receive: Receive, exchange: Exchange) -> bytes:
        exchange.is_read = True
        length = exchange.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length[:20]) > self._max_body_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._max_body_bytes:
                raise self._too_large()
            if size > SMALL:
                exchange.held_bytes += self._budget.take(size - exchange.held_bytes)
            more = message.get("more_body", False)
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if size > SMALL:
            try:
                exchange.held_bytes += self._budget.take_nodes(body)
            except TransportError:
                exchange.request_id = bodies.id_of(body)
                raise
        return body

    def _too_large(self) -> TransportError:
        return TransportError(
            413, f"The body is larger than {self._max_body_bytes} bytes (http.max_body_bytes)"
        )


def _wants_notifications(meta: Meta, accepted: frozenset[bytes]) -> bool:
    """Whether the client wants to be told things on the stream of its request, and can be."""
    return EVENT_STREAM in accepted and (
        meta.progress_token is not None or meta.log_level is not None
    )
