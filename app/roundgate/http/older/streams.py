"""The streams of sessions: of a request, for messages before its response, and of a GET, for changes.

notification, question, …                       the first of them opens the stream of a request
id: <token>.0                                   comes before everything else if the stream can be resumed
data:

"Disconnection SHOULD NOT be interpreted as the client cancelling its request" (basic/transports, of
each revision with sessions). A running handler continues to the end of its round, and a client that
resumes the call gets that end from its task. A call that only waits for an answer ends: the request
that resumes it waits instead.

    POST tools/call ─▶ handler runs ─── client hangs up ───▶ continues ─▶ the end of the round
                       waits for an answer ── hangs up ──▶ ends
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from msgspec import Struct
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.http.exchange import DisconnectWatch, Responder, State, sse_event, sse_event_with_id
from roundgate.http.older.sessions import SessionCaller, Sessions
from roundgate.methods import Changes, OpenSubscription
from roundgate.methods.parts import CurrentMethods
from roundgate.observability.tracing import Tracing
from roundgate.protocol import (
    LOG_LEVELS,
    RESOURCE_UPDATED,
    SubscriptionFilter,
    jsonrpc,
    notifications,
)
from roundgate.storage import TaskRef
from roundgate.tasks.hidden import HiddenTasks, Looks
from roundgate.tokens.ids import StreamIds

RETRY_MS: Final = 500
"""Milliseconds that a client waits before it resumes a stream that has ended."""
AWAY_RETRY_MS: Final = 2_000
"""Milliseconds that a client waits before it resumes a stream, while the store is unavailable."""

LOOK_S: Final = 5.0
"""Seconds between two reads of the session's subscriptions."""
_LISTS: Final = SubscriptionFilter(
    tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
)

Token: TypeAlias = Callable[[], Awaitable[str]]
"""A function that makes the id of an event with which a stream's request can be resumed."""


class UnheardWatch(DisconnectWatch):
    """A context manager that cancels the current task when the client hangs up, except inside `with
    watch.working():`.

    The context of `room` counts calls that run without their client, and raises `Unavailable` if
    there are too many. The call is then cancelled, because without its connection nothing else
    limits it.
    """

    def __init__(
        self,
        receive: Receive,
        responder: Responder,
        keep_alive_s: float | None,
        room: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(receive, responder, keep_alive_s)
        self._room = room
        self._place: AbstractContextManager[None] | None = None
        self._working = 0

    def hang_up(self) -> None:
        """Cancel the block of a client that has hung up or does not read; let counted work in it
        finish."""
        self.disconnected = True
        if not (self._working and self._has_place()):
            self.cancel()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let the work in the block finish, even if the client hangs up. Several tasks may enter the
        block at once. After the last one, cancel the watched task if it only waits."""
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1
            is_last = self._place is not None and not self._working
            if is_last and asyncio.current_task() is not self._watched:
                self.cancel()

    def _has_place(self) -> bool:
        if self._place is None:
            place = self._room()
            try:
                place.__enter__()
            except Unavailable:
                return False
            self._place = place
        return True

    def __exit__(self, *error: Any) -> bool:
        if self._place is not None:
            self._place.__exit__(None, None, None)
        return super().__exit__(*error)


@dataclass(eq=False)
class RequestStream:
    """The stream of one request. Several handlers may write at once."""

    responder: Responder
    watch: UnheardWatch
    """The watch for a client that hangs up."""
    can_tell: bool
    """Whether the client accepts a stream."""
    holds: bool
    """Whether the platform can keep a stream open while a user thinks."""
    resumes: bool
    """Whether the client resumes a stream that ended."""
    last_event_id: str | None = None
    """The id of the last event that the client has; first the id with which it has just resumed."""
    token: Token | None = None
    """The maker of the first event's id, if the stream can be resumed before any question."""

    def __post_init__(self) -> None:
        self.is_resumed = self.last_event_id is not None

    @property
    def is_finite(self) -> bool:
        """Return whether later results need another call, because the client gets nothing after the
        response."""
        return not self.holds and not self.resumes

    @property
    def is_over(self) -> bool:
        """Return whether the response has ended."""
        return self.responder.state is State.DONE

    @property
    def is_unheard(self) -> bool:
        """Return whether the client has hung up."""
        return self.watch.disconnected

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, unless the response has been sent."""
        try:
            await self._write(sse_event(jsonrpc.notification(method, params)))
        except ClientDisconnect:
            if self.responder.watch is not None:
                self.responder.watch.hang_up()

    async def message(self, message: bytes, event_id: str | None = None) -> None:
        """Send one message, with the id with which any replica can continue after it, if any can.

        Raises:
            ClientDisconnect: the client does not read.
        """
        if event_id is None:
            await self._write(sse_event(message))
        else:
            retry_ms = RETRY_MS if self.resumes else None
            await self._write(sse_event_with_id(message, event_id, retry_ms))
            self.last_event_id = event_id

    async def leave(self, event_id: str) -> None:
        """End the stream; the client resumes it with `event_id`. Raise ClientDisconnect as
        `message` does."""
        await self.message(b"", event_id)
        await self.responder.end()

    async def come_again(self) -> None:
        """End the stream; the client resumes it with its last id, after a longer pause. Raise
        ClientDisconnect as `message` does."""
        assert self.last_event_id is not None
        await self._write(sse_event_with_id(b"", self.last_event_id, AWAY_RETRY_MS))
        await self.responder.end()

    async def _write(self, event: bytes) -> None:
        async with self.responder.lock:
            if self.is_over:
                return
            if self.resumes and self.token is not None:
                token, self.token = self.token, None
                event = await self._with_id_before(token) + event
            await self.responder.raw(event)

    async def _with_id_before(self, token: Token) -> bytes:
        """Return the first event of a stream that can be resumed: an id without data."""
        try:
            self.last_event_id = await token()
        except Unavailable:  # the call continues without this id; questions have their own ids
            return b""
        return sse_event_with_id(b"", self.last_event_id, RETRY_MS)


@dataclass(eq=False)
class Followers:
    """The requests of this process that wait for a change of a hidden task, or run without their
    client."""

    looks: Callable[[TaskRef], AbstractContextManager[Looks]]
    """Returns the pauses between reads of a task (`HiddenTasks.looks`)."""
    max_open: int
    """The limit on such requests at once."""
    max_per_caller: int
    """The limit on such requests of one caller."""
    is_closing: bool = False
    """Whether the server is shutting down."""
    _waiting: set[asyncio.Event] = field(default_factory=set)
    _of_caller: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def open(self) -> int:
        """The number of waiting requests."""
        return self._of_caller.total()

    def close(self) -> None:
        """Make every request stop waiting, now and later."""
        self.is_closing = True
        for news in self._waiting:
            news.set()

    def check_room(self, owner: Principal) -> None:
        """Raise Unavailable unless another request of the caller may wait."""
        if self.open >= self.max_open or self._of_caller[owner.identity] >= self.max_per_caller:
            raise Unavailable(
                "Too many calls wait for answers (http.max_streams, http.max_streams_per_caller);"
                " answer their questions, or cancel them, first"
            )

    @contextmanager
    def room(self, owner: Principal) -> Iterator[None]:
        """Count a request within the block; raise Unavailable as `check_room` does."""
        self.check_room(owner)
        self._of_caller[owner.identity] += 1
        try:
            yield
        finally:
            self._of_caller[owner.identity] -= 1
            if not self._of_caller[owner.identity]:
                del self._of_caller[owner.identity]

    @contextmanager
    def following(self, ref: TaskRef, owner: Principal) -> Iterator[Looks]:
        """Count a request within the block, and yield the pauses between its reads of the task. Raise
        Unavailable as `room` does."""
        with self.room(owner), self.looks(ref) as looks:
            self._waiting.add(looks.news)
            try:
                yield looks
            finally:
                self._waiting.discard(looks.news)


@dataclass(eq=False)
class Notices:
    """Sends notifications. The session's log level is read before the first log message."""

    stream: RequestStream
    sessions: Sessions
    caller: SessionCaller
    _least: int | None = None

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, unless it is a log message below the session's level."""
        if (
            method == notifications.MESSAGE
            and LOG_LEVELS.index(params["level"]) < await self._level()
        ):
            return
        await self.stream.notify(method, params)

    async def _level(self) -> int:
        if self._least is None:
            try:
                state = await self.sessions.state(self.caller.session, self.caller.principal)
            except Unavailable:
                return len(LOG_LEVELS)  # drop log messages rather than fail the call
            self._least = LOG_LEVELS.index(state.level)
        return self._least


class OlderParts(Struct, frozen=True):
    """The parts that serve the older clients of one view."""

    methods: Mapping[str, CurrentMethods]
    """The methods of each revision, by version."""
    sessions: Sessions
    changes: Changes
    """The changes of lists and resources, at all replicas."""
    tasks: HiddenTasks
    followers: Followers
    ids: StreamIds
    """The sealer of the ids of events and questions."""
    tracing: Tracing
    clock: Clock
    streams: bool
    """Whether the platform can keep a stream open."""
    keep_alive_s: float
    """Seconds between comments on a quiet stream, and before the first of a silent call."""
    max_batch_answer_bytes: int
    """The limit on the answers to one batch."""
    continue_tool: str
    """The name of the tool that accepts the token of an unfinished call."""
    view: str
    """The name of the view; empty for the endpoint of all tools."""


class ChangeStreams(Struct, frozen=True):
    """Sends changes to sessions."""

    parts: OlderParts

    async def tell(
        self, caller: SessionCaller, responder: Responder, features: frozenset[str]
    ) -> None:
        """Send changes of the served features until the client hangs up, its session ends, or its
        token expires.

        Raises:
            Unavailable: there are too many streams, or the store cannot be reached.
            SessionNotFound: the session has been ended.
            ClientDisconnect: the client does not read.
        """
        hub = self.parts.changes.hub
        await self.parts.changes.ready()
        subscription = hub.subscribe(0, caller.principal, _LISTS, features, view=self.parts.view)
        self.parts.changes.follow(subscription)
        subscription.learns = True
        try:
            await self._look(subscription, caller)
            await responder.event(None)
            await self._tell(subscription, caller, responder)
            await responder.end()
        finally:
            hub.unsubscribe(subscription)

    async def _tell(
        self, subscription: OpenSubscription, caller: SessionCaller, responder: Responder
    ) -> None:
        every_s = min(LOOK_S, self.parts.keep_alive_s)
        told_ms = looked_ms = self.parts.clock.monotonic_ms()
        async with aclosing(subscription.changes(every_s)) as changes:
            async for change in changes:
                now_ms = self.parts.clock.monotonic_ms()
                if change is not None:
                    await responder.event(_message(*change[0]))
                    told_ms = now_ms
                elif now_ms - told_ms >= self.parts.keep_alive_s * 1000:
                    await responder.event(None)
                    told_ms = now_ms
                # also while changes arrive without a pause
                if change is None or now_ms - looked_ms >= every_s * 1000:
                    await self._look(subscription, caller)
                    looked_ms = now_ms
                    if self._is_over(caller):
                        return

    async def _look(self, subscription: OpenSubscription, caller: SessionCaller) -> None:
        state = await self.parts.sessions.state(caller.session, caller.principal)
        lists = {topic for topic in subscription.topics if topic[1] is None}
        methods = self.parts.methods[caller.session.revision].now
        may_learn = [uri for uri in state.uris if methods.may_learn(uri, caller.principal)]
        uris = {(RESOURCE_UPDATED, uri) for uri in may_learn}
        subscription.listen_to(frozenset(lists | uris))

    def _is_over(self, caller: SessionCaller) -> bool:
        now_ms, until_s = self.parts.clock.now_ms(), caller.principal.expires_at_s
        return now_ms > caller.session.expires_ms or (
            until_s is not None and now_ms > until_s * 1000
        )


def _message(method: str, uri: str | None) -> bytes:
    return jsonrpc.notification(method, {} if uri is None else {"uri": uri})
