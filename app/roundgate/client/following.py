"""Tasks and streams of changes, which outlive a request.

The handle of a task is the server's URL followed by `#task=` and the task's id. It is not secret,
because using it requires the credentials of the caller who started the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final
from urllib.parse import quote, unquote

from msgspec import Struct

from roundgate.client import flows
from roundgate.client.connection import CallOptions, Connection, within
from roundgate.client.messages import TryLater
from roundgate.client.questions import AnswersLike, Question, response_to
from roundgate.client.types import CallResult, Json, ServerInfo, TaskState
from roundgate.errors import BadAnswer, ConnectionLost, HttpRefused, TimedOut, WrongHandle

_MARK: Final = "#task="


def handle_of(url: str, task_id: str) -> str:
    """Return the handle of a task, such as `https://host/mcp#task=786512e2`."""
    return f"{url}{_MARK}{quote(task_id, safe='')}"


def split_handle(handle: str) -> tuple[str, str]:
    """Return the URL of the server and the id of the task.

    Raises:
        WrongHandle: the handle is malformed.
    """
    url, mark, task_id = handle.partition(_MARK)
    if not mark or not task_id or not url.startswith(("http://", "https://")):
        raise WrongHandle("This is not a task handle: a handle looks like https://host/mcp#task=…")
    return url, unquote(task_id)


class Task:
    """A task that was started or resumed. If the call ended without a task, `is_over` is true and
    `id` is empty."""

    def __init__(
        self,
        connection: Connection,
        url: str,
        state: TaskState | None = None,
        *,
        task_id: str = "",
        result: CallResult | None = None,
        target: str = "",
    ) -> None:
        self._connection = connection
        self._url = url
        self._target = target
        self._result = result
        self.state = state
        """The last known state; `None` until a resumed task is polled."""
        self.id = task_id if state is None else state.task_id

    @property
    def handle(self) -> str | None:
        """The handle for `Client.resume` in any process; `None` if the call ended without a
        task."""
        return handle_of(self._url, self.id) if self.id else None

    @property
    def is_over(self) -> bool:
        return self._result is not None or (self.state is not None and self.state.is_over)

    async def wait(
        self,
        *,
        answers: AnswersLike = None,
        timeout_s: float | None = None,
        on_task: Callable[[TaskState], Any] | None = None,
    ) -> CallResult:
        """Wait for the task's end and return its result. Questions are answered from `answers`,
        then from the client's answers.

        Raises:
            TaskEnded: the task failed or was cancelled.
            Unanswered: a question has no answer. The task continues to wait.
            TimedOut: `timeout_s` seconds passed. The task continues.
        """
        if self._result is None:
            self._result = await self._follow(answers, timeout_s, on_task)
        return self._result

    async def _follow(
        self,
        answers: AnswersLike,
        timeout_s: float | None,
        on_task: Callable[[TaskState], Any] | None,
    ) -> CallResult:
        connection, limits = self._connection, self._connection.limits
        is_older = flows.has_older_tasks(await connection.connect())

        def seen(state: TaskState) -> Any:
            self.state = state
            return on_task(state) if on_task is not None else None

        # Do not start from a state with questions, because they may have been answered since.
        known = None if self.state and self.state.status == "input_required" else self.state
        listener = connection.listener(CallOptions(answers), self._target)
        if is_older:
            flow = flows.follow_older(self.id, limits, known)
            work = connection.drive(flow, listener, answers, seen)
            work = connection.link.through(work, listener)
        else:
            flow = flows.follow(self.id, limits, known, self._target)
            work = connection.drive(flow, listener, answers, seen)
        return CallResult.read(await within(work, timeout_s, "the task"), 1)

    async def get(self) -> TaskState:
        """Poll the task once and return its state."""
        result = await self._connection.request("tasks/get", {"taskId": self.id})
        server = await self._connection.connect()
        read = TaskState.read if server.is_modern else flows.read_older_task
        self.state = read(result, self.id)
        return self.state

    async def update(self, answers: Mapping[str, Any]) -> None:
        """Send answers by key, in forms that `response_to` accepts. Answers with unknown keys are
        sent unchanged.

        Raises:
            AnswerInvalid: an answer does not match its question.
        """
        state = self.state if self.state is not None and self.state.requests else await self.get()
        responses = {
            key: response_to(Question.read(key, state.requests[key], self._target), answer)
            if key in state.requests
            else answer
            for key, answer in answers.items()
        }
        params = {"taskId": self.id, "inputResponses": responses}
        await self._connection.request("tasks/update", params)

    async def cancel(self) -> None:
        """Ask the server to cancel the task. The server may refuse; use `wait` or `get` to learn
        how the task ended."""
        await self._connection.request("tasks/cancel", {"taskId": self.id})

    def __repr__(self) -> str:
        if self._result is not None:
            return f"Task({self.id!r}, completed)"
        return f"Task({self.id!r}, {self.state.status if self.state else 'not polled'})"


# -- changes ---------------------------------------------------------------------------------------

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 30.0
_MAX_WAITING: Final = 1_000
_LOOK_S: Final = 1.0


class Change(Struct, frozen=True):
    """One notification. `was_interrupted` is true if the stream broke before the notification, so
    changes may have been missed."""

    method: str
    params: Json
    was_interrupted: bool

    @property
    def task(self) -> TaskState | None:
        """The task in a `notifications/tasks`; `None` in other notifications."""
        return TaskState.read(self.params) if self.method == "notifications/tasks" else None


class Subscription:
    """A stream of changes, reopened when it breaks (basic/patterns/subscriptions). An older server
    reports changes on the session's stream, and each resource is subscribed to separately.

        async with client.listen(tools=True) as changes:
            async for change in changes:
                print(change.method, change.params)

    `acknowledged` holds the kinds of changes that the server agreed to report.
    """

    def __init__(
        self,
        connection: Connection,
        wanted: Json,
        *,
        on_reopened: Callable[[], None] | None = None,
    ) -> None:
        """Prepare a subscription; `on_reopened` is called when a broken stream is open again."""
        self._connection = connection
        self._link = connection.link
        self._wanted = wanted
        self._on_reopened = on_reopened
        self.acknowledged: Json = {}

    async def __aenter__(self) -> Subscription:
        server = await self._connection.connect()
        self._changes = self._modern() if server.is_modern else self._older()
        if server.is_modern:
            try:
                await self._acknowledgement()
            except BaseException:
                await self._changes.aclose()
                raise
        return self

    async def _acknowledgement(self) -> None:
        """Wait for the acknowledgement, the first message. Raise `TimedOut` after `request_s`
        seconds, or `BadAnswer` if a change arrives first."""
        limit = self._connection.limits.request_s
        try:
            async with asyncio.timeout(limit):
                first = await anext(self._changes, None)
        except TimeoutError:
            raise TimedOut(
                f"The server did not confirm the subscription within {limit:g} s (limit request_s)"
            ) from None
        if first is not None and first.method != _ACKNOWLEDGED:
            raise BadAnswer("The server sent a change before it confirmed the subscription")

    async def __aexit__(self, *raised: object) -> None:
        await self._changes.aclose()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Change:
        """Return the next change; the iteration ends when the server ends the subscription."""
        async for change in self._changes:
            if change.method != _ACKNOWLEDGED:
                self._connection.cache.take(change.method, change.params)
                return change
        raise StopAsyncIteration

    async def _modern(self) -> AsyncGenerator[Change, None]:
        wait_s = _FIRST_WAIT_S
        was_opened = was_interrupted = False
        params = {"notifications": self._wanted}
        while True:
            try:
                async with aclosing(self._link.stream("subscriptions/listen", params)) as messages:
                    async for message in messages:
                        if "method" not in message:
                            if "error" in message:
                                raise flows.rpc_error(message["error"])
                            return
                        change = self._change(message, was_interrupted)
                        if change.method == _ACKNOWLEDGED:
                            if not was_opened:
                                yield change
                            elif self._on_reopened is not None:
                                self._on_reopened()
                            was_opened, wait_s = True, _FIRST_WAIT_S
                        else:
                            was_interrupted = False
                            yield change
            except (ConnectionLost, TimedOut):
                if not was_opened:
                    raise
            except TryLater as error:  # for example from a proxy during a deployment
                if not was_opened:
                    raise HttpRefused(error.status, str(error)) from None
            if not was_opened:
                raise ConnectionLost(
                    "The stream of changes ended before the server confirmed the subscription",
                    was_sent=True,
                )
            was_interrupted = True
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def _change(self, message: Json, was_interrupted: bool) -> Change:
        params = message.get("params", {})
        if not isinstance(params, dict) or "id" in message:
            raise BadAnswer(
                "The server sent messages other than notifications on the stream of a subscription"
            )
        if message["method"] == _ACKNOWLEDGED:
            agreed = params.get("notifications")
            self.acknowledged = agreed if isinstance(agreed, dict) else {}
        return Change(str(message["method"]), params, was_interrupted)

    async def _older(self) -> AsyncGenerator[Change, None]:
        tap: asyncio.Queue[Json] = asyncio.Queue(_MAX_WAITING)
        stream = self._link.session_stream
        stream.taps.add(tap)
        try:
            server = await self._subscribe()
            was_interrupted = False
            self.acknowledged = {
                key: value for key, value in self._wanted.items() if key != "taskIds"
            }
            while stream.is_open:
                message = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        message = await tap.get()
                if self._connection.server is not server:  # another session, without subscriptions
                    server = await self._subscribe()
                    was_interrupted = True
                    if self._on_reopened is not None:
                        self._on_reopened()
                if message is not None:
                    yield self._change(message, was_interrupted)
                    was_interrupted = False
            raise HttpRefused(405, "The server has no stream that could report changes")
        finally:
            stream.taps.discard(tap)

    async def _subscribe(self) -> ServerInfo:
        """Subscribe to each resource in an older server's session; return the server's description,
        a different object for each session."""
        server = await self._connection.connect()
        for uri in self._wanted.get("resourceSubscriptions", ()):
            await self._connection.request("resources/subscribe", {"uri": uri})
        return server
