"""What only older revisions have: the session's stream, requests whose server asks on streams, and
the tasks of 2025-11-25.

A server may ask on the stream of a request or on the session's, which not all servers have, and a
stream that broke resumes after the last event that arrived. Tasks are flows: the client asks for a
task, and fetches its result when it has ended.

    tools/call {…, "task": {}}   ──▶  {"task": {"taskId": …, "status": "working", "pollInterval": 1000, "ttl": …}}
    tasks/get {"taskId": …}      ──▶  {"taskId": …, "status": …}
    tasks/result {"taskId": …}   ──▶  the result of the call; until then, questions on its stream

The revision calls these tasks experimental (basic/utilities/tasks). Later revisions have others:
`flows.follow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from roundgate.client.events import ServerEvent
from roundgate.client.flows import Finished, Flow, Pause, Send, Show, poll_ms
from roundgate.client.limits import Limits
from roundgate.client.reading import is_stream, result_of
from roundgate.client.transport import HttpResponse
from roundgate.client.types import Json, ServerInfo, TaskState, Tool, member
from roundgate.errors import (
    BadAnswer,
    ClientError,
    ConnectionLost,
    RpcError,
    TaskEnded,
    TimedOut,
)

if TYPE_CHECKING:
    from roundgate.client.link import Link, Listener

T = TypeVar("T")

_SETTLE_S: Final = 1.0
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 30.0
_MAX_ANSWERING: Final = 32
_LONGEST_SESSION_ID: Final = 8_192
_MAX_SILENT: Final = 2
"""How many streams in a row may end without an event before the request is given up."""


class SessionStream:
    """Reads that stream from when it is opened until it is closed, and opens
    it again when it breaks."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reading: asyncio.Task[None] | None = None
        self.taps: set[asyncio.Queue[Json]] = set()
        """Where notifications go; a queue that is full misses some."""
        self.standing: list[OlderRequest] = []
        """Who is asked before any single request: calls that take several, oldest first."""

    @property
    def is_open(self) -> bool:
        """Whether it is being read, or about to be again."""
        return self._reading is not None and not self._reading.done()

    async def open(self) -> None:
        """Begin to read it.

        What a server asks there before the stream is open may be lost, so the first call
        waits for it, for a moment: some servers send nothing, not even a head, before
        they have something to say.
        """
        is_settled = asyncio.Event()
        self._reading = asyncio.create_task(self._read(is_settled))
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await is_settled.wait()

    async def close(self) -> None:
        """Stop reading it."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def _read(self, is_settled: asyncio.Event) -> None:
        last_id: str | None = None
        wait = _FIRST_WAIT_S
        while True:
            try:
                async with aclosing(self._link.resumed_stream(last_id, is_settled)) as events:
                    async for event in events:
                        wait = _FIRST_WAIT_S
                        last_id = event.id or last_id
                        await self._take(self._link.reader.message(event.data))
            except (ConnectionLost, TimedOut):
                pass
            except ClientError:
                return
            finally:
                is_settled.set()
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    async def _take(self, message: Json | None) -> None:
        if message is None or "method" not in message:
            return
        if "id" in message:
            if asked := self.standing or self._link.under_way:
                asked[-1].asked(message)
            else:
                is_ping = message["method"] == "ping"
                no = {"error": {"code": -32601, "message": "Nobody is here to answer"}}
                await self._link.answer(message["id"], {"result": {}} if is_ping else no)
            return
        for tap in self.taps:
            if not tap.full():
                tap.put_nowait(message)


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


def has_older_tasks(server: ServerInfo) -> bool:
    """Whether a server takes calls of tools as such tasks."""
    found: object = server.capabilities
    for name in ("tasks", "requests", "tools", "call"):
        found = found.get(name) if isinstance(found, dict) else None
    return not server.is_modern and isinstance(found, dict)


def wants_older_task(tool: Tool | None, *, detach: bool) -> bool:
    """Whether a tool is called as a task: where it has to be, and where it may be and
    the caller will not wait."""
    execution = tool.raw.get("execution") if tool is not None else None
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    return support == "required" or (support == "optional" and detach)


def read_older_task(raw: Json, task_id: str | None = None) -> TaskState:
    """From `task` of the created, or from `tasks/get`; times under the names of later revisions.

    Raises:
        BadAnswer: it is no task, or another than `task_id`.
    """
    renamed = {"pollIntervalMs": raw.get("pollInterval"), "ttlMs": raw.get("ttl")}
    kept = {key: value for key, value in raw.items() if key not in ("result", "error")}
    return TaskState.read({**kept, **renamed, "inputRequests": None}, task_id)


def call_as_older_task(params: Json, limits: Limits, *, detach: bool) -> Flow[Finished]:
    """A call as a task, and through it to its end; with `detach` it is
    handed over as it was created.

    Raises:
        TaskEnded, BadAnswer, and what is thrown in.
    """
    created: Json = yield Send("tools/call", {**params, "task": {}}, False)
    task = read_older_task(member(created, "task", dict, "a task that was created"))
    if detach:
        return Finished({}, 1, task)
    done = yield from follow_older(task.task_id, limits, task)
    return Finished(done, 1, task)


def follow_older(task_id: str, limits: Limits, known: TaskState | None = None) -> Flow[Json]:
    """A task to its end. Returns the result of the call that it came from.

    Raises:
        TaskEnded: it failed or was cancelled.
        BadAnswer, and what is thrown in.
    """
    about = {"taskId": task_id}
    task = known or read_older_task((yield Send("tasks/get", about, True)), task_id)
    while True:
        yield Show(task)
        if task.status == "cancelled":
            said = f": {task.message}" if task.message else ""
            raise TaskEnded("cancelled", f"The task was cancelled{said}")
        # What it asks comes on the stream of whoever waits for the result.
        if task.is_over or task.status == "input_required":
            break
        yield Pause(poll_ms(task, limits))
        task = read_older_task((yield Send("tasks/get", about, True)), task_id)
    try:
        result: Json = yield Send("tasks/result", about, True)
    except RpcError as error:
        if task.status != "failed":
            raise
        raise TaskEnded("failed", f"The task failed: {error}", error) from None
    return result
