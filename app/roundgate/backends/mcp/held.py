"""Calls of older servers during which the server asks the user; any replica can take the answers.

A server of a revision before 2026-07-28 asks on the stream of the call, and sends the result on the
same stream. If the server keeps the events of its streams, the process that made the call leaves
the session, and the sealed state has the session, the last event and the ids of the questions:

    round 1, any process    tools/call ──▶ the server asks ──▶ outcome 0: questions and position
    round 2, any process    row a0: the answers ──▶ answers to the session, GET with Last-Event-ID ──▶ outcome 1

Otherwise the process that made the call, its holder, keeps the stream open:

    round 1, the holder     tools/call ──▶ the server asks ──▶ outcome 0: the questions, in the sealed state
    round 2, any process    row a0: the answers ──▶ the holder reads them, answers the server, sends heartbeats
                            row 1: outcome 1, the result or further questions ◀── the holder writes it

    rows of the caller, under the call's random id
    a0, a1 …   answers; the first insert counts, even if it records that the wait has expired
    1, 2 …     outcomes, so that a repeated round gets the same outcome
    beat       changes every `HEARTBEAT_S` seconds while the server works on answers to a holder

A call writes rows only after a question. If the holder dies, its heartbeats stop: the next round ends
with an error that says that the call may have taken effect, and the call is never repeated. The same
holds if the server has forgotten the session. A session belongs to one caller and has one call at a
time, because a question does not identify its call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, TypeAlias

from roundgate import json
from roundgate.auth import task_owner
from roundgate.backends.base import check_request
from roundgate.backends.mcp.server import has_ended
from roundgate.client.connection import Connection
from roundgate.client.link import Link, Position
from roundgate.client.messages import META, Listener
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    ClientError,
    HttpRefused,
    QuotaExceeded,
    RpcError,
    ToolError,
    Unavailable,
)
from roundgate.replay import Context, Raw, Rows, run_of

SETTLE_S: Final = 0.05
"""Seconds after a question in which further questions join its round."""
HEARTBEAT_S: Final = 2.0
"""Seconds between two heartbeats of a holder."""
LOST_MS: Final = 10_000
"""Milliseconds without a heartbeat after which a holder counts as dead."""
FIRST_POLL_S: Final = 0.1
LONGEST_POLL_S: Final = 1.0
"""The bounds on the seconds between two polls: for answers by the holder, for an outcome by a round."""
KEEP_MS: Final = 900_000
"""Milliseconds for which rows stay after the wait for answers, so that a round can be repeated."""
LONGEST_WORK_S: Final = 900.0
"""Seconds that a server may work on answers until its next question or result; the caller may have
left."""
SHED_MS: Final = 1_000
"""Milliseconds before the deadline of a round at which it ends without an outcome; a retry waits for
the outcome."""
CHUNK: Final = 250_000
"""The maximum number of bytes of an outcome in one row."""
MAX_CHUNKS: Final = 80
MAX_IDLE: Final = 32
"""The maximum number of idle sessions, which wait for the next call of their caller."""
IDLE_MS: Final = 60_000
"""Milliseconds after which an idle session expires; it is closed within the same time again."""
FORGOTTEN: Final = frozenset({400, 404})
"""HTTP statuses with which a server refuses a session or an event that it does not know."""
SHARE: Final = 5
"""The divisor that limits one caller to a share of the held calls of a process; at least one call."""

LOST: Final = (
    "The process that held this call at {server} has died, and the call's result is lost. The call may "
    "have taken effect; check before you repeat it"
)
STOPPED: Final = (
    "The process that held this call at {server} was stopped. The call may have taken effect; check "
    "before you repeat it"
)
FAILED: Final = (
    "The call at {server} failed in the gateway, for a reason that its log has. The call may have "
    "taken effect; check before you repeat it"
)
LATE: Final = (
    "The questions of {server} were answered too late: they were open for longer than held_s, and the "
    "gateway cancelled them. The call may have taken effect; check before you repeat it"
)
GONE: Final = (
    "{server} no longer knows the session of this call, and the call's result is lost. The call may "
    "have taken effect; check before you repeat it"
)
UNREADABLE: Final = (
    "The result of this call at {server} is lost: {fact}. The call may have taken effect; check before "
    "you repeat it"
)
ANSWERED: Final = "These questions of {server} were already answered, with different answers"
BUSY: Final = "Too many calls are waiting for their users (max_held_calls); try again later"
UNHELD: Final = (
    "On AWS Lambda, the gateway can carry questions only of servers that keep the events of their "
    "streams; run the gateway as a process or a container"
)

log = logging.getLogger("roundgate.backends")

MakeConnection: TypeAlias = Callable[[Json], Awaitable[Connection]]
"""Makes a separate connection that declares the capabilities. Raises BackendError."""


@dataclass(frozen=True, slots=True)
class _CallRows:
    """The rows of one held call."""

    rows: Rows
    id: str
    clock: Clock
    keep_ms: int
    """Milliseconds for which a row is kept after its last write."""

    @property
    def forget_ms(self) -> int:
        """The expiry of a row that is written now, in milliseconds since the epoch."""
        return self.clock.now_ms() + self.keep_ms

    def key(self, name: str | int) -> str:
        """Return the key of a row."""
        return f"held.{self.id}.{name}"

    async def put_outcome(self, number: int, outcome: Json) -> None:
        """Write an outcome. Raise Unavailable if the store fails."""
        data = json.encode(outcome)
        chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
        if len(chunks) > MAX_CHUNKS:
            outcome = {"error": "The result is too large to pass it to another process"}
            return await self.put_outcome(number, outcome)
        # the first row marks the outcome as complete, so write it last
        for place, chunk in reversed(list(enumerate(chunks))):
            head = b"%d\n" % len(chunks) if place == 0 else b""
            await self.rows.put(self.key(f"{number}.{place}"), head + chunk, self.forget_ms)
        return None

    async def read_outcome(self, number: int) -> tuple[Json | None, bytes | None]:
        """Return an outcome without a heartbeat, or `None` with the last heartbeat, if any. Raise
        Unavailable if the store fails."""
        first, beat = self.key(f"{number}.0"), self.key("beat")
        values = await self.rows.read_values([first, beat])
        if (head := values.get(first)) is None:
            return None, values.get(beat)
        count, _, data = head.partition(b"\n")
        keys = [self.key(f"{number}.{place}") for place in range(1, int(count))]
        others = await self.rows.read_values(keys) if keys else {}
        outcome: Json = json.decode(data + b"".join(others.get(key, b"") for key in keys))
        return outcome, None

    async def send_heartbeat(self, number: int) -> None:
        """Write the next heartbeat. Raise Unavailable if the store fails."""
        value, key = b"%020d" % number, self.key("beat")
        if not await self.rows.put_new(key, value, self.forget_ms):
            row = await self.rows.read(key)
            if row is not None:
                await self.rows.replace(key, value, row.version, row.forget_ms)


@dataclass(slots=True)
class _Silence:
    """The time without a heartbeat of a holder, over all rounds that wait for it."""

    since_ms: int
    """When the last heartbeat was first read, in milliseconds since the epoch."""
    beat: str | None = None
    """The last heartbeat."""

    def lasts_ms(self, beat: bytes | None, now_ms: int) -> int:
        """Return the milliseconds for which the heartbeat has not changed."""
        if beat is not None and beat.decode() != self.beat:
            self.beat, self.since_ms = beat.decode(), now_ms
        return now_ms - self.since_ms


def can_hold(context: Context) -> bool:
    """Return whether a call has rows, through which any process can answer its questions."""
    return run_of(context).call.rows_of is not None


class HeldCalls:
    """The calls of one older server that may ask questions, with this process as their holder.

    Args:
        server: the server's name for error texts.
        make_connection: makes a connection.
        convert_error: returns an error of the client library as a `BackendError`.
        max_calls: the maximum number of calls that wait for answers at once, with open streams.
        held_s: the seconds for which a call waits for answers.
        clock: the clock of the process.
        can_hold: whether this process can keep streams open between two requests.
    """

    def __init__(
        self,
        server: str,
        make_connection: MakeConnection,
        convert_error: Callable[[ClientError], BackendError],
        clock: Clock,
        *,
        max_calls: int,
        held_s: float,
        can_hold: bool,
    ) -> None:
        self.server = server
        self.can_hold = can_hold
        self.convert_error = convert_error
        self.clock = clock
        self.held_s = held_s
        self._make_connection = make_connection
        self._max_calls = max_calls
        self._held: dict[str, _HeldCall] = {}
        self._continued: dict[tuple[str, int], _HeldCall] = {}
        """The calls that continue from a position, by id and the number of the answered outcome."""
        self._running: set[_HeldCall] = set()
        """All calls, also those that have not asked."""
        self._idle: OrderedDict[Connection, tuple[tuple[str, bytes], float]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._expiring: set[asyncio.Task[None]] = set()
        """Tasks that cancel the questions of calls that are not held, once the time for answers ends."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer of the next search for expired sessions."""

    async def begin(self, context: Context, method: str, params: Json, listener: Listener) -> Json:
        """Make a call. Return `{"result": …}`, or the questions: `{"inputRequests": …, "state":
        None, "held": id, "number": 0}`, with the member `position` unless this process holds the call.

        Raises:
            ClientError, BackendError: the call failed.
        """
        call = run_of(context).call
        assert call.rows_of is not None, "callers check `can_hold`"
        owner = task_owner(call.principal)
        key = owner, json.encode(listener.capabilities or {})
        connection = self._take_idle_session(key) or await self._open_session(
            listener.capabilities or {}
        )
        try:
            await _set_log_level(connection, (listener.meta or {}).get(f"{META}logLevel"))
        except BaseException:
            self._close(connection)
            raise
        held_call = _HeldCall(
            self,
            context,
            owner,
            connection,
            self._rows(context, self.clock.new_id(), int(self.held_s * 1000) + KEEP_MS),
            lambda own: connection.exchange(method, params, own, may_repeat=False),
            listener,
            self.held_s * 1000,
        )
        self._start(held_call)
        try:
            return await held_call.first_outcome()
        finally:
            held_call.attach(None)

    async def answer(
        self,
        context: Context,
        questions: Json,
        answers: Mapping[str, Any],
        notify: Callable[[str, Json], Any],
    ) -> Json:
        """Answer the questions of a call, and return its next outcome as `begin` does. Shortly before
        the deadline, return the questions with the member `pending`: the next round waits again.

        Args:
            context: the context of this round.
            questions: the questions, as `begin` or `answer` returned them.
            answers: the answers by key.
            notify: receives the call's notifications, if this process has its stream.

        Raises:
            ToolError: the call failed, its holder has died, the server has forgotten the call, or its
                questions have other answers.
        """
        remaining_ms = context.deadline.remaining_ms()
        limit_s = None if remaining_ms is None else max(0, remaining_ms - SHED_MS) / 1000
        silence = _Silence(**questions.get("pending", {"since_ms": self.clock.now_ms()}))
        try:
            async with asyncio.timeout(limit_s):
                outcome = await self._answer(context, questions, answers, notify, silence)
        except TimeoutError:
            return {**questions, "pending": asdict(silence)}
        message = outcome.get("error")
        if message is not None:
            raise ToolError(message)
        return outcome

    async def _answer(
        self,
        context: Context,
        questions: Json,
        answers: Mapping[str, Any],
        notify: Callable[[str, Json], Any],
        silence: _Silence,
    ) -> Json:
        call_rows, number = self._rows(context, questions["held"]), questions["number"]
        position = questions.get("position")
        await self._store_answers(call_rows, number, answers, position)
        if position is None:
            held_call = self._held.get(call_rows.id)
            if held_call is None:
                return await self._wait_for_outcome(call_rows, number + 1, silence)
            return await _outcome_for(held_call, number + 1, notify)
        if (outcome := await self._stored_outcome(call_rows, number + 1)) is not None:
            return outcome
        results = {key: {"result": answer} for key, answer in answers.items()}
        held_call = await self._continue(context, questions, results)
        outcome = await _outcome_for(held_call, number + 1, notify)
        if "error" in outcome:
            # the same round may have ended elsewhere, which ended the session
            return await self._stored_outcome(call_rows, number + 1) or outcome
        return outcome

    def progress_token(self, questions: Json) -> str | None:
        """Return the progress token of a call whose notifications this process receives, if it has
        one."""
        if (position := questions.get("position")) is not None:
            sealed: str | None = position["token"]
            return sealed
        held_call = self._held.get(questions["held"])
        return None if held_call is None else held_call.token

    async def aclose(self) -> None:
        """End the held calls and publish their end; close the sessions."""
        running = list(self._running)
        for held_call in running:
            held_call.stop()
        for task in self._expiring:
            task.cancel()
        tasks = [held_call.task for held_call in running]
        await asyncio.gather(*tasks, *self._expiring, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*map(_end_session, idle), *self._closing, return_exceptions=True)

    def _rows(self, context: Context, call_id: str, keep_ms: int = KEEP_MS) -> _CallRows:
        call = run_of(context).call
        assert call.rows_of is not None, "callers check `can_hold`"
        return _CallRows(call.rows_of(call.principal), call_id, self.clock, keep_ms)

    def _start(self, held_call: _HeldCall) -> None:
        self._running.add(held_call)
        held_call.task.add_done_callback(lambda _: self._running.discard(held_call))

    # -- calls that are not held -------------------------------------------------------------------

    async def _continue(
        self, context: Context, questions: Json, answers: Mapping[str, Json]
    ) -> _HeldCall:
        """Continue a call from the position of its questions, with the responses to them by key,
        unless another round in this process does so already."""
        key = questions["held"], questions["number"]
        connection = await self._make_connection({})
        if (running := self._continued.get(key)) is not None:
            return running
        link, sealed = connection.link, questions["position"]
        assert isinstance(link, Link), "only the sessions of HTTP servers are left"
        position = Position(**{each.name: sealed[each.name] for each in fields(Position)})
        responses = {sealed["ids"][name]: answer for name, answer in answers.items()}
        held_call = _HeldCall(
            self,
            context,
            task_owner(run_of(context).call.principal),
            connection,
            self._rows(context, questions["held"]),
            lambda listener: link.resume(position, responses, listener),
            Listener(meta={"progressToken": sealed["token"]}),
            max(0, sealed["until_ms"] - self.clock.now_ms()),
            number=questions["number"] + 1,
            asked=sealed["asked"],
            is_continued=True,
        )
        self._continued[key] = held_call
        self._start(held_call)
        held_call.task.add_done_callback(lambda _: self._continued.pop(key))
        return held_call

    def expire_later(self, context: Context, questions: Json) -> None:
        """Cancel the questions of a call that is not held, unless they are answered in time. Do
        nothing on AWS Lambda, which freezes the process."""
        if self.can_hold:
            expiring = asyncio.create_task(self._expire(context, questions))
            self._expiring.add(expiring)
            expiring.add_done_callback(self._expiring.discard)

    async def _expire(self, context: Context, questions: Json) -> None:
        until_ms = questions["position"]["until_ms"]
        await self.clock.sleep(max(0, until_ms - self.clock.now_ms()) / 1000)
        call_rows = self._rows(context, questions["held"])
        with suppress(Unavailable, BackendError):
            key = call_rows.key(f"a{questions['number']}")
            if await call_rows.rows.put_new(key, b"null", call_rows.forget_ms):
                requests: Json = questions["inputRequests"]
                answers = {key: _cancelled(request) for key, request in requests.items()}
                await self._continue(context, questions, answers)

    # -- answers and outcomes ----------------------------------------------------------------------

    async def _store_answers(
        self,
        call_rows: _CallRows,
        number: int,
        answers: Mapping[str, Any],
        position: Json | None,
    ) -> None:
        """Insert the answers, unless the same answers exist. Raise ToolError if other answers exist,
        or if the answers to a call with a position are late."""
        key, value = call_rows.key(f"a{number}"), json.encode(dict(answers))
        is_late = position is not None and self.clock.now_ms() >= position["until_ms"]
        while True:
            try:
                inserted = b"null" if is_late else value
                if await call_rows.rows.put_new(key, inserted, call_rows.forget_ms):
                    if is_late:
                        raise ToolError(LATE.format(server=self.server))
                    return
                row = await call_rows.rows.read(key)
                break
            except QuotaExceeded as error:
                raise ToolError(str(error)) from None
            except Unavailable:  # retry until the call's deadline; a repeated insert is harmless
                await self.clock.sleep(LONGEST_POLL_S)
        stored = None if row is None else json.decode(row.value)
        if stored is None:
            raise ToolError(LATE.format(server=self.server))
        if stored != json.decode(value):
            raise ToolError(ANSWERED.format(server=self.server))

    async def _stored_outcome(self, call_rows: _CallRows, number: int) -> Json | None:
        """Return an outcome that a process has written, or `None`."""
        try:
            return (await call_rows.read_outcome(number))[0]
        except Unavailable:  # the server has the result, too
            return None

    async def _wait_for_outcome(self, call_rows: _CallRows, number: int, silence: _Silence) -> Json:
        """Return an outcome once its holder, another process, has written it.

        Raises:
            ToolError: the holder has died.
        """
        poll_s = FIRST_POLL_S
        while True:
            try:
                outcome, beat = await call_rows.read_outcome(number)
            except Unavailable:  # the holder cannot send heartbeats either
                silence.since_ms = self.clock.now_ms()
            else:
                if outcome is not None:
                    return outcome
                if silence.lasts_ms(beat, self.clock.now_ms()) > LOST_MS:
                    raise ToolError(LOST.format(server=self.server))
            await self.clock.sleep(poll_s)
            poll_s = min(poll_s * 1.5, LONGEST_POLL_S)

    # -- held calls --------------------------------------------------------------------------------

    def has_room(self, call: _HeldCall) -> bool:
        """Return whether a call may wait for answers, within the limits of the process and caller."""
        if call.call_rows.id in self._held:
            return True
        owned = sum(other.owner == call.owner for other in self._held.values())
        return len(self._held) < self._max_calls and owned < max(1, self._max_calls // SHARE)

    def hold(self, call: _HeldCall) -> None:
        """Register a call that waits for answers, until its end."""
        self._held[call.call_rows.id] = call

    def forget(self, call: _HeldCall) -> None:
        """Unregister a call."""
        self._held.pop(call.call_rows.id, None)

    async def return_session(self, call: _HeldCall, *, is_clean: bool) -> None:
        """Keep the session of a call for the next call if it is clean and this process can hold it;
        otherwise close it."""
        if not self.can_hold:
            await _end_session(call.connection)
            return
        if not is_clean:
            self._close(call.connection)
            return
        key = call.owner, json.encode(call.listener.capabilities or {})
        self._idle[call.connection] = key, self.clock.monotonic_ms()
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(IDLE_MS / 1000, self._close_expired_and_reschedule)
        if len(self._idle) > MAX_IDLE:
            self._close(self._idle.popitem(last=False)[0])

    # -- sessions ----------------------------------------------------------------------------------

    def _take_idle_session(self, key: tuple[str, bytes]) -> Connection | None:
        """Remove and return an idle session of a caller and its capabilities, or return `None`."""
        self._close_expired()
        for connection in reversed(list(self._idle)):
            if self._idle[connection][0] == key:
                del self._idle[connection]
                if not has_ended(connection):
                    return connection
                self._close(connection)
        return None

    async def _open_session(self, capabilities: Json) -> Connection:
        connection = await self._make_connection(capabilities)
        try:
            await connection.connect()
        except BaseException:
            await asyncio.shield(_end_session(connection))
            raise
        return connection

    def _close_expired_and_reschedule(self) -> None:
        """Close expired sessions, and repeat this later while any are idle."""
        self._timer = None
        self._close_expired()
        if self._idle:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(IDLE_MS / 1000, self._close_expired_and_reschedule)

    def _close_expired(self) -> None:
        oldest_ms = self.clock.monotonic_ms() - IDLE_MS
        expired = [session for session, (_, ms) in self._idle.items() if ms < oldest_ms]
        for connection in expired:
            del self._idle[connection]
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        closing = asyncio.create_task(_end_session(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _outcome_for(
    held_call: _HeldCall, number: int, notify: Callable[[str, Json], Any]
) -> Json:
    """Return an outcome of a call of this process, and send its notifications meanwhile."""
    held_call.attach(notify)
    try:
        return await held_call.outcome(number)
    finally:
        held_call.attach(None)


async def _set_log_level(connection: Connection, level: str | None) -> None:
    """Set the minimum level of log messages, if the server supports it."""
    server = connection.server
    if level is None or server is None or "logging" not in server.capabilities:
        return
    try:
        await connection.request("logging/setLevel", {"level": level})
    except ClientError as error:
        log.debug("a server refused a log level", exc_info=error)


async def _end_session(connection: Connection) -> None:
    with suppress(ClientError, BackendError):  # BackendError: a credential is unavailable
        await connection.link.end_session()


@dataclass(eq=False)
class _HeldCall:
    """A call, from its request to its result."""

    calls: HeldCalls
    context: Context
    owner: str
    connection: Connection
    call_rows: _CallRows
    send: Callable[[Listener], Awaitable[Json]]
    """Sends the request, or continues it; returns its result."""
    listener: Listener
    left_ms: float
    """Milliseconds for which questions may still wait for answers."""
    number: int = 0
    """The number of the next outcome."""
    asked: int = 0
    """How many questions the call has asked."""
    is_continued: bool = False
    """Whether the call was left after questions, and continues from its position."""
    _open: dict[str, tuple[str | int, Json, asyncio.Future[Json]]] = field(default_factory=dict)
    """The open questions by key: the server's id, the question and its answer."""
    _unasked: list[str] = field(default_factory=list)
    """The keys of questions that are not yet in an outcome."""
    _has_asked: asyncio.Event = field(default_factory=asyncio.Event)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a round in this process has stored answers."""
    _outcomes: dict[int, asyncio.Future[Json]] = field(default_factory=dict)
    _heartbeats: int = 0
    _is_stopped: bool = False
    _failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._notify = self.listener.on_notification
        self.task = asyncio.create_task(self._run())

    @property
    def token(self) -> str | None:
        """The progress token of the call, if it has one."""
        return (self.listener.meta or {}).get("progressToken")

    async def first_outcome(self) -> Json:
        """Return the first outcome; cancel the call if the caller is cancelled before. Raise the
        failure of the call, or ToolError if the gateway stopped the call."""
        try:
            outcome = await self.outcome(0)
        except asyncio.CancelledError:
            self.task.cancel()
            raise
        if "error" in outcome:
            raise self._failure or ToolError(STOPPED.format(server=self.calls.server))
        return outcome

    async def outcome(self, number: int) -> Json:
        """Read stored answers immediately; return an outcome once it is available in this process."""
        self._woken.set()
        return await asyncio.shield(self._future(number))

    def attach(self, notify: Callable[[str, Json], Any] | None) -> None:
        """Send the call's notifications to a round; `None` drops them."""
        self._notify = notify

    def stop(self) -> None:
        """End the call, because the process ends."""
        self._is_stopped = True
        self.task.cancel()

    def _future(self, number: int) -> asyncio.Future[Json]:
        if number not in self._outcomes:
            self._outcomes[number] = asyncio.get_running_loop().create_future()
        return self._outcomes[number]

    # -- the call ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run the call to its end: publish outcomes, and wait for answers in between. If another
        process can continue the call, leave it after the first questions."""
        listener = replace(
            self.listener, on_request=self._answer_request, on_notification=self._notify_round
        )
        exchange = asyncio.ensure_future(self.send(listener))
        is_session_returned = False
        try:
            while "inputRequests" in (outcome := await self._next_outcome(exchange)):
                if (position := self._detach(outcome)) is not None:
                    await asyncio.gather(exchange, return_exceptions=True)
                    await self._leave_session()
                    is_session_returned = True
                    outcome["position"] = position
                    self.calls.expire_later(self.context, outcome)
                    await self._publish(outcome)
                    return
                self.calls.hold(self)
                await self._publish(outcome)
                since_ms = self.calls.clock.monotonic_ms()
                answers = await self._wait_for_answers(exchange, since_ms + self.left_ms)
                self.left_ms -= self.calls.clock.monotonic_ms() - since_ms
                self._resolve(outcome["inputRequests"], answers)
                self.number += 1
            if self.is_continued:
                await self._store(outcome)  # before the session ends, for rounds elsewhere
            if not self.is_continued or self._is_over(outcome):
                # before the caller gets the result and can call again
                is_clean = "result" in outcome and not self._open and not self.is_continued
                await self.calls.return_session(self, is_clean=is_clean)
                is_session_returned = True
            if not self.is_continued:
                await self._store(outcome)
            self._complete(outcome)
        except asyncio.CancelledError:
            if self._is_stopped:
                await self._publish_stopped()
            raise
        finally:
            exchange.cancel()
            try:
                await asyncio.gather(exchange, return_exceptions=True)
            finally:  # a second cancellation may come
                if not is_session_returned and self.is_continued:
                    await self._leave_session()
                elif not is_session_returned:
                    await self.calls.return_session(self, is_clean=False)
                self.calls.forget(self)

    # -- leaving -----------------------------------------------------------------------------------

    def _detach(self, outcome: Json) -> Json | None:
        """Leave the call, if another process can continue it; return its position."""
        link = self.connection.link
        if not isinstance(link, Link):
            return None
        ids = {key: self._open[key][0] for key in outcome["inputRequests"] if key in self._open}
        if (position := link.detach(set(ids.values()))) is None:
            return None
        return {
            **asdict(position),
            "ids": ids,
            "asked": self.asked,
            "token": self.token,
            "until_ms": self.calls.clock.now_ms() + round(self.left_ms),
        }

    async def _leave_session(self) -> None:
        """Keep the session at the server, for rounds in other processes."""
        assert isinstance(self.connection.link, Link), "see `_detach`"
        await self.connection.link.leave_session()

    def _is_over(self, outcome: Json) -> bool:
        """Return whether the server has answered the call, rather than become unreachable."""
        return "result" in outcome or isinstance(self._failure, RpcError)

    # -- outcomes ----------------------------------------------------------------------------------

    async def _publish_stopped(self) -> None:
        """Publish the end of the call as the outcome for which a round waits."""
        self.number += self._future(self.number).done()
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                await self._publish({"error": STOPPED.format(server=self.calls.server)})

    async def _next_outcome(self, exchange: asyncio.Future[Json]) -> Json:
        """Return the next outcome: the result, an error, or questions."""
        question = asyncio.ensure_future(self._has_asked.wait())
        is_awaited = self.number > 0 and not self.is_continued
        heartbeats = asyncio.ensure_future(self._send_heartbeats()) if is_awaited else None
        limit_s = LONGEST_WORK_S if self.number else None
        try:
            waited: set[asyncio.Future[Any]] = {exchange, question}
            await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not exchange.done():
                await asyncio.wait({exchange}, timeout=SETTLE_S)
        finally:
            question.cancel()
            if heartbeats is not None:
                heartbeats.cancel()
        self._has_asked.clear()
        if exchange.done():
            return self._final_outcome(exchange)
        if not self._unasked:
            return {"error": f"{self.calls.server} did not finish within {LONGEST_WORK_S:g} s"}
        keys, self._unasked = self._unasked, []
        return {
            "inputRequests": {key: self._open[key][1] for key in keys if key in self._open},
            "state": None,
            "held": self.call_rows.id,
            "number": self.number,
        }

    def _final_outcome(self, exchange: asyncio.Future[Json]) -> Json:
        try:
            return {"result": exchange.result()}
        except ClientError as error:
            self._failure = error
            if self.is_continued and not isinstance(error, RpcError):
                return {"error": self._lost_result(error)}
            return {"error": str(self.calls.convert_error(error))}
        except BackendError as error:
            self._failure = error
            return {"error": str(error)}
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a task's progress may end the run with `Suspend`
            self._failure = error
            if isinstance(error, Exception):
                fields = {"backend": self.calls.server}
                log.error("a held call failed", exc_info=error, extra={"fields": fields})
            return {"error": FAILED.format(server=self.calls.server)}

    def _lost_result(self, error: ClientError) -> str:
        """Return the text for a call whose server cannot be reached, or refuses to continue."""
        if isinstance(error, HttpRefused) and error.status in FORGOTTEN:
            return GONE.format(server=self.calls.server)
        return UNREADABLE.format(server=self.calls.server, fact=error.args[0])

    async def _publish(self, outcome: Json) -> None:
        """Make an outcome available to all processes, then to this one."""
        await self._store(outcome)
        self._complete(outcome)

    async def _store(self, outcome: Json) -> None:
        """Write every outcome but the first to its rows. The error of a continued call is not written:
        another round may reach the server."""
        if self.number and not (self.is_continued and "error" in outcome):
            await self._store_outcome(self.number, outcome)

    def _complete(self, outcome: Json) -> None:
        future = self._future(self.number)
        if not future.done():
            future.set_result(outcome)

    async def _store_outcome(self, number: int, outcome: Json) -> None:
        """Write an outcome. Retry for `LOST_MS`, during which other processes regard the holder as
        alive."""
        until_ms = self.calls.clock.monotonic_ms() + LOST_MS
        while True:
            try:
                return await self.call_rows.put_outcome(number, outcome)
            except Unavailable as error:
                if isinstance(error, QuotaExceeded) and "result" in outcome:
                    outcome = {"error": f"The result cannot be stored. {error}"}
                elif self.calls.clock.monotonic_ms() >= until_ms:
                    fields = {"backend": self.calls.server, "error": str(error)}
                    log.warning(
                        "the outcome of a held call could not be stored", extra={"fields": fields}
                    )
                    return None
                else:
                    await self.calls.clock.sleep(LONGEST_POLL_S)

    async def _send_heartbeats(self) -> None:
        while True:
            self._heartbeats += 1
            with suppress(Unavailable):
                await self.call_rows.send_heartbeat(self._heartbeats)
            await asyncio.sleep(HEARTBEAT_S)

    async def _wait_for_answers(
        self, exchange: asyncio.Future[Json], until_ms: float
    ) -> Mapping[str, Any] | None:
        """Return the answers to the questions of an outcome, once a process has stored them. Return
        `None` if the wait has expired or the call has ended."""
        clock, key = self.calls.clock, self.call_rows.key(f"a{self.number}")
        poll_s = FIRST_POLL_S
        while not exchange.done():
            is_late = clock.monotonic_ms() >= until_ms
            try:
                if is_late and await self.call_rows.rows.put_new(
                    key, b"null", self.call_rows.forget_ms
                ):
                    return None
                if (row := await self.call_rows.rows.read(key)) is not None:
                    answers: Mapping[str, Any] | None = json.decode(row.value)
                    return answers
            except Unavailable:
                if is_late:
                    return None
            woken = asyncio.ensure_future(self._woken.wait())
            try:
                waited: set[asyncio.Future[Any]] = {exchange, woken}
                await asyncio.wait(waited, timeout=poll_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
            self._woken.clear()
            poll_s = min(poll_s * 1.5, LONGEST_POLL_S)
        return None

    def _resolve(self, requests: Json, answers: Mapping[str, Any] | None) -> None:
        """Answer questions; without answers, cancel them."""
        for key, request in requests.items():
            if (opened := self._open.pop(key, None)) is None:
                continue
            _, _, future = opened
            if future.done():
                continue
            if answers is not None and key in answers:
                future.set_result({"result": answers[key]})
            else:
                future.set_result(_cancelled(request))

    # -- from the server ---------------------------------------------------------------------------

    async def _notify_round(self, method: str, params: Json) -> None:
        if self._notify is not None:
            await self._notify(method, params)

    async def _answer_request(self, request_id: Any, method: str, params: Json) -> Json:
        """Return the answer to a request of the server. A question waits for the user."""
        if method == "ping":
            return {"result": {}}
        request = _question(method, params)
        try:
            check_request(request)
            is_supported = self.context.supports(Raw(request))
        except (ValueError, KeyError, TypeError, AttributeError):
            return _error(-32602, f"{method[:40]} is not supported in this form")
        if not is_supported:
            return _error(-32601, f"The client did not declare that it can answer {method}")
        if self.left_ms <= 0:  # earlier questions have used up the time for answers
            return _cancelled(request)
        link = self.connection.link
        if not (isinstance(link, Link) and link.can_detach):
            if not self.calls.can_hold:
                return _error(-32601, UNHELD)
            if not self.calls.has_room(self):
                return _error(-32000, BUSY)
            self.calls.hold(self)  # at once, because it takes room
        self.asked += 1
        key = f"question-{self.asked}"
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._open[key] = request_id, request, future
        self._unasked.append(key)
        self._has_asked.set()
        try:
            return await future
        finally:
            self._open.pop(key, None)


def _question(method: str, params: Json) -> Json:
    """Return a request of an older server as an input request."""
    left_out = ("_meta", "task", "elicitationId")
    members = {name: value for name, value in params.items() if name not in left_out}
    return {"method": method, "params": members} if members else {"method": method}


def _cancelled(request: Json) -> Json:
    """Return the response to a question that was not answered in time."""
    if request["method"] == "elicitation/create":
        return {"result": {"action": "cancel"}}
    return _error(-1, "The user did not answer in time")


def _error(code: int, message: str) -> Json:
    return {"error": {"code": code, "message": message}}
