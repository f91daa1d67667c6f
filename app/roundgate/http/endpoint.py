"""POST /mcp: raw bytes in; JSON, an event stream or 202 out (basic/transports/streamable-http).

The endpoint serves requests of revision 2026-07-28, and passes requests of the revisions with
sessions to `roundgate.http.older`. It is in front of FastAPI's router, whose request machinery
would cost more than the call (docs/decisions/0002). `http.request` has checked the head and
authenticated the caller, and answers any error that is raised here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from roundgate import json
from roundgate.errors import AuthError, GatewayError, ProtocolError, TransportError
from roundgate.http.bodies import SMALL, BodyBudget, id_from_body
from roundgate.http.exchange import EVENT_STREAM, DisconnectWatch, Exchange, State
from roundgate.http.request import REFUSED
from roundgate.methods.extensions import ROUTES
from roundgate.methods.parts import CurrentMethods, Methods, Parts
from roundgate.methods.rounds import RequestContext, Stream
from roundgate.observability.tracing import (
    CORRELATION,
    TRACE,
    Span,
    TracedMessage,
    Tracing,
    context_of,
)
from roundgate.protocol import Notification, Request, is_older, jsonrpc, may_be_older

if TYPE_CHECKING:
    from roundgate.http.older import OlderClients

_ONLY_STREAMS: Final = frozenset({EVENT_STREAM})
_LISTEN: Final = "subscriptions/listen"
_MAX_LISTEN_BYTES: Final = 65_536
"""The maximum size of a request for a stream, in bytes. The request stays in memory while the
stream is open."""


class Endpoint(Struct, frozen=True):
    """The services at one address: the methods of 2026-07-28, and the endpoint for the revisions
    with sessions."""

    parts: Parts
    methods: CurrentMethods
    older: OlderClients


class McpEndpoint:
    """Answers requests to the MCP endpoints.

    Args:
        endpoints: the endpoint of each view; the view of all tools has the name "".
        tracing: the factory of request spans.
        max_body_bytes: the limit on a body, in bytes; a longer body is refused with 413.
        budget: the limit on all bodies that are served at once.
        keep_alive_s: seconds between comments on a stream, and before the first of a silent call.
    """

    def __init__(
        self,
        *,
        endpoints: Mapping[str, Endpoint],
        tracing: Tracing,
        max_body_bytes: int,
        budget: BodyBudget,
        keep_alive_s: float,
    ) -> None:
        self._endpoints = endpoints
        self._tracing = tracing
        self._max_body_bytes = max_body_bytes
        self._small = min(SMALL, max_body_bytes)
        self._budget = budget
        self._keep_alive_s = keep_alive_s

    async def __call__(self, method: str, receive: Receive, exchange: Exchange) -> None:
        """Answer a request with this HTTP method.

        Raises:
            GatewayError: the answer is this error.
        """
        endpoint = self._endpoints[exchange.view]
        try:
            if method != "POST":
                await endpoint.older.endpoint().answer(method, None, receive, exchange)
                return
            exchange.is_read = True
            length = exchange.headers.get(b"content-length", b"")
            if length.isdigit() and int(length[:20]) > self._max_body_bytes:
                raise self._too_large()
            first = await receive()
            body: bytes = first.get("body", b"")
            is_partial = first.get("more_body", False) or first["type"] != "http.request"
            if is_partial or len(body) > self._small:
                body = await self._read_rest(first, receive, exchange)
            if is_large := len(body) > json.LARGE:
                await asyncio.sleep(0)
            decoded = json.decode(body)
            if is_large:
                await asyncio.sleep(0)
            if may_be_older(exchange.headers) and is_older(exchange.headers, decoded):
                await endpoint.older.endpoint().answer("POST", decoded, receive, exchange)
                return
            message = jsonrpc.message_from_json(decoded)
            exchange.method = message.method
            if isinstance(message, Notification):
                notification = TracedMessage(None, message.method)
                with self._span(endpoint.methods.now, notification, {}, exchange):
                    await exchange.responder.answer(202, b"")
                return
            exchange.request_id = message.id
            if message.method == _LISTEN and len(body) > _MAX_LISTEN_BYTES:
                raise TransportError(
                    413, f"A request of {_LISTEN} has at most {_MAX_LISTEN_BYTES} bytes"
                )
            await self._serve(endpoint.methods, message, receive, exchange)
        finally:
            if exchange.held_bytes:
                self._budget.give_back(exchange.held_bytes)

    async def _serve(
        self, methods: CurrentMethods, message: Request, receive: Receive, exchange: Exchange
    ) -> None:
        now, ids, responder = methods.now, exchange.correlation, exchange.responder
        try:
            inbound = exchange.revision.validate_request(
                message, exchange.headers, now.features, ROUTES
            )
        except ProtocolError as error:
            self._refused(now, message, error, exchange)
            raise
        exchange.name, meta = inbound.name, inbound.meta
        trace = context_of(meta.raw)
        notifies = EVENT_STREAM in exchange.accepted and (
            meta.progress_token is not None or meta.log_level is not None
        )
        with (
            DisconnectWatch(receive, responder, exchange.keep_alive_s(self._keep_alive_s)) as watch,
            self._tracing.request(inbound, trace, exchange, ids, knows=now.knows) as span,
        ):
            exchange.trace = TRACE.get()
            context = RequestContext(
                inbound=inbound,
                meta=meta,
                principal=exchange.caller,
                notify=responder.notify if notifies else None,
                deadline=now.deadline(exchange.host.remaining_ms),
                watch=watch,
                span=span,
                correlation=ids,
                address=exchange.address,
            )
            token = CORRELATION.set(ids)
            try:
                with now.catalog:
                    answer = await now.serve(context)
            except GatewayError as error:
                _end(span, error, exchange)
                raise
            finally:
                CORRELATION.reset(token)
            if isinstance(answer, Stream):
                watch.keep_alive_s = None  # the stream has comments of its own
                await self._stream(methods, answer, exchange)
            else:
                exchange.label, exchange.reason = answer.label, answer.reason
                body = jsonrpc.result_response(message.id, answer.result)
                await responder.answer(200, body, as_event=exchange.accepted == _ONLY_STREAMS)
            span.end(exchange.label)
        if watch.disconnected and responder.state is not State.DONE:
            exchange.label = "cancelled"

    def _refused(
        self, methods: Methods, message: Request, error: ProtocolError, exchange: Exchange
    ) -> None:
        """Record a request that is not valid in its revision."""
        meta = message.params.get("_meta")
        trace = context_of(meta) if isinstance(meta, dict) else {}
        with self._span(
            methods, TracedMessage(message.id, message.method), trace, exchange
        ) as span:
            _end(span, error, exchange)

    def _span(
        self,
        methods: Methods,
        operation: TracedMessage,
        trace: Mapping[str, str],
        exchange: Exchange,
    ) -> AbstractContextManager[Span]:
        return self._tracing.request(
            operation, trace, exchange, exchange.correlation, knows=methods.knows
        )

    async def _stream(self, methods: CurrentMethods, stream: Stream, exchange: Exchange) -> None:
        responder = exchange.responder
        try:
            if EVENT_STREAM not in exchange.accepted:
                raise TransportError(
                    406,
                    "subscriptions/listen answers with a stream: the Accept header must list text/event-stream",
                )
            caller = stream.subscription.caller
            messages = stream.subscription.messages(
                self._keep_alive_s,
                lambda uri: methods.now.may_learn(uri, caller),
                lambda tool: methods.now.may_follow(tool, caller),
            )
            await _send_until_late(messages, exchange)
            body = jsonrpc.result_response(stream.subscription.id, stream.closing_result)
            await responder.answer(200, body)
        finally:
            methods.now.end(stream)

    async def _read_rest(self, message: Message, receive: Receive, exchange: Exchange) -> bytes:
        """Return the whole body, which begins with `message`, within its limits."""
        chunks: list[bytes] = []
        size = 0
        while True:
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._max_body_bytes:
                raise self._too_large()
            if size > SMALL:
                exchange.held_bytes += self._budget.take(size - exchange.held_bytes)
            if not message.get("more_body", False):
                break
            message = await receive()
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if size > SMALL:
            try:
                exchange.held_bytes += self._budget.take_nodes(body)
            except TransportError:
                exchange.request_id = id_from_body(body)
                raise
        return body

    def _too_large(self) -> TransportError:
        return TransportError(
            413, f"The body is larger than {self._max_body_bytes} bytes (http.max_body_bytes)"
        )


async def _send_until_late(messages: AsyncIterator[bytes | None], exchange: Exchange) -> None:
    """Send the messages of a stream until it ends, or until the environment is about to end the
    request. The client listens again."""
    remaining_ms = exchange.host.remaining_ms
    limit_s = None if remaining_ms is None else remaining_ms / 1000
    try:
        async with asyncio.timeout(limit_s) as limit:
            async for message in messages:
                await exchange.responder.event(message)
    except TimeoutError:
        if not limit.expired():
            raise


def _end(span: Span, error: GatewayError, exchange: Exchange) -> None:
    """Record the error that the client gets."""
    if isinstance(error, AuthError):
        span.end(error.outcome, REFUSED, str(error), error.status)
    else:
        wire = exchange.revision.look_up(error)
        span.end(error.outcome, wire.code, str(error), wire.status)
