"""JSON-RPC requests to one server over Streamable HTTP, in revisions with and without sessions.

`Link` formats requests for each revision, resends lost requests, and keeps the session of an older
server. `Connection` decides which requests to send.

An older server asks questions on the stream of a request (`OlderRequest`) or on the stream of the
session (`SessionStream`), which not every server has. A broken stream resumes after the last event
that arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from itertools import count
from typing import Any, Final, TypeVar

from roundgate.client import messages
from roundgate.client.auth import Auth
from roundgate.client.messages import (
    NO_LISTENER,
    Listener,
    Observer,
    Reader,
    ServerEvent,
    Speaker,
    TryLater,
    is_stream,
    read_session_id,
    result_of,
)
from roundgate.client.sender import Headers, Redact, Sender, reason_of
from roundgate.client.transport import HttpResponse, IdleLimit, Limits, Transport, Url
from roundgate.client.types import Json, is_modern
from roundgate.errors import BadAnswer, ClientError, ConnectionLost, HttpRefused, TimedOut
from roundgate.json import encode
from roundgate.observability.tracing import Peer, client_session_ended, client_span

T = TypeVar("T")

_IDENTITY: Final = ("Accept-Encoding", "identity")
_RETRIES: Final = 2
_SETTLE_S: Final = 1.0
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 30.0
_MAX_ANSWERING: Final = 32
_MAX_SILENT: Final = 2
"""The limit on consecutive streams that end without an event. Beyond it, the request fails."""


class Link:
    """The sender of one client's requests to one server."""

    def __init__(
        self,
        url: Url,
        transport: Transport,
        *,
        info: Json,
        capabilities: Json,
        limits: Limits,
        auth: Auth | None = None,
        headers: Headers = (),
        observer: Observer | None = None,
        redact: Redact | None = None,
    ) -> None:
        """Prepare the link without sending anything.

        `info` and `capabilities` describe the client. `headers` are sent with every request.
        `redact` removes secrets from received messages. The caller closes `transport`.
        """
        self.transport = transport
        self.limits = limits
        self.version: str | None = None
        """The negotiated revision; `None` before the negotiation."""
        self.session_id: str | None = None
        self.reader = Reader(limits, observer, redact)
        self.session_stream = SessionStream(self)
        self.pending: list[OlderRequest] = []
        """The running requests to an older server, oldest first. The newest answers the questions
        on the session's stream."""
        self._peer = Peer(url.host, url.port)
        self._opened_s = 0.0
        self._sender = Sender(url, transport, auth, headers, redact)
        self._speaker = Speaker(info, capabilities)
        self._observer = observer
        self._redact = redact
        self._ids = count(1)
        self._cancelling: set[asyncio.Task[None]] = set()

    async def request(
        self,
        method: str,
        params: Json,
        *,
        may_repeat: bool,
        version: str | None = None,
        listener: Listener = NO_LISTENER,
    ) -> Json:
        """Send a request and return its result.

        A lost request is resent, at most twice and with a new id, if the server cannot have
        received it or if `may_repeat` is true. A request that the server asks to retry later is
        resent only if `may_repeat` is true.

        Raises:
            RpcError: the server answered with an error.
            HttpRefused: the server answered without a JSON-RPC message.
            SessionOver: the server has forgotten the session.
            BadAnswer: the server violated the protocol.
            ConnectionLost, TimedOut: no complete answer arrived.
        """
        spoken = version or self._version()
        for retry in range(_RETRIES + 1):
            message = self._message(method, params, spoken, listener)
            try:
                with client_span(message, spoken, self._peer, self.session_id) as span:
                    async with self._in_time(method) as timeout:
                        if is_modern(spoken):
                            result = await self._exchange(message, spoken, listener)
                        else:
                            request = OlderRequest(self, listener, timeout)
                            result = await request.result(message, spoken)
                    span.received(result)
                    return result
            except (asyncio.CancelledError, TimedOut) as error:
                was_sent = not isinstance(error, TimedOut) or error.was_sent
                # lifecycle: "The initialize request MUST NOT be cancelled by clients"
                if was_sent and not is_modern(spoken) and method != "initialize":
                    self._cancel(message["id"], spoken)
                raise
            except ConnectionLost as error:
                if retry == _RETRIES or (error.was_sent and not may_repeat):
                    raise
                wait_s = 0.1 * 4**retry
            except TryLater as error:
                if retry == _RETRIES or not may_repeat:
                    raise HttpRefused(error.status, str(error)) from None
                wait_s = error.wait_s
            await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    async def notify(self, method: str, version: str) -> None:
        """Send a notification."""
        message: Json = {"jsonrpc": "2.0", "method": method}
        with client_span(message, version, self._peer, self.session_id):
            await self._deliver(message, version, method)

    async def answer(self, request_id: Any, answer: Json) -> None:
        """Send the response to a request that an older server made."""
        message: Json = {"jsonrpc": "2.0", "id": request_id, **answer}
        await self._deliver(message, self._version(), "an answer")

    async def stream(self, method: str, params: Json) -> AsyncGenerator[Json, None]:
        """Send a request whose answer is a stream, and yield each message on the stream, including
        the response if it arrives."""
        version = self._version()
        message = self._message(method, params, version, NO_LISTENER)
        response = await self.post(message, version, NO_LISTENER)
        try:
            if not is_stream(response):
                result = await self.json_result(response, message["id"])
                yield {"jsonrpc": "2.0", "id": message["id"], "result": result}
                return
            async with aclosing(self.reader.events(response)) as events:
                async for event in events:
                    if (received := self.reader.message(event.data)) is not None:
                        yield received
        finally:
            await response.close()

    async def resumed_stream(
        self,
        last_id: str | None = None,
        is_open: asyncio.Event | None = None,
        idle: IdleLimit | None = None,
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield the events of the session's stream or, with `last_id`, the events after this event
        on its stream. `is_open` is set once the server begins to answer. Raise `HttpRefused` if the
        server offers no stream."""
        headers = [("Accept", "text/event-stream"), _IDENTITY]
        if last_id is not None:
            # in UTF-8, as browsers send it (WHATWG HTML, "Server-sent events")
            headers.append(("Last-Event-ID", last_id.encode("utf-8", "replace").decode("latin-1")))
        response = await self._sender.send("GET", [*headers, *self._session_headers()], None, idle)
        try:
            if not is_stream(response):
                raise HttpRefused(
                    response.status,
                    f"The server offers no stream: it answered GET with HTTP status {response.status}",
                )
            if is_open is not None:
                is_open.set()
            async with aclosing(self.reader.events(response)) as events:
                async for event in events:
                    yield event
        finally:
            await response.close()

    async def through(self, work: Coroutine[Any, Any, T], listener: Listener) -> T:
        """Return the result of `work`, which sends several requests to an older server. Meanwhile,
        `listener` answers all questions on the session's stream."""
        async with asyncio.timeout(None) as timeout:
            request = OlderRequest(self, listener, timeout)
            return await request.until_done(work, self.session_stream.standing)

    def open_session(self, session_id: str | None) -> None:
        """Use a session that an older server has opened; `None` if it has none."""
        self.session_id = session_id
        self._opened_s = asyncio.get_running_loop().time()

    async def end_session(self) -> None:
        """End the session at an older server; ignore errors."""
        await self.session_stream.close()
        await asyncio.gather(*self._cancelling, return_exceptions=True)
        if self.session_id is None:
            return
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(self.limits.connect_s):
                headers = [messages.ACCEPT_BOTH, *self._session_headers()]
                await (await self._sender.send_once("DELETE", headers)).close()
        took_s = asyncio.get_running_loop().time() - self._opened_s
        client_session_ended(took_s, self.version, self._peer)
        self.session_id = None

    # -- one request -------------------------------------------------------------------------------

    def _version(self) -> str:
        assert self.version is not None, "a revision is negotiated before requests are sent"
        return self.version

    def _message(self, method: str, params: Json, version: str, listener: Listener) -> Json:
        return self._speaker.message(method, params, next(self._ids), version, listener)

    def _cancel(self, request_id: int, version: str) -> None:
        """Tell an older server in the background that a request is cancelled: the end of its stream
        does not say so."""
        params = {"requestId": request_id, "reason": "The caller no longer waits"}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}

        async def tell() -> None:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(self.limits.connect_s):
                    await self._deliver(message, version, "a cancellation")

        telling = asyncio.create_task(tell())
        self._cancelling.add(telling)
        telling.add_done_callback(self._cancelling.discard)

    @asynccontextmanager
    async def _in_time(self, what: str) -> AsyncGenerator[asyncio.Timeout, None]:
        limit = self.limits.request_s
        try:
            async with asyncio.timeout(limit) as timeout:
                yield timeout
        except TimeoutError:
            raise TimedOut(f"No answer to {what} within {limit:g} s (limit request_s)") from None

    async def _deliver(self, message: Json, version: str, what: str) -> None:
        """Send a message that is answered only by a status. Raise `HttpRefused` unless the status
        is 2xx."""
        async with self._in_time(what):
            response = await self.post(message, version, NO_LISTENER)
            is_accepted = 200 <= response.status < 300
            sent = self._sender.sent
            reason = "" if is_accepted else await reason_of(response, sent, self._redact)
            await response.close()
        if not is_accepted:
            text = f"The server refused {what} with HTTP status {response.status}{reason}"
            raise HttpRefused(response.status, text)

    async def post(
        self, message: Json, version: str, listener: Listener, idle: IdleLimit | None = None
    ) -> HttpResponse:
        """Send a message in the form of a revision and return the response, which the caller
        closes. See `HttpRequest` for `idle`."""
        headers = [messages.ACCEPT_BOTH, messages.SENDS_JSON, _IDENTITY]
        if is_modern(version):
            headers += messages.of_request(message["method"], message["params"], version)
            headers += listener.headers
        else:
            headers += self._session_headers()
        if self._observer is not None:
            self._observer("sent", message, None)
        response = await self._sender.send("POST", headers, encode(message), idle)
        self._peer.http_version = getattr(response, "http_version", None)  # of our own transport
        return response

    def _session_headers(self) -> Iterator[tuple[str, str]]:
        if self.version is not None:
            yield "MCP-Protocol-Version", self.version
        if self.session_id is not None:
            yield "Mcp-Session-Id", self.session_id

    async def json_result(
        self, response: HttpResponse, request_id: Any, session_id: str | None = None
    ) -> Json:
        """Return the result in a response that is one JSON object; see `Reader.json_result`.
        `session_id` is the session in which the request was sent."""
        in_session = session_id is not None
        return await self.reader.json_result(
            response, request_id, in_session=in_session, sent=self._sender.sent
        )

    async def _exchange(self, message: Json, version: str, listener: Listener) -> Json:
        response = await self.post(message, version, listener)
        try:
            if not is_stream(response):
                return await self.json_result(response, message["id"])
            async with aclosing(self.reader.events(response)) as events:
                async for event in events:
                    received = self.reader.message(event.data)
                    if received is None:
                        continue
                    if "method" not in received:
                        return result_of(received, message["id"])
                    if "id" in received:
                        raise BadAnswer(
                            "The server sent a request on the stream of a request, which this "
                            "revision forbids"
                        )
                    await listener.notify(received)
        finally:
            await response.close()
        raise ConnectionLost("The stream of the request ended before its answer", was_sent=True)


class SessionStream:
    """The stream of an older server's session, reopened when it breaks."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reading: asyncio.Task[None] | None = None
        self.taps: set[asyncio.Queue[Json]] = set()
        """Queues that receive each notification. A full queue drops it."""
        self.standing: list[OlderRequest] = []
        """The running calls with several requests, oldest first. The newest answers the questions
        on this stream, in preference to `Link.pending`."""

    @property
    def is_open(self) -> bool:
        """Whether the stream is being read or will be reopened."""
        return self._reading is not None and not self._reading.done()

    async def open(self) -> None:
        """Start to read, and wait until the stream is open, so later questions on it are not lost.

        The wait ends after 1 s, because some servers send no response head before the first event.
        """
        is_settled = asyncio.Event()
        self._reading = asyncio.create_task(self._read(is_settled))
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await is_settled.wait()

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def _read(self, is_settled: asyncio.Event) -> None:
        last_id: str | None = None
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                async with aclosing(self._link.resumed_stream(last_id, is_settled)) as events:
                    async for event in events:
                        wait_s = _FIRST_WAIT_S
                        last_id = event.id or last_id
                        await self._take(self._link.reader.message(event.data))
            except (ConnectionLost, TimedOut):
                pass
            except ClientError:
                return
            finally:
                is_settled.set()
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _take(self, message: Json | None) -> None:
        if message is None or "method" not in message:
            return
        if "id" not in message:
            for tap in self.taps:
                with suppress(asyncio.QueueFull):
                    tap.put_nowait(message)
        elif requests := self.standing or self._link.pending:
            requests[-1].ask(message)
        elif message["method"] == "ping":
            await self._link.answer(message["id"], {"result": {}})
        else:
            error = {"code": -32601, "message": "No call is running that could answer"}
            await self._link.answer(message["id"], {"error": error})


class OlderRequest:
    """A request to an older server, or a group of requests. It answers questions on streams and
    resumes broken streams. Its limits `request_s` and `idle_s` are suspended while a question is
    open, because a person may need time to answer."""

    def __init__(self, link: Link, listener: Listener, time_limit: asyncio.Timeout) -> None:
        self._link = link
        self._listener = listener
        self._timeout = time_limit
        self._idle = IdleLimit(link.limits.idle_s)
        self._answering: set[asyncio.Task[None]] = set()
        self._asked: set[str | int] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_id: str | None = None
        self._retry_ms = 1_000
        self._open_questions = 0
        self._left_s: float | None = None

    async def result(self, message: Json, version: str) -> Json:
        """Send the request and return its result."""
        return await self.until_done(self._exchange(message, version), self._link.pending)

    async def until_done(self, work: Coroutine[Any, Any, T], among: list[OlderRequest]) -> T:
        """Return the result of `work`, or raise the error of a question that failed. Meanwhile,
        `among` includes this request."""
        exchange = asyncio.ensure_future(work)
        among.append(self)
        try:
            waited: set[asyncio.Future[Any]] = {exchange, self._failure}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return await exchange
        finally:
            among.remove(self)
            for task in (exchange, *self._answering):
                task.cancel()
            await asyncio.gather(exchange, *self._answering, return_exceptions=True)
            self._failure.cancel()

    async def _exchange(self, message: Json, version: str) -> Json:
        session_id = self._link.session_id
        response = await self._link.post(message, version, self._listener, self._idle)
        try:
            if is_stream(response):
                result = await self._read(response, message["id"])
            else:
                result = await self._link.json_result(response, message["id"], session_id)
        finally:
            await response.close()
        if message["method"] == "initialize":
            self._link.open_session(read_session_id(response))
        return result

    async def _read(self, response: HttpResponse, own_id: int) -> Json:
        events = self._link.reader.events(response)
        silent = 0
        while True:
            silent += 1
            try:
                async with aclosing(events):
                    async for event in events:
                        silent = 0
                        if (result := await self._take(event, own_id)) is not None:
                            return result
            except ConnectionLost:
                if self._last_id is None:
                    raise
            if self._last_id is None:
                text = "The stream of the request ended before its answer"
                raise ConnectionLost(text, was_sent=True)
            if silent > _MAX_SILENT:
                text = "The stream of the request ended, and resuming it brought no events"
                raise ConnectionLost(text, was_sent=True)
            # Wait as long as `retry` asks for: servers treat an earlier request as an error.
            await asyncio.sleep(min(self._retry_ms, 60_000) / 1_000)
            events = self._link.resumed_stream(self._last_id, idle=self._idle)

    async def _take(self, event: ServerEvent, own_id: int) -> Json | None:
        self._last_id = event.id or self._last_id
        self._retry_ms = self._retry_ms if event.retry_ms is None else event.retry_ms
        message = self._link.reader.message(event.data)
        if message is None:
            return None
        if "method" not in message:
            # a resumed stream may have the response to another request
            return result_of(message, own_id) if message.get("id") in (own_id, None) else None
        if "id" in message:
            self.ask(message)
        else:
            await self._listener.notify(message)
        return None

    def ask(self, message: Json) -> None:
        """Answer a request of the server in the background; ignore a repeated one. If the server
        breaks the protocol or asks too much, this request fails with `BadAnswer`."""
        limits, request_id = self._link.limits, message["id"]
        if not isinstance(request_id, str | int) or isinstance(request_id, bool):
            problem = "sent a request whose id is neither text nor a number"
        elif request_id in self._asked:
            return  # a resumed stream may repeat a question
        elif len(self._answering) >= _MAX_ANSWERING:
            problem = f"asks more than {_MAX_ANSWERING} questions at once"
        elif len(self._asked) >= limits.max_questions * limits.max_rounds:
            problem = f"asks more than {len(self._asked)} questions in a call"
        else:
            self._asked.add(request_id)
            task = asyncio.create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answered)
            return
        self._fail(BadAnswer(f"The server {problem}"))

    async def _answer(self, message: Json) -> None:
        params = message.get("params", {})
        if self._listener.on_request is None or not isinstance(params, dict):
            answer: Json = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            with self._clock_stopped(), self._idle.suspended():
                answer = await self._listener.on_request(
                    message["id"], str(message["method"]), params
                )
        await self._link.answer(message["id"], answer)

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        now = asyncio.get_running_loop().time
        if self._open_questions == 0:
            limit = self._timeout.when()
            self._left_s = None if limit is None else max(0.0, limit - now())
            self._timeout.reschedule(None)
        self._open_questions += 1
        try:
            yield
        finally:
            self._open_questions -= 1
            if self._open_questions == 0:
                self._timeout.reschedule(None if self._left_s is None else now() + self._left_s)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
