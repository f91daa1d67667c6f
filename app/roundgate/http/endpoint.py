"""POST /mcp: raw bytes in; JSON, an event stream or 202 out (basic/transports/streamable-http).

A plain ASGI callable in front of FastAPI's router: routing and FastAPI's own request machinery would cost more than
serving the call does (docs/decisions/0002). Whatever arrives, exactly one well-formed answer and one log line leave.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate.auth.principal import Principal, Verifier
from roundgate.clock import Clock
from roundgate.dispatch.current import CurrentDispatcher
from roundgate.dispatch.dispatcher import CallContext, Stream
from roundgate.dispatch.rounds import Reply
from roundgate.errors import AuthError, GatewayError, InternalError, ProtocolError, TransportError
from roundgate.http import hosting
from roundgate.http.challenge import ProtectedResource
from roundgate.http.disconnect import DisconnectWatch
from roundgate.http.limits import SMALL, BodyBudget
from roundgate.http.responder import Responder, State
from roundgate.protocol import inbound, jsonrpc, wire_errors
from roundgate.protocol.headers import McpHeaders
from roundgate.protocol.jsonrpc import Notification, RequestId
from roundgate.tracing import Tracing, context_of

log = logging.getLogger("roundgate.request")
failures = logging.getLogger("roundgate.http")

_EVENT_STREAM: Final = b"text/event-stream"
_LISTEN: Final = "subscriptions/listen"
_MAX_LISTEN_BYTES: Final = 65_536
"""What asks for a stream is kept as long as the stream is open."""
_MAX_KEPT_BYTES: Final = 256
_BOTH: Final = frozenset({b"application/json", _EVENT_STREAM})


@dataclass(slots=True)
class Record:
    """What the log line of one request says."""

    method: str | None = None
    name: str | None = None
    principal: Principal | None = None
    code: int | None = None
    outcome: str = "ok"
    error: str | None = None
    trace: str | None = None
    held_bytes: int = 0
    """What its body has taken of the budget."""


class McpEndpoint:
    """Answers the MCP endpoint's path, passes everything else on."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        path: str,
        dispatcher: CurrentDispatcher,
        verifier: Verifier,
        resource: ProtectedResource | None,
        tracing: Tracing,
        clock: Clock,
        max_body_bytes: int,
        budget: BodyBudget,
        keep_alive_s: float,
        send_s: float,
    ) -> None:
        self._app = app
        self._paths = (path, path + "/")
        self._dispatcher = dispatcher
        self._verifier = verifier
        self._resource = resource
        self._tracing = tracing
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._budget = budget
        self._keep_alive_s = keep_alive_s
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].removeprefix(scope.get("root_path", "")) not in self._paths:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        record, responder = Record(), Responder(send, self._send_s)
        try:
            await self._answer(scope, receive, responder, record)
        except asyncio.CancelledError:
            record.outcome = "cancelled"
            raise
        finally:
            if record.held_bytes:
                self._budget.give_back(record.held_bytes)
            _write_line(record, responder, (time.perf_counter() - started) * 1000)

    async def _answer(self, scope: Scope, receive: Receive, responder: Responder, record: Record) -> None:
        request_id: RequestId | None = None
        try:
            headers = _by_name(scope["headers"])
            accepted = _check_head(scope["method"], headers)
            host = hosting.of(scope)
            principal = await self._verifier.principal(headers.get(b"authorization"), host.claims)
            record.principal = principal
            body = await self._read(headers.get(b"content-length"), receive, record)
            message = jsonrpc.parse(body)
            record.method = message.method
            if message.method == _LISTEN and len(body) > _MAX_LISTEN_BYTES:
                raise TransportError(413, f"A request of {_LISTEN} has at most {_MAX_LISTEN_BYTES} bytes")
            if isinstance(message, Notification):
                await responder.accepted()
                return
            request_id = message.id
            request = inbound.climb(message, McpHeaders.read(scope["headers"]), self._dispatcher.features)
            record.name = request.params.get(request.method.mcp_name) if request.method.mcp_name else None
            trace = context_of(request.meta.raw)
            record.trace = trace.get("traceparent")
            span_around = self._tracing.request(request.method.name, record.name, trace)
            with DisconnectWatch(receive) as watch, span_around as span:  # not before: the body has one reader
                responder.give_up = watch.hang_up
                await self._serve(
                    CallContext(request, principal, None, span, host.remaining_ms), accepted, responder, record
                )
            if watch.disconnected and responder.state is not State.DONE:
                record.outcome = "cancelled"
        except AuthError as error:
            await self._challenge(error, responder, record)
        except GatewayError as error:
            await self._fail(error, request_id, responder, record)
        except ClientDisconnect:
            record.outcome = "cancelled"
        except Exception as error:
            reference = self._clock.new_id()
            failures.error("request failed", exc_info=error, extra={"fields": {"reference": reference}})
            await self._fail(InternalError(reference), request_id, responder, record)

    async def _serve(
        self, context: CallContext, accepted: frozenset[bytes], responder: Responder, record: Record
    ) -> None:
        request, meta = context.inbound, context.inbound.meta
        if _EVENT_STREAM in accepted and (meta.progress_token is not None or meta.log_level is not None):
            context = replace(context, notify=responder.notify)
        try:
            answer = await self._dispatcher.dispatch(context)
        except ProtocolError as error:
            context.span.end("error", wire_errors.look_up(error).code)
            raise
        match answer:
            case Reply(result, outcome):
                record.outcome = outcome
                await responder.result(request.id, result, as_event=accepted == {_EVENT_STREAM})
            case Stream() as stream:
                await self._stream(request.id, stream, accepted, responder)
        context.span.end(record.outcome, None)

    async def _stream(
        self, request_id: RequestId, stream: Stream, accepted: frozenset[bytes], responder: Responder
    ) -> None:
        try:
            if _EVENT_STREAM not in accepted:
                raise TransportError(
                    406, "subscriptions/listen answers with a stream: the Accept header must list text/event-stream"
                )
            async for message in stream.subscription.messages(self._keep_alive_s):
                await responder.event(message)
            await responder.result(request_id, stream.closing_result)
        finally:
            self._dispatcher.end(stream)

    async def _read(self, length: bytes | None, receive: Receive, record: Record) -> bytes:
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
                record.held_bytes += self._budget.take(size - record.held_bytes)
            more = message.get("more_body", False)
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if size > SMALL:
            record.held_bytes += self._budget.take_nodes(body)
        return body

    def _too_large(self) -> TransportError:
        return TransportError(413, f"The body is larger than {self._max_body_bytes} bytes (http.max_body_bytes)")

    async def _challenge(self, error: AuthError, responder: Responder, record: Record) -> None:
        record.outcome, record.error = "unauthorized", str(error)
        challenge = b"Bearer" if self._resource is None else self._resource.challenge(error)
        await responder.refused(error, challenge)

    async def _fail(
        self, error: GatewayError, request_id: RequestId | None, responder: Responder, record: Record
    ) -> None:
        record.code = wire_errors.look_up(error).code
        record.outcome, record.error = "error", str(error)
        if responder.state is not State.DONE:
            await responder.error(error, request_id)


def _by_name(lines: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Lines of one name are one list (RFC 9110, section 5.3): a client may say in two lines what it accepts."""
    headers = dict(lines)
    if len(headers) == len(lines):
        return headers
    values: dict[bytes, list[bytes]] = {}
    for name, value in lines:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(several) for name, several in values.items()}


def _check_head(method: str, headers: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """What the client accepts of JSON and event streams.

    Raises:
        TransportError: the HTTP method or a media type is none that this endpoint has.
    """
    if method != "POST":
        raise TransportError(
            405,
            "The MCP endpoint takes POST only; revision 2026-07-28 has no GET stream and no sessions",
            [(b"allow", b"POST")],
        )
    content_type = headers.get(b"content-type", b"")
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise TransportError(415, "Content-Type must be application/json")
    accept = headers.get(b"accept")
    accepted = _BOTH if accept is None else _accepted(accept) if len(accept) <= _MAX_KEPT_BYTES else _media(accept)
    if not accepted:
        raise TransportError(406, "The Accept header must list application/json and text/event-stream")
    return accepted


def _media(accept: bytes) -> frozenset[bytes]:
    ranges = {part.partition(b";")[0].strip().lower() for part in accept.split(b",")}
    if b"*/*" in ranges:
        return _BOTH
    return frozenset(kind for kind in _BOTH if kind in ranges or kind.partition(b"/")[0] + b"/*" in ranges)


_accepted: Final = lru_cache(maxsize=64)(_media)
"""Clients send one and the same value with every request; a long one is not kept."""


def _write_line(record: Record, responder: Responder, took_ms: float) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {
        "method": record.method and record.method[:100],
        "name": record.name and str(record.name)[:200],
        "subject": record.principal and record.principal.subject,
        "status": responder.status or None,
        "outcome": record.outcome,
        "code": record.code,
        "error": record.error,
        "trace": record.trace and record.trace[:55],
        "ms": round(took_ms, 2),
        "bytes": responder.bytes_sent,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    log.info("request", extra={"fields": fields})
