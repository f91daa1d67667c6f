"""One server, reached over Streamable HTTP: JSON-RPC requests out, results and notifications in, in either era.

Knows headers, `_meta`, media types, sessions of older revisions and how to come back to their streams. Does not know
what a request is for: that is `flows`, and `session` puts the two together.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from itertools import count
from typing import Any, Final, TypeAlias

from roundgate.carrier import carrier
from roundgate.client.auth import Auth, Refusal
from roundgate.client.events import EventReader, ServerEvent
from roundgate.client.flows import rpc_error
from roundgate.client.headers import of_request
from roundgate.client.limits import Limits
from roundgate.client.transport import HttpRequest, HttpResponse, Transport, Url, read_body
from roundgate.client.types import Json, is_modern
from roundgate.errors import (
    AuthorizationFailed,
    BadAnswer,
    ClientError,
    ConnectionLost,
    HttpRefused,
    ParseError,
    SessionOver,
    TimedOut,
    TryLater,
)
from roundgate.json import decode, encode

Observer: TypeAlias = Callable[[str, Json, int | None], None]
"""Sees each message: "sent" or "received", the message, the HTTP status of a response."""

_META: Final = "io.modelcontextprotocol/"
_ACCEPT: Final = ("Accept", "application/json, text/event-stream")
_JSON: Final = ("Content-Type", "application/json")
_IDENTITY: Final = ("Accept-Encoding", "identity")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 3
_MAX_AUTH_ATTEMPTS: Final = 4
_RETRIES: Final = 2
_LONGEST_RETRY_AFTER_S: Final = 30
_PATIENT_STATUSES: Final = frozenset({429, 502, 503, 504})
_MAX_ANSWERING: Final = 32
_SETTLE_S: Final = 1.0
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 30.0


@carrier
class Listener:
    """What a request wants to hear while it runs. `on_request` answers what an older server asks on its stream."""

    on_notification: Callable[[str, Json], Any] | None = None
    on_request: Callable[[Any, str, Json], Awaitable[Json]] | None = None
    meta: Json | None = None
    """Goes into `_meta` beside what every request has: a progress token, a log level, a trace."""
    headers: Sequence[tuple[str, str]] = ()


_DEAF: Final = Listener()


class Link:
    """How one client reaches one server. `version` is the revision it speaks, `None` until that is negotiated."""

    def __init__(
        self,
        url: Url,
        transport: Transport,
        *,
        info: Json,
        capabilities: Json,
        limits: Limits,
        auth: Auth | None = None,
        headers: Sequence[tuple[str, str]] = (),
        observer: Observer | None = None,
    ) -> None:
        self.url = url
        self.transport = transport
        self.limits = limits
        self.version: str | None = None
        self.session_id: str | None = None
        self._info = info
        self._capabilities = capabilities
        self._auth = auth
        self._headers = tuple(headers)
        self._observer = observer
        self._ids = count(1)
        self._metas: dict[str, Json] = {}
        self.under_way: list[_OlderRequest] = []
        """Requests to an older server, oldest first: what it asks on the session's stream is asked for the last one."""
        self.taps: set[asyncio.Queue[Json]] = set()
        """Where the notifications on the session's stream go."""
        self._session_stream: asyncio.Task[None] | None = None

    async def request(
        self,
        method: str,
        params: Json,
        *,
        may_repeat: bool,
        version: str | None = None,
        listener: Listener = _DEAF,
    ) -> Json:
        """Send a request and return its result.

        A lost one is sent again, with a new id and the same params, if the server cannot have got it, or if
        `may_repeat`.

        Raises:
            RpcError, HttpRefused, BadAnswer, ConnectionLost, TimedOut: as their names say.
        """
        spoken = version or self.version
        assert spoken is not None, "a revision is negotiated before requests are sent"
        for retry in range(_RETRIES + 1):
            message = self._message(method, params, spoken, listener)
            try:
                return await self._within_time(message, spoken, listener)
            except ConnectionLost as error:
                if retry == _RETRIES or (error.was_sent and not may_repeat):
                    raise
                wait = 0.1 * 4**retry
            except TryLater as error:
                if retry == _RETRIES or not may_repeat:
                    raise HttpRefused(error.status, str(error)) from None
                wait = error.wait_s
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def notify(self, method: str, version: str, params: Json | None = None) -> None:
        """Send a notification."""
        message: Json = {
            "jsonrpc": "2.0",
            "method": method,
            **({"params": params} if params else {}),
        }
        response = await self._post(message, version, _DEAF)
        try:
            if not 200 <= response.status < 300:
                raise HttpRefused(
                    response.status,
                    f"The server refused {method} with HTTP status {response.status}",
                )
        finally:
            await response.close()

    async def stream(
        self, method: str, params: Json, listener: Listener = _DEAF
    ) -> AsyncGenerator[Json, None]:
        """Send a request whose answer is a stream: each message on it, the response included if it comes."""
        assert self.version is not None
        message = self._message(method, params, self.version, listener)
        response = await self._post(message, self.version, listener)
        try:
            if not _is_stream(response):
                yield {
                    "jsonrpc": "2.0",
                    "id": message["id"],
                    "result": await self._json_result(response, message["id"]),
                }
                return
            async with aclosing(self._events(response)) as events:
                async for event in events:
                    if (received := self._decoded(event.data)) is not None:
                        yield received
        finally:
            await response.close()

    async def legacy_stream(
        self, last_id: str | None = None, is_open: asyncio.Event | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """The stream on which an older server sends what belongs to no request, or goes on with one that broke."""
        response = await self._get(last_id)
        if is_open is not None:
            is_open.set()
        try:
            async with aclosing(self._events(response)) as events:
                async for event in events:
                    yield event
        finally:
            await response.close()

    def decoded(self, event: ServerEvent) -> Json | None:
        """The message in an event, `None` if it is empty."""
        return self._decoded(event.data)

    async def open_session_stream(self) -> None:
        """Read the stream on which an older server says what belongs to no request. Not every server has one.

        What a server asks there before the stream is open may be lost, so the first call waits for it, for a moment:
        some servers send nothing, not even a head, before they have something to say.
        """
        is_settled = asyncio.Event()
        self._session_stream = asyncio.create_task(self._read_session_stream(is_settled))
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await is_settled.wait()

    @property
    def has_session_stream(self) -> bool:
        return self._session_stream is not None and not self._session_stream.done()

    async def _read_session_stream(self, is_settled: asyncio.Event) -> None:
        last_id: str | None = None
        wait = _FIRST_WAIT_S
        while True:
            try:
                async with aclosing(self.legacy_stream(last_id, is_settled)) as events:
                    async for event in events:
                        wait = _FIRST_WAIT_S
                        last_id = event.id or last_id
                        await self._take_of_session(self._decoded(event.data))
            except (ConnectionLost, TimedOut):
                pass
            except ClientError:
                return
            finally:
                is_settled.set()
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    async def _take_of_session(self, message: Json | None) -> None:
        if message is None or "method" not in message:
            return
        if "id" in message:
            if self.under_way:
                self.under_way[-1].asked(message)
            else:
                is_ping = message["method"] == "ping"
                no = {"error": {"code": -32601, "message": "Nobody is here to answer"}}
                await self.answer(message["id"], {"result": {}} if is_ping else no)
            return
        for tap in self.taps:
            if not tap.full():
                tap.put_nowait(message)

    async def end_session(self) -> None:
        """Tell an older server that its session is over; what it answers does not matter."""
        if self._session_stream is not None:
            self._session_stream.cancel()
            await asyncio.gather(self._session_stream, return_exceptions=True)
            self._session_stream = None
        if self.session_id is None:
            return
        try:
            async with asyncio.timeout(self.limits.connect_s):
                headers = await self._own_headers("DELETE", self._older_headers([_ACCEPT]))
                request = HttpRequest("DELETE", self.url, headers)
                response = await self.transport.send(request)
                await response.close()
        except (ClientError, TimeoutError):
            pass
        self.session_id = None

    # -- one request ------------------------------------------------------------------------------------------------

    def _message(self, method: str, params: Json, version: str, listener: Listener) -> Json:
        message: Json = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        if is_modern(version):
            meta = self._metas.get(version)
            if meta is None:
                meta = self._metas[version] = {
                    _META + "protocolVersion": version,
                    _META + "clientInfo": self._info,
                    _META + "clientCapabilities": self._capabilities,
                }
            own = params.get("_meta")
            if listener.meta or own:
                meta = {**(own or {}), **(listener.meta or {}), **meta}
            message["params"] = {**params, "_meta": meta}
        else:
            older = {
                key: value
                for key, value in (listener.meta or {}).items()
                if not key.startswith(_META)
            }
            if params or older:
                message["params"] = (
                    {**params, "_meta": {**params.get("_meta", {}), **older}} if older else params
                )
        return message

    async def _within_time(self, message: Json, version: str, listener: Listener) -> Json:
        limit = self.limits.request_s
        try:
            async with asyncio.timeout(limit) as timeout:
                if is_modern(version):
                    return await self._answered(message, version, listener)
                return await _OlderRequest(self, message, version, listener, timeout).result()
        except TimeoutError:
            raise TimedOut(
                f"No answer to {message['method']} within {limit:g} s (limit request_s)"
            ) from None

    async def _answered(self, message: Json, version: str, listener: Listener) -> Json:
        response = await self._post(message, version, listener)
        try:
            if _is_stream(response):
                return await self._stream_result(response, message["id"], listener)
            return await self._json_result(response, message["id"])
        finally:
            await response.close()

    async def _post(self, message: Json, version: str, listener: Listener) -> HttpResponse:
        body = encode(message)
        headers = [_ACCEPT, _JSON, _IDENTITY, *self._mirrored(message, version, listener)]
        if self._observer is not None:
            self._observer("sent", message, None)
        return await self._send("POST", headers, body)

    async def _get(self, last_id: str | None) -> HttpResponse:
        headers = [("Accept", "text/event-stream"), _IDENTITY]
        if last_id is not None:
            headers.append(("Last-Event-ID", last_id))
        response = await self._send("GET", self._older_headers(headers), None)
        if not _is_stream(response):
            await response.close()
            raise HttpRefused(
                response.status,
                f"The server offers no stream: it answered GET with {response.status}",
            )
        return response

    async def _send(
        self, method: str, headers: Sequence[tuple[str, str]], body: bytes | None
    ) -> HttpResponse:
        url = self.url
        attempts = redirects = 0
        while True:
            request = HttpRequest(method, url, await self._own_headers(method, headers), body)
            try:
                response = await self.transport.send(request)
            except ValueError as error:
                raise ClientError(f"The request cannot be sent: {error}") from None
            if response.status in (401, 403):
                attempts += 1
                await self._refused(response, attempts)
            elif response.status in _REDIRECTS:
                redirects += 1
                await response.close()
                url = self._redirected(response, url, redirects)
            else:
                return response

    async def _own_headers(
        self, method: str, headers: Sequence[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        own = [*headers, *self._headers]
        if self._auth is not None:
            own += await self._auth.headers(method, self.url)
        return own

    async def _refused(self, response: HttpResponse, attempt: int) -> None:
        """Return if the request is to be sent again."""
        await response.close()
        challenge = response.headers.get("www-authenticate", "")
        if self._auth is not None and attempt < _MAX_AUTH_ATTEMPTS:
            nonce = response.headers.get("dpop-nonce")
            refusal = Refusal(
                response.status, challenge, nonce, attempt, self.url, self.transport, self.limits
            )
            if await self._auth.renew(refusal):
                return
        if response.status == 403:
            raise AuthorizationFailed(
                403, "The server refuses access (403): the credentials do not allow this"
            )
        given = (
            "does not take the credentials"
            if self._auth is not None
            else "wants credentials: give them as auth="
        )
        raise AuthorizationFailed(401, f"The server {given} (401)")

    def _redirected(self, response: HttpResponse, url: Url, redirects: int) -> Url:
        """Where to go on: only within the server, and only if the request stays what it is."""
        location = response.headers.get("location", "")
        target = (
            f"{url.scheme}://{url.authority}{location}" if location.startswith("/") else location
        )
        try:
            aim = Url.parse(target)
        except ClientError:
            aim = None
        if aim is None or aim.origin != url.origin or response.status not in (307, 308):
            where = (
                ""
                if aim is None or aim.origin == url.origin
                else f" to {aim.scheme}://{aim.authority}"
            )
            raise HttpRefused(
                response.status,
                f"The server redirects{where} ({response.status}), which is not followed: use the final URL",
            )
        if redirects > _MAX_REDIRECTS:
            raise HttpRefused(response.status, "The server redirects in a circle")
        return aim

    def _mirrored(self, message: Json, version: str, listener: Listener) -> list[tuple[str, str]]:
        if not is_modern(version):
            return self._older_headers([])
        return [*of_request(message["method"], message["params"], version), *listener.headers]

    def _older_headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        if self.version is not None:
            headers.append(("MCP-Protocol-Version", self.version))
        if self.session_id is not None:
            headers.append(("Mcp-Session-Id", self.session_id))
        return headers

    # -- answers ----------------------------------------------------------------------------------------------------

    async def _json_result(self, response: HttpResponse, request_id: Any) -> Json:
        status = response.status
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if (
            "content-encoding" in response.headers
            and response.headers["content-encoding"].lower() != "identity"
        ):
            raise BadAnswer(
                "The server compressed its answer, although the client takes none that is compressed"
            )
        if media_type != "application/json":
            if status == 404 and self.session_id is not None:
                raise SessionOver
            if status in _PATIENT_STATUSES:
                raise _later(status, response.headers.get("retry-after", ""))
            if not 200 <= status < 300:
                raise HttpRefused(
                    status, f"The server answered with HTTP status {status} and no JSON-RPC message"
                )
            raise BadAnswer(
                f"The server answered with {media_type or 'no content'} instead of JSON or an event stream"
            )
        body = await read_body(response, self.limits.max_message)
        try:
            message = self._decoded(body, status)
        except BadAnswer:
            if not 200 <= status < 300:
                raise HttpRefused(
                    status, f"The server answered with HTTP status {status} and no JSON-RPC message"
                ) from None
            raise
        if status == 404 and self.session_id is not None:
            raise SessionOver
        if (
            message is None
            or "method" in message
            or not ("result" in message or "error" in message)
        ):
            if status in _PATIENT_STATUSES:
                raise _later(status, response.headers.get("retry-after", ""))
            if not 200 <= status < 300:
                raise HttpRefused(
                    status, f"The server answered with HTTP status {status} and no JSON-RPC message"
                )
            raise BadAnswer("The server answered with JSON that is no JSON-RPC response")
        return self._result_of(message, request_id)

    async def _stream_result(
        self, response: HttpResponse, request_id: Any, listener: Listener
    ) -> Json:
        async with aclosing(self._events(response)) as events:
            async for event in events:
                message = self._decoded(event.data)
                if message is None:
                    continue
                if "method" not in message:
                    return self._result_of(message, request_id)
                if "id" in message:
                    raise BadAnswer(
                        "The server sent a request on the stream of a request, which this revision forbids"
                    )
                await self.heard(message, listener)
        raise ConnectionLost("The stream of the request ended before its answer", was_sent=True)

    async def _events(self, response: HttpResponse) -> AsyncGenerator[ServerEvent, None]:
        reader = EventReader(self.limits.max_message)
        async with aclosing(response.chunks()) as chunks:
            async for data in chunks:
                for event in reader.feed(data):
                    yield event

    def _decoded(self, data: bytes, status: int | None = None) -> Json | None:
        if not data.strip():
            return None
        try:
            message = decode(data)
        except ParseError as error:
            raise BadAnswer(f"The server sent something that is no JSON: {error}") from None
        if not isinstance(message, dict):
            raise BadAnswer("The server sent JSON that is no JSON-RPC message")
        if self._observer is not None:
            self._observer("received", message, status)
        return message

    def _result_of(self, message: Json, request_id: Any) -> Json:
        answered = message.get("id")
        if "error" in message and (answered is None or answered == request_id):
            raise rpc_error(message["error"])
        if answered != request_id or isinstance(answered, bool):
            raise BadAnswer("The server answered with the id of another request")
        result = message.get("result")
        if not isinstance(result, dict):
            raise BadAnswer("The server answered with a result that is no object")
        return result

    async def heard(self, message: Json, listener: Listener) -> None:
        """Hand a notification on."""
        params = message.get("params", {})
        if listener.on_notification is not None and isinstance(params, dict):
            done = listener.on_notification(str(message["method"]), params)
            if inspect.isawaitable(done):
                await done

    async def answer(self, request_id: Any, answer: Json) -> None:
        """POST the answer to a request of an older server."""
        assert self.version is not None
        response = await self._post(
            {"jsonrpc": "2.0", "id": request_id, **answer}, self.version, _DEAF
        )
        try:
            if not 200 <= response.status < 300:
                raise HttpRefused(
                    response.status,
                    f"The server refused an answer with HTTP status {response.status}",
                )
        finally:
            await response.close()


def _later(status: int, retry_after: str) -> TryLater:
    asked = int(retry_after) if retry_after.isdigit() and len(retry_after) < 6 else 1
    return TryLater(status, min(asked, _LONGEST_RETRY_AFTER_S))


def _is_stream(response: HttpResponse) -> bool:
    media_type = response.headers.get("content-type", "")
    return (
        response.status == 200
        and media_type.partition(";")[0].strip().lower() == "text/event-stream"
    )


class _OlderRequest:
    """A request of a revision in which servers ask on streams, its own or the session's, and streams can be resumed.

    While a question is open nobody counts the time: it is a person who thinks.
    """

    def __init__(
        self,
        link: Link,
        message: Json,
        version: str,
        listener: Listener,
        time_limit: asyncio.Timeout,
    ) -> None:
        self._link = link
        self._message = message
        self._id = message["id"]
        self._version = version
        self._listener = listener
        self._timeout = time_limit
        self._answering: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_id: str | None = None
        self._retry_ms = 1_000
        self._thinking = 0
        self._left_s = 0.0

    async def result(self) -> Json:
        exchange = asyncio.ensure_future(self._exchange())
        self._link.under_way.append(self)
        try:
            waited: set[asyncio.Future[Any]] = {exchange, self._failure}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return await exchange
        finally:
            self._link.under_way.remove(self)
            for task in (exchange, *self._answering):
                task.cancel()
            await asyncio.gather(exchange, *self._answering, return_exceptions=True)
            self._failure.cancel()

    async def _exchange(self) -> Json:
        response = await self._link._post(self._message, self._version, self._listener)
        try:
            if _is_stream(response):
                result = await self._read(response)
            else:
                result = await self._link._json_result(response, self._id)
        finally:
            await response.close()
        if self._message["method"] == "initialize":
            self._link.session_id = response.headers.get("mcp-session-id")
        return result

    async def _read(self, response: HttpResponse) -> Json:
        events = self._link._events(response)
        silent = 0
        while True:
            got_something = False
            try:
                async with aclosing(events):
                    async for event in events:
                        got_something = True
                        if (result := await self._take(event)) is not None:
                            return result
            except ConnectionLost:
                if self._last_id is None:
                    raise
            if self._last_id is None:
                raise ConnectionLost(
                    "The stream of the request ended before its answer", was_sent=True
                )
            silent = 0 if got_something else silent + 1
            if silent > _RETRIES:
                raise ConnectionLost(
                    "The stream of the request ended, and does not go on", was_sent=True
                )
            # To the millisecond: servers count what comes before their time as an error.
            await asyncio.sleep(min(self._retry_ms, 60_000) / 1_000)
            events = self._link.legacy_stream(self._last_id)

    async def _take(self, event: ServerEvent) -> Json | None:
        self._last_id = event.id or self._last_id
        self._retry_ms = self._retry_ms if event.retry_ms is None else event.retry_ms
        message = self._link.decoded(event)
        if message is None:
            return None
        if "method" not in message:
            if message.get("id") not in (self._id, None):
                return None  # a resumed stream may hold what belongs to another
            return self._link._result_of(message, self._id)
        if "id" not in message:
            await self._link.heard(message, self._listener)
            return None
        self.asked(message)
        return None

    def asked(self, message: Json) -> None:
        """Answer a request of the server, beside what else happens."""
        if len(self._answering) >= _MAX_ANSWERING:
            raise BadAnswer(f"The server asks more than {_MAX_ANSWERING} questions at once")
        task = asyncio.create_task(self._answer(message))
        self._answering.add(task)
        task.add_done_callback(self._answered)

    async def _answer(self, message: Json) -> None:
        params = message.get("params", {})
        if self._listener.on_request is None or not isinstance(params, dict):
            answer: Mapping[str, Any] = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            with self._clock_stopped():
                answer = await self._listener.on_request(
                    message["id"], str(message["method"]), params
                )
        await self._link.answer(message["id"], dict(answer))

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        now = asyncio.get_running_loop().time
        if self._thinking == 0:
            self._left_s = max(0.0, (self._timeout.when() or now()) - now())
            self._timeout.reschedule(None)
        self._thinking += 1
        try:
            yield
        finally:
            self._thinking -= 1
            if self._thinking == 0:
                self._timeout.reschedule(now() + self._left_s)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if task.cancelled() or self._failure.done():
            return
        if (error := task.exception()) is not None:
            self._failure.set_exception(error)
