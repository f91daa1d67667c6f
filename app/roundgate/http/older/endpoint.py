"""The MCP endpoint for the revisions with sessions: POST, GET and DELETE of 2025-11-25,
2025-06-18 and 2025-03-26.

    POST    initialize      makes a session, whose id holds its data
            a request       one JSON object, or a stream that ends with the response
            a notification, an answer to a question     202
    GET     Last-Event-ID   the rest of a stream that ended
            without         changes of lists, and of resources that the session has subscribed to
    DELETE                  ends the session

Any replica serves any of these requests. `roundgate.protocol.jsonrpc` decides which requests reach
this endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import Receive

from roundgate import json
from roundgate.auth import Principal
from roundgate.errors import (
    AuthError,
    Draining,
    GatewayError,
    InvalidRequest,
    StoreAway,
    TransportError,
    Unavailable,
)
from roundgate.http.exchange import (
    EVENT_STREAM,
    DisconnectWatch,
    Exchange,
    State,
    error_headers,
)
from roundgate.http.older.calls import Responded, SessionCalls, end_span
from roundgate.http.older.rounds import OpenCall, target_name
from roundgate.http.older.sessions import OWN, SessionCaller, own_result
from roundgate.http.older.streams import ChangeStreams, OlderParts, RequestStream, UnheardWatch
from roundgate.methods.table import capabilities, server_info
from roundgate.observability.tracing import TracedMessage, server_session_ended
from roundgate.protocol import SESSION_HEADER as SESSION
from roundgate.protocol import (
    SUPPORTED_VERSIONS,
    VERSION_HEADER,
    Notification,
    Request,
    RequestId,
    Response,
    jsonrpc,
)
from roundgate.protocol.v2025 import REVISIONS, VERSIONS, SessionOpening, wire_errors
from roundgate.protocol.v2025.shapes import implementation
from roundgate.settings import ServerConfig
from roundgate.tokens.ids import SessionFacts, SessionSealer

RESUMABLE: Final = (StoreAway, Draining)
"""The errors after which a client that resumes its call may get the result."""
RESUMING: Final = "2025-11-25"
"""The revision whose clients resume streams that ended. Some clients of earlier revisions do so,
too, but the gateway cannot tell which."""
_LAST_EVENT_ID: Final = b"last-event-id"
_VERSIONS: Final = frozenset(version.encode() for version in VERSIONS)
MAX_BATCH: Final = 50
"""The maximum number of messages in one body; only 2025-03-26 has batches."""


@dataclass(eq=False)
class OlderEndpoint:
    """The endpoint for requests of sessions."""

    parts: OlderParts
    sealer: SessionSealer
    describe: Callable[[], ServerConfig]
    """Returns the server's current description."""

    def __post_init__(self) -> None:
        self._calls = SessionCalls(self.parts)
        self._changes = ChangeStreams(self.parts)
        self._running: dict[tuple[str, RequestId], Callable[[], None]] = {}

    async def answer(self, method: str, body: Any, receive: Receive, exchange: Exchange) -> None:
        """Answer one HTTP request; send any `GatewayError` but `AuthError` as a JSON-RPC error.
        `receive` notices that the client hangs up.

        Raises:
            AuthError: the caller is not authorized.
        """
        try:
            match method:
                case "GET":
                    await self._get(receive, exchange)
                case "DELETE":
                    caller = await self._caller(exchange)
                    await self.parts.sessions.end(caller.session, caller.principal)
                    self._record_end(caller)
                    await exchange.responder.answer(200, b"")
                case _ if isinstance(body, list):
                    await self._batch(body, receive, exchange)
                case _:
                    await self._post(body, receive, exchange)
        except AuthError:
            raise
        except GatewayError as error:
            await self._fail(error, exchange)

    def _record_end(self, caller: SessionCaller) -> None:
        """Record the duration of a session that its client has ended."""
        session = caller.session
        left_s = (session.expires_ms - self.parts.clock.now_ms()) / 1000
        server_session_ended(self.sealer.lifetime_s - left_s, session.revision)

    async def _post(self, body: Any, receive: Receive, exchange: Exchange) -> None:
        message = jsonrpc.session_message_from_json(body)
        if isinstance(message, Request):
            exchange.request_id, exchange.method = message.id, message.method
            if message.method == "initialize":
                with self._calls.opening_span(message, exchange) as span:
                    try:
                        await self._initialize(message, exchange)
                    except GatewayError as error:
                        end_span(span, error)
                        raise
                return
        caller = await self._caller(exchange)
        if not isinstance(message, Request):
            exchange.method = message.method if isinstance(message, Notification) else "response"
            with self._message_span(message, caller, exchange):
                await self._take(message, caller)
                await exchange.responder.answer(202, b"")
            return
        exchange.name = target_name(message)
        own = await self._own_result(message, caller, exchange) if message.method in OWN else None
        if own is not None:
            body = jsonrpc.result_response(message.id, own)
            await exchange.responder.answer(200, body, as_event=exchange.accepted == {EVENT_STREAM})
            return
        watch = self._watch(receive, caller, exchange)
        stream = self._stream(exchange, caller, watch)
        with watch:
            key = caller.session.id, message.id
            self._running[key] = watch.cancel
            try:
                responded = await self._calls.respond(message, caller, stream, exchange.correlation)
            except RESUMABLE as away:
                responded = await self._come_again(away, caller, stream, exchange)
            finally:
                if self._running.get(key) == watch.cancel:  # not a later request with the same id
                    del self._running[key]
            await self._send(responded, exchange)
        await self._hung_up(watch, exchange)

    async def _initialize(self, request: Request, exchange: Exchange) -> None:
        opening = SessionOpening.of(request)
        revision = opening.revision
        server = self.describe()
        offered = capabilities(self.parts.methods[revision.version].features)
        offered.pop("extensions", None)
        result: dict[str, Any] = {
            "protocolVersion": revision.version,
            "capabilities": offered,
            "serverInfo": implementation(revision, server_info(server)),
        }
        if server.instructions is not None:
            result["instructions"] = server.instructions
        session_id = self.sealer.seal(
            exchange.caller,
            revision.version,
            opening.requested,
            opening.capabilities,
            opening.client_info,
        )
        response = jsonrpc.result_response(request.id, json.encode(result))
        headers = [(SESSION, session_id.encode())]
        await exchange.responder.answer(
            200, response, headers, as_event=exchange.accepted == {EVENT_STREAM}
        )

    async def _own_result(
        self, request: Request, caller: SessionCaller, exchange: Exchange
    ) -> bytes | None:
        """Return the result of a request about the session itself; see `own_result`."""
        version, name = caller.session.revision, target_name(request)
        methods = self.parts.methods[version]
        operation = TracedMessage(request.id, request.method, name, version)
        with self._calls.span(operation, {}, caller, exchange.correlation) as span:
            try:
                return await own_result(request, caller, methods, self.parts.sessions)
            except GatewayError as error:
                end_span(span, error)
                raise

    def _message_span(
        self, message: Notification | Response, caller: SessionCaller, exchange: Exchange
    ) -> AbstractContextManager[object]:
        """Return the span of a notification; the answer to a question has none."""
        if isinstance(message, Response):
            return nullcontext()
        operation = TracedMessage(None, message.method, version=caller.session.revision)
        return self._calls.span(operation, {}, caller, exchange.correlation)

    async def _take(self, message: Notification | Response, caller: SessionCaller) -> None:
        """Accept a notification, or an answer to a question."""
        if isinstance(message, Response):
            await self._calls.take(message, caller)
            return
        if message.method == "notifications/cancelled":
            request_id = message.params.get("requestId")
            if isinstance(request_id, (str, int)) and not isinstance(request_id, bool):
                running = self._running.get((caller.session.id, request_id))
                if running is not None:
                    running()
                await self._calls.cancel(request_id, caller)

    async def _batch(self, body: list[Any], receive: Receive, exchange: Exchange) -> None:
        """Answer a batch, message after message, so that limits on requests count each message. A
        client that accepts streams gets each response when it is ready; other clients get one
        array. Raise InvalidRequest if the revision has no batches, or the batch is too long."""
        caller = await self._caller(exchange)
        exchange.method = "batch"
        if not caller.revision.has_batches:
            raise InvalidRequest(
                f"Batches are not part of revision {caller.session.revision}: send each message in "
                "a separate POST"
            )
        if not 1 <= len(body) <= MAX_BATCH:
            raise InvalidRequest(f"A batch has 1 to {MAX_BATCH} messages, not {len(body)}")
        watch = self._watch(receive, caller, exchange)
        stream = self._stream(exchange, caller, watch, in_batch=True)
        answers = _Answers(stream, exchange, self.parts.max_batch_answer_bytes)
        with watch:
            for value in body:
                if stream.is_unheard:
                    break
                element = exchange.element()
                has_room = answers.left > 0
                answer = await self._element(value, caller, stream, element, has_room=has_room)
                if answer is not None:
                    await answers.add(answer)
            else:
                await answers.end()
        await self._hung_up(watch, exchange)

    async def _element(
        self,
        value: Any,
        caller: SessionCaller,
        stream: RequestStream,
        exchange: Exchange,
        *,
        has_room: bool,
    ) -> bytes | None:
        """Return the response to one message of a batch, or `None` if it needs none. Each request
        has a log line."""
        began_ms = self.parts.clock.monotonic_ms()
        try:
            message = jsonrpc.session_message_from_json(value)
            if not isinstance(message, Request):
                with self._message_span(message, caller, exchange):
                    await self._take(message, caller)
                return None
            exchange.request_id, exchange.method = message.id, message.method
            exchange.name = target_name(message)
            if message.method == "initialize":
                raise InvalidRequest("initialize must not be part of a batch")
            if not has_room:
                raise Unavailable(
                    "The answers before this one in the batch are too large (http.max_body_bytes); "
                    "it was not run; send it again in a separate POST"
                )
            own = (
                await self._own_result(message, caller, exchange) if message.method in OWN else None
            )
            if own is not None:
                return jsonrpc.result_response(message.id, own)
            responded = await self._calls.respond(message, caller, stream, exchange.correlation)
            exchange.label, exchange.reason = responded.label, responded.reason
            return responded.response
        except AuthError as error:  # a batch has only one status
            error = exchange.refused(error)
            return jsonrpc.error_response(exchange.request_id, -32600, str(error))
        except GatewayError as error:
            exchange.label, exchange.error = error.outcome, str(error)
            exchange.code = wire_errors.look_up(error).code
            return wire_errors.render(error, exchange.request_id)[1]
        finally:
            if exchange.method is not None:
                exchange.write_line(self.parts.clock.monotonic_ms() - began_ms)

    async def _get(self, receive: Receive, exchange: Exchange) -> None:
        last_event_id = exchange.headers.get(_LAST_EVENT_ID)
        if last_event_id:
            await self._resume(last_event_id.decode("latin-1").strip(), receive, exchange)
            return
        caller = await self._caller(exchange)
        if not self.parts.streams:
            message = (
                "This endpoint has no stream of changes; POST requests, or GET with Last-Event-ID"
                " to resume a stream"
            )
            raise TransportError(405, message, [(b"allow", b"POST, DELETE")])
        with DisconnectWatch(receive, exchange.responder) as watch:
            features = self.parts.methods[caller.session.revision].features
            await self._changes.tell(caller, exchange.responder, features)
        await self._hung_up(watch, exchange)

    async def _resume(self, last_event_id: str, receive: Receive, exchange: Exchange) -> None:
        caller = self._claimed(exchange)
        watch = self._watch(receive, caller, exchange)
        stream = self._stream(exchange, caller, watch, last_event_id=last_event_id)
        with watch:
            try:
                await self.parts.sessions.check(caller.session, caller.principal)
                call = await self._calls.reopened(last_event_id, caller)
                responded = await self._resumed(call, caller, stream, exchange)
            except RESUMABLE as away:
                responded = await self._come_again(away, caller, stream, exchange)
            await self._send(responded, exchange, as_event=True)
        await self._hung_up(watch, exchange)

    async def _resumed(
        self, call: OpenCall, caller: SessionCaller, stream: RequestStream, exchange: Exchange
    ) -> Responded:
        exchange.request_id, exchange.method = call.request.id, call.request.method
        exchange.name = target_name(call.request)
        try:
            return await self._calls.resume(call, caller, stream, exchange.correlation)
        except AuthError:  # answered with its challenge
            raise
        except GatewayError as error:
            if isinstance(error, RESUMABLE) and self._comes_again(caller, stream):
                raise
            # send it on the stream, under the id of the call; otherwise the client would resume forever
            exchange.error = str(error)
            return Responded(wire_errors.render(error, call.request.id)[1], error.outcome)

    async def _come_again(
        self, away: GatewayError, caller: SessionCaller, stream: RequestStream, exchange: Exchange
    ) -> Responded:
        """End a stream whose client will resume the call; raise `away` if it will not."""
        if not self._comes_again(caller, stream):
            raise away
        exchange.error = str(away)
        await stream.come_again()
        return Responded(None, away.outcome)

    def _comes_again(self, caller: SessionCaller, stream: RequestStream) -> bool:
        """Return whether a client will resume its call and can still get it. The call's expiry
        bounds this while the store is down."""
        event_id = stream.last_event_id
        if event_id is None or not (stream.resumes or stream.is_resumed):
            return False
        return self.parts.clock.now_ms() < self._calls.until_ms(event_id, caller)

    async def _caller(self, exchange: Exchange) -> SessionCaller:
        """Return the caller, in a session that has not been ended.

        Raises:
            TransportError: 400, the header of the session or of the version is missing or wrong.
            SessionNotFound: the session is unknown, expired or ended.
            Unavailable: the store cannot be reached.
        """
        caller = self._claimed(exchange)
        await self.parts.sessions.check(caller.session, caller.principal)
        return caller

    def _claimed(self, exchange: Exchange) -> SessionCaller:
        """Return the caller from the headers alone, without checking whether the session has ended.
        Raise TransportError and SessionNotFound as `_caller` does."""
        version = exchange.headers.get(VERSION_HEADER)
        if version is not None and version not in _VERSIONS and version.strip() not in _VERSIONS:
            speaks = ", ".join((*SUPPORTED_VERSIONS, *VERSIONS))
            raise TransportError(
                400, f"Unsupported MCP-Protocol-Version: this server speaks {speaks}"
            )
        token = exchange.headers.get(SESSION)
        if token is None:
            raise TransportError(
                400, "Mcp-Session-Id is missing: send the id from the answer to initialize"
            )
        principal = exchange.caller
        session = self._known(token.decode("latin-1").strip(), principal)
        remaining_ms = exchange.host.remaining_ms
        deadline = self.parts.clock.deadline(remaining_ms)
        address = exchange.address
        return SessionCaller(session, principal, deadline, remaining_ms, exchange, address)

    def _known(self, token: str, principal: Principal) -> SessionFacts:
        session = self.sealer.open(token, principal)
        if session.revision not in REVISIONS:
            # sealed by a version of the gateway that served this revision
            raise self.sealer.refused("of a revision that is not served", principal)
        return session

    def _watch(self, receive: Receive, caller: SessionCaller, exchange: Exchange) -> UnheardWatch:
        return UnheardWatch(
            receive,
            exchange.responder,
            exchange.keep_alive_s(self.parts.keep_alive_s),
            lambda: self.parts.followers.room(caller.principal),
        )

    def _stream(
        self,
        exchange: Exchange,
        caller: SessionCaller,
        watch: UnheardWatch,
        *,
        in_batch: bool = False,
        last_event_id: str | None = None,
    ) -> RequestStream:
        session = caller.session
        return RequestStream(
            exchange.responder,
            watch,
            can_tell=EVENT_STREAM in exchange.accepted,
            holds=self.parts.streams,
            resumes=not in_batch and session.revision == RESUMING and session.requested == RESUMING,
            last_event_id=last_event_id,
        )

    async def _send(
        self, responded: Responded, exchange: Exchange, *, as_event: bool = False
    ) -> None:
        exchange.label, exchange.reason = responded.label, responded.reason
        responder = exchange.responder
        if responded.response is not None:
            as_event = as_event or exchange.accepted == {EVENT_STREAM}
            await responder.answer(200, responded.response, as_event=as_event)
        elif responder.state is not State.DONE:
            await responder.end()

    async def _hung_up(self, watch: DisconnectWatch, exchange: Exchange) -> None:
        """End the response to a client that has hung up or cancelled its request."""
        if watch.disconnected and exchange.responder.state is not State.DONE:
            exchange.label = "cancelled"
            await exchange.responder.end()

    async def _fail(self, error: GatewayError, exchange: Exchange) -> None:
        status, body = wire_errors.render(error, exchange.request_id)
        exchange.code = wire_errors.look_up(error).code
        exchange.label, exchange.error = error.outcome, str(error)
        if exchange.responder.state is not State.DONE:
            headers = error_headers(error) if status >= 400 else ()
            await exchange.responder.answer(status, body, headers)


@dataclass(eq=False)
class _Answers:
    """The responses to one batch. A response that was streamed is not kept."""

    stream: RequestStream
    exchange: Exchange
    left: int
    """The number of bytes left for further responses. If it is not positive, no further request
    runs. The last response may be larger."""
    kept: list[bytes] = field(default_factory=list)

    async def add(self, answer: bytes) -> None:
        """Send a response, or keep it for the array.

        Raises:
            ClientDisconnect: the client does not read.
        """
        self.left -= len(answer)
        if self.stream.can_tell:
            await self.stream.message(answer)
        else:
            self.kept.append(answer)

    async def end(self) -> None:
        """Send the array, or end the stream; 202 if no message needed a response."""
        if self.kept:
            await self.exchange.responder.answer(200, b"[%b]" % b",".join(self.kept))
        else:
            await self.exchange.responder.end()
