"""A request to a server of an older revision.

The server may ask on the request's stream or on the session's, and a stream that broke goes on
after the last event that came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from roundgate.client.events import ServerEvent
from roundgate.client.reading import is_stream, result_of
from roundgate.client.transport import HttpResponse
from roundgate.client.types import Json
from roundgate.errors import BadAnswer, ConnectionLost

if TYPE_CHECKING:
    from roundgate.client.link import Link, Listener

T = TypeVar("T")

_MAX_ANSWERING: Final = 32
_LONGEST_SESSION_ID: Final = 8_192
_MAX_SILENT: Final = 2
"""How many streams in a row may end without an event before the request is given up."""


class OlderRequest:
    """A request of a revision in which servers ask on streams, its own or the session's,
    and streams can be resumed.

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
        self._asked: set[str | int] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_id: str | None = None
        self._retry_ms = 1_000
        self._thinking = 0
        self._left_s: float | None = None

    async def result(self) -> Json:
        return await self._until_done(self._exchange(), self._link.under_way)

    async def through(self, work: Coroutine[Any, Any, T]) -> T:
        """Stand for all the requests of `work`, in which nothing is asked of this one alone."""
        return await self._until_done(work, self._link.session_stream.standing)

    async def _until_done(self, work: Coroutine[Any, Any, T], among: list[OlderRequest]) -> T:
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

    async def _exchange(self) -> Json:
        response = await self._link.post(self._message, self._version, self._listener)
        try:
            if is_stream(response):
                result = await self._read(response)
            else:
                result = await self._link.json_result(response, self._id)
        finally:
            await response.close()
        if self._message["method"] == "initialize":
            self._link.session_id = _session_id(response)
        return result

    async def _read(self, response: HttpResponse) -> Json:
        events = self._link.reader.events(response)
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
            if silent > _MAX_SILENT:
                raise ConnectionLost(
                    "The stream of the request ended, and does not go on", was_sent=True
                )
            # To the millisecond: servers count what comes before their time as an error.
            await asyncio.sleep(min(self._retry_ms, 60_000) / 1_000)
            events = self._link.resumed_stream(self._last_id)

    async def _take(self, event: ServerEvent) -> Json | None:
        self._last_id = event.id or self._last_id
        self._retry_ms = self._retry_ms if event.retry_ms is None else event.retry_ms
        message = self._link.reader.message(event.data)
        if message is None:
            return None
        if "method" not in message:
            if message.get("id") not in (self._id, None):
                return None  # a resumed stream may hold what belongs to another
            return result_of(message, self._id)
        if "id" not in message:
            await self._listener.heard(message)
            return None
        self.asked(message)
        return None

    def asked(self, message: Json) -> None:
        """Answer a request of the server, beside what else happens; once, however often it is sent.

        What breaks the rules ends the request.
        """
        limits, request_id = self._link.limits, message["id"]
        if not isinstance(request_id, str | int) or isinstance(request_id, bool):
            self._fail(BadAnswer("The server sent a request whose id is neither text nor a number"))
            return
        if request_id in self._asked:
            return  # a stream that goes on after it broke may hold it again
        if len(self._answering) >= _MAX_ANSWERING:
            self._fail(BadAnswer(f"The server asks more than {_MAX_ANSWERING} questions at once"))
            return
        if len(self._asked) >= limits.max_questions * limits.max_rounds:
            self._fail(
                BadAnswer(f"The server asks more than {len(self._asked)} questions in a call")
            )
            return
        self._asked.add(request_id)
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
            limit = self._timeout.when()
            self._left_s = None if limit is None else max(0.0, limit - now())
            self._timeout.reschedule(None)
        self._thinking += 1
        try:
            yield
        finally:
            self._thinking -= 1
            if self._thinking == 0:
                self._timeout.reschedule(None if self._left_s is None else now() + self._left_s)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)


def _session_id(response: HttpResponse) -> str | None:
    """The session that has begun, `None` if the server keeps none.

    Raises:
        BadAnswer: its id cannot be sent back (2025-11-25, "Session Management": visible ASCII).
    """
    session_id = response.headers.get("mcp-session-id")
    if session_id is None:
        return None
    is_visible = session_id.isascii() and session_id.isprintable() and " " not in session_id
    if not session_id or not is_visible or len(session_id) > _LONGEST_SESSION_ID:
        raise BadAnswer("The server began a session whose id is no visible ASCII, or too long")
    return session_id
