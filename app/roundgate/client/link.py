"""One server, reached over Streamable HTTP: JSON-RPC requests out, results and
notifications in, in either era.

Knows how a request looks in each revision, what is sent again when it is lost, and the session of
an older server. Does not know what a request is for: that is `flows`, and `connection` puts the two
together. `sender` does the HTTP around one request, `reading` makes messages of what comes,
`older` does what only older revisions have.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeVar

from roundgate.client import requests
from roundgate.client.auth import Auth
from roundgate.client.events import ServerEvent
from roundgate.client.limits import Limits
from roundgate.client.older import OlderRequest, SessionStream
from roundgate.client.reading import Observer, Reader, is_stream, result_of
from roundgate.client.requests import of_request
from roundgate.client.sender import Sender, reason_of
from roundgate.client.transport import HttpResponse, Transport, Url
from roundgate.client.types import Json, is_modern
from roundgate.errors import (
    BadAnswer,
    ClientError,
    ConnectionLost,
    HttpRefused,
    TimedOut,
    TryLater,
)
from roundgate.json import encode

T = TypeVar("T")

_IDENTITY: Final = ("Accept-Encoding", "identity")
_RETRIES: Final = 2


@dataclass(frozen=True, slots=True)
class Listener:
    """What a request wants to hear while it runs. `on_request` answers what an older
    server asks on its stream."""

    on_notification: Callable[[str, Json], Any] | None = None
    on_request: Callable[[Any, str, Json], Awaitable[Json]] | None = None
    meta: Json | None = None
    """Goes into `_meta` beside what every request has: a progress token, a log level, a trace."""
    headers: Sequence[tuple[str, str]] = ()

    async def heard(self, message: Json) -> None:
        """Hand a notification on."""
        params = message.get("params", {})
        if self.on_notification is not None and isinstance(params, dict):
            done = self.on_notification(str(message["method"]), params)
            if inspect.isawaitable(done):
                await done


NO_LISTENER: Final = Listener()


class Link:
    """How one client reaches one server."""

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
        """Nothing is sent yet.

        Args:
            url: the server's endpoint.
            transport: what carries the bytes; closed by whoever made it.
            info: `clientInfo` of each request.
            capabilities: `clientCapabilities` of each request.
            limits: of time and size.
            auth: adds credentials to each request.
            headers: those of the user, with each request.
            observer: sees each message.
        """
        self.transport = transport
        self.limits = limits
        self.version: str | None = None
        """The revision that is spoken, `None` until it is negotiated."""
        self.session_id: str | None = None
        self.reader = Reader(limits, observer)
        self.session_stream = SessionStream(self)
        self.under_way: list[OlderRequest] = []
        """Requests to an older server, oldest first: what it asks on the session's stream is
        asked for the last one."""
        self._sender = Sender(url, transport, limits, auth=auth, headers=headers)
        self._info = info
        self._capabilities = capabilities
        self._observer = observer
        self._ids = count(1)
        self._metas: dict[str, Json] = {}

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

        A lost one is sent again, with a new id and the same params, if the server cannot have
        got it, or if `may_repeat`.

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
        await self._deliver(message, version, method)

    async def _deliver(self, message: Json, version: str, what: str) -> None:
        """Send what has no answer but a status."""
        async with self._in_time(what):
            response = await self.post(message, version, NO_LISTENER)
            is_taken = 200 <= response.status < 300
            reason = "" if is_taken else await reason_of(response, self._sender.sent)
            await response.close()
        if not is_taken:
            raise HttpRefused(
                response.status,
                f"The server refused {what} with HTTP status {response.status}{reason}",
            )

    async def stream(
        self, method: str, params: Json, listener: Listener = NO_LISTENER
    ) -> AsyncGenerator[Json, None]:
        """Send a request whose answer is a stream: each message on it, the
        response included if it comes."""
        assert self.version is not None
        message = self._message(method, params, self.version, listener)
        response = await self.post(message, self.version, listener)
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
        self, last_id: str | None = None, is_open: asyncio.Event | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """A stream of an older server that is asked for by GET.

        Args:
            last_id: of the last event that came of a stream, which then goes on; `None`
                for the session's stream.
            is_open: set once the server has begun to answer.
        """
        response = await self._get(last_id)
        if is_open is not None:
            is_open.set()
        try:
            async with aclosing(self.reader.events(response)) as events:
                async for event in events:
                    yield event
        finally:
            await response.close()

    async def answer(self, request_id: Any, answer: Json) -> None:
        """POST the answer to a request of an older server."""
        assert self.version is not None
        message: Json = {"jsonrpc": "2.0", "id": request_id, **answer}
        await self._deliver(message, self.version, "an answer")

    async def through(self, work: Coroutine[Any, Any, T], listener: Listener) -> T:
        """Do something that takes several requests, with what an older server asks
        meanwhile on the session's stream.

        Args:
            work: sends the requests, and rests between them.
            listener: answers.
        """
        assert self.version is not None
        nothing: Json = {"id": None, "method": ""}
        async with asyncio.timeout(None) as timeout:
            return await OlderRequest(self, nothing, self.version, listener, timeout).through(work)

    async def end_session(self) -> None:
        """Tell an older server that its session is over; what it answers does not matter."""
        await self.session_stream.close()
        if self.session_id is None:
            return
        try:
            async with asyncio.timeout(self.limits.connect_s):
                response = await self._sender.send_once(
                    "DELETE", self._older_headers([requests.ACCEPT_BOTH])
                )
                await response.close()
        except (ClientError, TimeoutError):
            pass
        self.session_id = None

    # -- one request -------------------------------------------------------------------------------

    def _message(self, method: str, params: Json, version: str, listener: Listener) -> Json:
        request_id = next(self._ids)
        if is_modern(version):
            meta = self._meta(version, params.get("_meta"), listener)
            return requests.message(method, params, request_id, meta)
        message: Json = {"jsonrpc": "2.0", "id": request_id, "method": method}
        older = {
            key: value
            for key, value in (listener.meta or {}).items()
            if not key.startswith(requests.META)
        }
        if older:
            message["params"] = {**params, "_meta": {**params.get("_meta", {}), **older}}
        elif params:
            message["params"] = params
        return message

    def _meta(self, version: str, own: Json | None, listener: Listener) -> Json:
        meta = self._metas.get(version)
        if meta is None:
            meta = requests.envelope(version, self._info, self._capabilities)
            self._metas[version] = meta
        if listener.meta or own:
            return {**(own or {}), **(listener.meta or {}), **meta}
        return meta

    async def _within_time(self, message: Json, version: str, listener: Listener) -> Json:
        async with self._in_time(message["method"]) as timeout:
            if is_modern(version):
                return await self._answered(message, version, listener)
            return await OlderRequest(self, message, version, listener, timeout).result()

    @asynccontextmanager
    async def _in_time(self, what: str) -> AsyncGenerator[asyncio.Timeout, None]:
        limit = self.limits.request_s
        try:
            async with asyncio.timeout(limit) as timeout:
                yield timeout
        except TimeoutError:
            raise TimedOut(f"No answer to {what} within {limit:g} s (limit request_s)") from None

    async def _answered(self, message: Json, version: str, listener: Listener) -> Json:
        response = await self.post(message, version, listener)
        try:
            if is_stream(response):
                return await self._stream_result(response, message["id"], listener)
            return await self.json_result(response, message["id"])
        finally:
            await response.close()

    async def post(self, message: Json, version: str, listener: Listener) -> HttpResponse:
        """POST a message, with the headers of its revision; whoever calls this closes the response.

        Args:
            message: a request, a notification or an answer.
            version: the revision that it is written in.
            listener: whose headers go with it.
        """
        body = encode(message)
        headers = [
            requests.ACCEPT_BOTH,
            requests.SENDS_JSON,
            _IDENTITY,
            *self._mirrored(message, version, listener),
        ]
        if self._observer is not None:
            self._observer("sent", message, None)
        return await self._sender.send("POST", headers, body)

    async def _get(self, last_id: str | None) -> HttpResponse:
        headers = [("Accept", "text/event-stream"), _IDENTITY]
        if last_id is not None:
            # in UTF-8, as browsers send it (WHATWG HTML, "Server-sent events")
            headers.append(("Last-Event-ID", last_id.encode("utf-8", "replace").decode("latin-1")))
        response = await self._sender.send("GET", self._older_headers(headers), None)
        if not is_stream(response):
            await response.close()
            raise HttpRefused(
                response.status,
                f"The server offers no stream: it answered GET with {response.status}",
            )
        return response

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

    # -- its answer --------------------------------------------------------------------------------

    async def json_result(self, response: HttpResponse, request_id: Any) -> Json:
        """The result in a response that is one JSON object, as `Reader.json_result`."""
        in_session = self.session_id is not None
        return await self.reader.json_result(
            response, request_id, in_session=in_session, sent=self._sender.sent
        )

    async def _stream_result(
        self, response: HttpResponse, request_id: Any, listener: Listener
    ) -> Json:
        async with aclosing(self.reader.events(response)) as events:
            async for event in events:
                message = self.reader.message(event.data)
                if message is None:
                    continue
                if "method" not in message:
                    return result_of(message, request_id)
                if "id" in message:
                    raise BadAnswer(
                        "The server sent a request on the stream of a request, which this revision "
                        "forbids"
                    )
                await listener.heard(message)
        raise ConnectionLost("The stream of the request ended before its answer", was_sent=True)
