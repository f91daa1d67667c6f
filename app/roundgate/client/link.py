"""JSON-RPC requests to one server over Streamable HTTP, in revisions with and without sessions.

`Link` formats requests for each revision, resends lost requests, and keeps the session of an older
server. `Connection` decides which requests to send.

An older server asks questions on the stream of a request (`OlderRequest`) or on the stream of the
session (`SessionStream`), which not every server has. A broken stream resumes after the last event
that arrived. If the server keeps events, another process can continue a request from its `Position`.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final, TypeVar

from msgspec import Struct

from roundgate.background import cancelled, detached
from roundgate.client import messages
from roundgate.client.auth import Auth
from roundgate.client.messages import (
    NO_LISTENER,
    Detached,
    Listener,
    Observer,
    Reader,
    Received,
    ServerEvent,
    Speaker,
    TryLater,
    id_of,
    is_stream,
    read_session_id,
    result_of,
)
from roundgate.client.sender import Headers, Redact, Sender, reason_of
from roundgate.client.transport import HttpResponse, Limits, Transport, Url
from roundgate.client.types import Json, is_modern
from roundgate.errors import BadAnswer, ClientError, ConnectionLost, HttpRefused, TimedOut
from roundgate.json import encode
from roundgate.net.request import IdleLimit
from roundgate.observability import outgoing

T = TypeVar("T")

_IDENTITY: Final = ("Accept-Encoding", "identity")
_RETRIES: Final = 2
_SETTLE_S: Final = 1.0
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 30.0
_LEAST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 60.0
"""The bounds on the server's `retry` in seconds. Without a pause, a server that ends each stream at
once would get requests without end."""
_FAILED_ANSWER_S: Final = 0.25
"""Seconds to wait for a result after an answer to a question was refused: the server may have ended
the request, and sends the result on another connection."""
_MAX_ANSWERING: Final = 32
_LONGEST_REQUEST_ID: Final = 256
_MAX_REQUEST_ID_BITS: Final = 64
"""The limits on the id of a server's request, which sealed states contain."""
_MAX_SILENT: Final = 2
"""The limit on consecutive streams that end without an event. Beyond it, the request fails."""
_LONGEST_SILENCE_S: Final = 2.0
"""Seconds without data after which a continued request opens its stream again. Events are lost on a
stream that begins while the server sends them, and some servers never send new ones on it."""
UNREACHABLE_S: Final = 10.0
"""Seconds for which a continued request tries to reach a server that does not answer."""
_RETRY_S: Final = 0.5
"""Seconds between two of these attempts."""
_CONFLICT: Final = 409
"""The HTTP status with which a server refuses a stream that another connection reads."""
_UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
"""HTTP statuses of a server that cannot answer at the moment, or of a proxy in front of it."""


class Position(Struct, frozen=True):
    """A position in a request to an older server that keeps events. Any process can continue the
    request from here. `after` is the last event that was taken from the request's stream."""

    session_id: str
    version: str
    request_id: int
    after: str


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
        received: Received | None = None,
        first_id: int = 1,
    ) -> None:
        """Prepare the link without sending anything.

        `info` and `capabilities` describe the client. `headers` are sent with every request.
        `redact` removes secrets from received messages, `received` counts what is no message. The
        caller closes `transport`.

        A client for several users needs a random `first_id`: servers on the Python SDK keep the
        events of all sessions together by the ids of requests, so a resumed stream has the events of
        each request with this id.
        """
        self.transport = transport
        self.limits = limits
        self.version: str | None = None
        """The negotiated revision; `None` before the negotiation."""
        self.session_id: str | None = None
        self.keeps_events = False
        """Whether a stream of the server began with an event that has an id and no data. 2025-11-25
        defines it for servers from which a stream can be resumed; a mere id does not show this."""
        self.reader = Reader(limits, observer, redact, received or Received(url.authority))
        self.session_stream = SessionStream(self)
        self.pending: list[OlderRequest] = []
        """The running requests to an older server, oldest first. The newest answers the questions
        on the session's stream."""
        self._peer = outgoing.Peer(url.host, url.port)
        self._opened_s: float | None = None
        self._sender = Sender(url, transport, auth, headers, redact)
        self._speaker = Speaker(info, capabilities)
        self._observer = observer
        self._redact = redact
        self._ids = count(first_id)
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
        has_sessions = not is_modern(spoken)
        for retry in range(_RETRIES + 1):
            message = self._message(method, params, spoken, listener)
            limit_s = self.limits.request_s
            limit = asyncio.timeout(limit_s) if limit_s < inf else nullcontext()
            try:
                with outgoing.client_span(message, spoken, self._peer, self.session_id) as span:
                    async with limit as timeout:
                        if not has_sessions:
                            result = await self._exchange(message, spoken, listener)
                        else:
                            request = OlderRequest(self, listener, timeout)
                            try:
                                result = await request.result(message, spoken)
                            except Detached:
                                span.detached()
                                raise
                    span.received(result)
                    return result
            except (asyncio.CancelledError, TimeoutError, TimedOut) as error:
                was_sent = not isinstance(error, TimedOut) or error.was_sent
                # lifecycle: "The initialize request MUST NOT be cancelled by clients"
                if was_sent and has_sessions and method != "initialize":
                    self._cancel(message["id"], spoken, listener)
                if isinstance(error, TimeoutError):
                    raise self._late(method) from None
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
        with outgoing.client_span(message, version, self._peer, self.session_id):
            await self._deliver(message, version, method, NO_LISTENER)

    async def answer(self, request_id: Any, answer: Json, listener: Listener = NO_LISTENER) -> None:
        """Send the response to a request that an older server made, to the request of `listener`."""
        message: Json = {"jsonrpc": "2.0", "id": request_id, **answer}
        await self._deliver(message, self._version(), "an answer", listener)

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
                    if (received := self.reader.event(event, may_answer=False)) is not None:
                        yield received
        finally:
            await response.close()

    async def resumed_stream(
        self,
        last_id: str | None = None,
        is_open: asyncio.Event | None = None,
        idle: IdleLimit | None = None,
        listener: Listener = NO_LISTENER,
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield the events of the session's stream or, with `last_id`, the events after this event
        on its stream, which belongs to the request of `listener`. `is_open` is set once the server
        begins to answer. Raise `HttpRefused` if the server offers no stream."""
        headers = [("Accept", "text/event-stream"), _IDENTITY]
        if last_id is not None:
            # in UTF-8, as browsers send it (WHATWG HTML, "Server-sent events")
            headers.append(("Last-Event-ID", last_id.encode("utf-8", "replace").decode("latin-1")))
        headers += [*self._session_headers(), *listener.caller_headers]
        response = await self._sender.send("GET", headers, None, idle)
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

    async def through(
        self, work: Coroutine[Any, Any, T], listener: Listener, *, leaves_task: bool = False
    ) -> T:
        """Return the result of `work`, which sends several requests to an older server. Meanwhile,
        `listener` answers all questions on the session's stream.

        Args:
            work: the coroutine that sends the requests.
            listener: answers the questions.
            leaves_task: whether the result is a task that still runs. Its questions so far are
                answered first, because a later request does not get them.
        """
        request = OlderRequest(self, listener, None)
        work = request.with_answers(work) if leaves_task else work
        return await request.until_done(work, self.session_stream.standing)

    def open_session(self, session_id: str | None) -> None:
        """Use a session that an older server has opened; `None` if it has none."""
        self.session_id = session_id
        self._opened_s = asyncio.get_running_loop().time()

    @property
    def can_detach(self) -> bool:
        """Return whether another process can continue the running request to an older server."""
        return bool(self.pending) and self.pending[-1].is_kept and self.session_id is not None

    def detach(self, open_ids: Collection[str | int]) -> Position | None:
        """End the running request to an older server with `Detached`, so that another process can
        continue it. Return its position, or `None` if the request cannot be continued now and runs
        on.

        `open_ids` are the ids of the open questions. The position precedes all other questions that
        are not answered. The session's stream is not resumed, so none may be open there.
        """
        return self.pending[-1].detach(open_ids) if self.pending else None

    async def resume(
        self, position: Position, answers: Mapping[str | int, Json], listener: Listener
    ) -> Json:
        """Continue a request that a process has detached: answer its questions by their ids, and
        return its result. Both may happen repeatedly.

        Raises:
            RpcError: the server answered the request with an error.
            HttpRefused: the server refuses to continue; with the status 400 or 404, it has forgotten
                the session or its events.
            BadAnswer, ConnectionLost, TimedOut: see `request`.
        """
        self.version, self.session_id = position.version, position.session_id
        self._opened_s = None
        await self.session_stream.open()
        with outgoing.continued_request(self._peer, dict(answers)) as continued:
            async with self._in_time("a continued request") as timeout:
                request = OlderRequest(self, listener, timeout, position, answers)
                try:
                    result = await request.resumed_result()
                except Detached:
                    continued.detached()
                    raise
            continued.received(result)
            return result

    async def leave_session(self) -> None:
        """Close the stream of the session, and keep the session at the server."""
        await self.session_stream.close()
        await asyncio.gather(*self._cancelling, return_exceptions=True)
        self.session_id = None

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
        if self._opened_s is not None:  # this process has opened the session
            took_s = asyncio.get_running_loop().time() - self._opened_s
            outgoing.client_session_ended(took_s, self.version, self._peer)
        self.session_id = None

    # -- one request -------------------------------------------------------------------------------

    def _version(self) -> str:
        assert self.version is not None, "a revision is negotiated before requests are sent"
        return self.version

    def _message(self, method: str, params: Json, version: str, listener: Listener) -> Json:
        return self._speaker.message(method, params, next(self._ids), version, listener)

    def _cancel(self, request_id: int, version: str, listener: Listener) -> None:
        """Tell an older server in the background that a request is cancelled: the end of its stream
        does not say so."""
        params = {"requestId": request_id, "reason": "The caller no longer waits"}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}

        async def tell() -> None:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(self.limits.connect_s):
                    await self._deliver(message, version, "a cancellation", listener)

        telling = asyncio.create_task(tell())
        self._cancelling.add(telling)
        telling.add_done_callback(self._cancelling.discard)

    @asynccontextmanager
    async def _in_time(self, what: str) -> AsyncGenerator[asyncio.Timeout, None]:
        try:
            async with asyncio.timeout(self.limits.request_s) as timeout:
                yield timeout
        except TimeoutError:
            raise self._late(what) from None

    def _late(self, what: str) -> TimedOut:
        limit = self.limits.request_s
        return TimedOut(f"No answer to {what} within {limit:g} s (limit request_s)")

    async def _deliver(self, message: Json, version: str, what: str, listener: Listener) -> None:
        """Send a message that is answered only by a status. Raise `HttpRefused` unless the status
        is 2xx."""
        async with self._in_time(what):
            response = await self.post(message, version, listener)
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
        headers += listener.caller_headers
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
        close = response.close
        try:
            if not is_stream(response):
                return await self.json_result(response, message["id"])
            async with aclosing(self.reader.events(response)) as events:
                async for event in events:
                    received = self.reader.event(event)
                    if received is None:
                        continue
                    if "method" not in received:
                        close = getattr(response, "leave", close)  # of our own transport
                        return result_of(received, message["id"])
                    if "id" in received:
                        raise BadAnswer(
                            "The server sent a request on the stream of a request, which this "
                            "revision forbids"
                        )
                    await listener.notify(received)
        finally:
            await close()
        raise ConnectionLost("The stream of the request ended before its answer", was_sent=True)


class SessionStream:
    """The stream of an older server's session, reopened when it breaks."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reading: asyncio.Task[None] | None = None
        self.resumes = True
        """Whether a broken stream resumes after the last event, rather than begins anew."""
        self.taps: set[asyncio.Queue[Json]] = set()
        """Queues that receive each notification. A full queue drops it."""
        self.standing: list[OlderRequest] = []
        """The running calls with several requests, oldest first. The newest answers the questions
        on this stream, in preference to `Link.pending`."""

    @property
    def is_open(self) -> bool:
        """Return whether the stream is being read or will be reopened."""
        return self._reading is not None and not self._reading.done()

    async def open(self) -> None:
        """Start to read, and wait until the stream is open, so later questions on it are not lost.

        The wait ends after 1 s, because some servers send no response head before the first event.
        """
        is_settled = asyncio.Event()
        self._reading = detached(asyncio.create_task, self._read(is_settled))
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await is_settled.wait()

    async def close(self) -> None:
        """Stop reading."""
        reading, self._reading = self._reading, None
        await cancelled(reading)

    async def _read(self, is_settled: asyncio.Event) -> None:
        last_id: str | None = None
        wait_s = _FIRST_WAIT_S
        try:
            while True:
                try:
                    async with aclosing(self._link.resumed_stream(last_id, is_settled)) as events:
                        async for event in events:
                            wait_s = _FIRST_WAIT_S
                            last_id = (event.id or last_id) if self.resumes else None
                            await self._take(self._link.reader.event(event, may_answer=False))
                except (ConnectionLost, TimedOut):
                    is_settled.set()
                except HttpRefused as error:
                    # the server has not yet noticed the end of an earlier connection
                    if error.status != _CONFLICT:
                        return
                except ClientError:
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        finally:
            is_settled.set()

    async def _take(self, message: Json | None) -> None:
        if message is None or "method" not in message:
            return
        if "id" not in message:
            for tap in self.taps:
                with suppress(asyncio.QueueFull):
                    tap.put_nowait(message)
        elif requests := self.standing or self._link.pending:
            requests[-1].ask(message, None)
        elif message["method"] == "ping":
            await self._link.answer(message["id"], {"result": {}})
        else:
            error = {"code": -32601, "message": "No call is running that could answer"}
            await self._link.answer(message["id"], {"error": error})


class OlderRequest:
    """A request to an older server, or a group of requests. It answers questions on streams and
    resumes broken streams. Its limits `request_s` and `idle_s` are suspended while a question is
    open, because a person may need time to answer."""

    def __init__(
        self,
        link: Link,
        listener: Listener,
        time_limit: asyncio.Timeout | None,
        position: Position | None = None,
        answers: Mapping[str | int, Json] | None = None,
    ) -> None:
        """Prepare the request without sending it. `position` continues a request of another process,
        whose questions have `answers`."""
        self._link = link
        self._listener = listener
        self._timeout = time_limit
        self._idle = IdleLimit(link.limits.idle_s)
        self._answers = answers or {}
        self._answering: set[asyncio.Task[None]] = set()
        self._asked: set[str | int] = set(self._answers)
        self._unanswered: dict[str | int, str | None] = {}
        """The ids of unanswered requests of the server, and the last event before each; `None` if the
        server asked on the session's stream, or without ids."""
        self._task: asyncio.Task[Any] | None = None
        """The task of `until_done` while it runs."""
        self._failure: BaseException | None = None
        self._has_failed = False
        """Whether `_failure` has cancelled the task."""
        self._request_id = None if position is None else position.request_id
        self._last_id = None if position is None else position.after
        self.is_kept = position is not None
        """Whether the server keeps the events of the request's stream."""
        self._retry_ms: int | None = None
        self._open_questions = 0
        self._left_s: float | None = None

    async def result(self, message: Json, version: str) -> Json:
        """Send the request and return its result."""
        self._request_id = message["id"]
        return await self.until_done(self._exchange(message, version), self._link.pending)

    async def resumed_result(self) -> Json:
        """Send the answers, and return the result from the request's stream."""
        return await self.until_done(self._resume(), self._link.pending)

    async def until_done(self, work: Coroutine[Any, Any, T], among: list[OlderRequest]) -> T:
        """Return the result of `work`, or raise the error of a question that failed. Meanwhile,
        `among` includes this request."""
        self._task = task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        cancelling = task.cancelling()
        among.append(self)
        try:
            return await work
        except asyncio.CancelledError:
            # another cancellation stays in effect
            if self._failure is None or not self._has_failed or task.uncancel() > cancelling:
                raise
            raise self._failure from None
        except (ConnectionLost, TimedOut):
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            self._task = None
            among.remove(self)
            if self._answering:
                await cancelled(*self._answering)

    async def with_answers(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work` once all questions so far are answered."""
        result = await work
        if self._answering:
            await asyncio.wait(self._answering)
        return result

    def detach(self, open_ids: Collection[str | int]) -> Position | None:
        """See `Link.detach`."""
        link, request_id = self._link, self._request_id
        if not self.is_kept or link.session_id is None or link.version is None:
            return None
        unknown = [before for asked, before in self._unanswered.items() if asked not in open_ids]
        after = unknown[0] if unknown else self._last_id
        if after is None or None in unknown or request_id is None or self._failure is not None:
            return None
        self._fail(Detached())
        return Position(link.session_id, link.version, request_id, after)

    async def _exchange(self, message: Json, version: str) -> Json:
        session_id = self._link.session_id
        response = await self._link.post(message, version, self._listener, self._idle)
        close = response.close
        try:
            if is_stream(response):
                result = await self._read(response, message["id"])
                close = getattr(response, "leave", close)  # of our own transport
            else:
                result = await self._link.json_result(response, message["id"], session_id)
        finally:
            await close()
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
            await asyncio.sleep(self._pause_s(1.0))
            events = self._link.resumed_stream(
                self._last_id, idle=self._idle, listener=self._listener
            )

    def _pause_s(self, default_s: float) -> float:
        """Return the pause in seconds before a stream is opened again: the server's `retry`, between
        0.1 s and 60 s, or `default_s`."""
        if self._retry_ms is None:
            return default_s
        return min(max(self._retry_ms / 1_000, _LEAST_PAUSE_S), _LONGEST_PAUSE_S)

    async def _resume(self) -> Json:
        assert self._request_id is not None, "a position has the id of its request"
        for asked, answer in self._answers.items():
            await self._reach(partial(self._link.answer, asked, answer, self._listener))
        silence_s = _FIRST_WAIT_S
        while True:
            is_open = asyncio.Event()
            attempt = partial(self._read_on, self._request_id, silence_s, is_open)
            if (result := await self._reach(attempt)) is not None:
                return result
            longest_s = _LONGEST_SILENCE_S if is_open.is_set() else self._link.limits.idle_s
            silence_s = min(silence_s * 2, longest_s)

    async def _read_on(self, own_id: int, silence_s: float, is_open: asyncio.Event) -> Json | None:
        """Read the stream after the last event, until `silence_s` seconds pass without data. Return
        the result, or `None` if it has not arrived. `is_open` is set once the server answers."""
        idle = IdleLimit(silence_s)
        events = self._link.resumed_stream(self._last_id, is_open, idle, self._listener)
        try:
            async with aclosing(events):
                async for event in events:
                    if (result := await self._take(event, own_id)) is not None:
                        return result
        except TimedOut as error:
            if not error.was_sent:
                raise
            return None
        except ConnectionLost:
            if not is_open.is_set():
                raise
        except HttpRefused as error:
            if error.status != _CONFLICT:
                raise
            is_open.set()
        await asyncio.sleep(self._pause_s(silence_s))
        return None

    async def _reach(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a repeatable attempt. Repeat it while the server is unreachable, for
        up to `UNREACHABLE_S` seconds."""
        now = asyncio.get_running_loop().time
        until_s: float | None = None
        while True:
            try:
                return await attempt()
            except HttpRefused as error:
                if error.status not in _UNAVAILABLE or (until_s is not None and now() > until_s):
                    raise
            except (ConnectionLost, TimedOut):
                if until_s is not None and now() > until_s:
                    raise
            until_s = until_s or now() + UNREACHABLE_S
            await asyncio.sleep(_RETRY_S)

    async def _take(self, event: ServerEvent, own_id: int) -> Json | None:
        """Handle an event; return the result if the event has it."""
        if event.id and not event.data and self._last_id is None:
            self.is_kept = self._link.keeps_events = True
        self._retry_ms = self._retry_ms if event.retry_ms is None else event.retry_ms
        result = await self._take_message(self._link.reader.event(event), own_id)
        # `detach` returns a position before the result. An event without data may have a later id
        # than an event that the server did not send on this stream.
        if result is None and (event.data or self._last_id is None):
            self._last_id = event.id or self._last_id
        return result

    async def _take_message(self, message: Json | None, own_id: int) -> Json | None:
        if message is None:
            return None
        if "method" not in message:
            # a resumed stream may have the response to another request, or no response at all
            is_own = id_of(message) == own_id or (message.get("id") is None and "error" in message)
            return result_of(message, own_id) if is_own else None
        if "id" in message:
            self.ask(message, self._last_id)
        else:
            await self._listener.notify(message)
        return None

    def ask(self, message: Json, before: str | None) -> None:
        """Answer a request of the server in the background; ignore a repeated one. If the server
        breaks the protocol or asks too much, this request fails with `BadAnswer`. `before` is the
        event before the request on this request's stream."""
        limits, request_id = self._link.limits, message["id"]
        if not isinstance(request_id, str | int) or isinstance(request_id, bool):
            problem = "sent a request whose id is neither text nor a number"
        elif _is_long(request_id):
            problem = f"sent a request whose id is longer than {_LONGEST_REQUEST_ID} characters"
        elif request_id in self._asked:
            return  # a resumed stream may repeat a question
        elif len(self._answering) >= _MAX_ANSWERING:
            problem = f"asks more than {_MAX_ANSWERING} questions at once"
        elif len(self._asked) >= limits.max_questions * limits.max_rounds:
            problem = f"asks more than {len(self._asked)} questions in a call"
        else:
            self._asked.add(request_id)
            self._unanswered[request_id] = before
            task = asyncio.create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(partial(self._answered, request_id))
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
        try:
            await self._link.answer(message["id"], answer, self._listener)
        except ClientError as error:
            if isinstance(error, ConnectionLost):  # the answer was not sent, but the request was
                error = ConnectionLost(str(error), was_sent=True)
            self._fail(error, _FAILED_ANSWER_S)

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        now = asyncio.get_running_loop().time
        if self._timeout is not None and self._open_questions == 0:
            limit = self._timeout.when()
            self._left_s = None if limit is None else max(0.0, limit - now())
            self._timeout.reschedule(None)
        self._open_questions += 1
        try:
            yield
        finally:
            self._open_questions -= 1
            if self._timeout is not None and self._open_questions == 0:
                self._timeout.reschedule(None if self._left_s is None else now() + self._left_s)

    def _answered(self, request_id: str | int, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fail(error)
        else:
            self._unanswered.pop(request_id, None)

    def _fail(self, error: BaseException, after_s: float = 0.0) -> None:
        """End this request with an error, unless its result arrives within `after_s` seconds."""
        if self._failure is None:
            self._failure = error
            asyncio.get_running_loop().call_later(after_s, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._has_failed = True
            self._task.cancel()


def _is_long(request_id: str | int) -> bool:
    if isinstance(request_id, int):
        return request_id.bit_length() > _MAX_REQUEST_ID_BITS
    return len(request_id) > _LONGEST_REQUEST_ID
