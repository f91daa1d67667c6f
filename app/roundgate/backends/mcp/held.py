"""Calls of older servers in sessions of their callers, during which the server may ask the user; any
replica can take the answers.

A server of a revision before 2026-07-28 asks on the stream of the call, and sends the result on the
same stream. The answers to the nth questions of a call, and the outcome after them, are a round: a
hidden task (`tasks.hidden`), which every replica sees. If the server keeps the events of its streams,
the process that made the call leaves the session, and the sealed state has the session, the last
event and the ids of the questions. The process with the answers claims the round and continues:

    first request, any process    tools/call ──▶ the server asks ──▶ the questions and the position
    next request, any process     round 0: the answers, claimed ──▶ the session, GET with Last-Event-ID ──▶ finish

Otherwise the process that made the call, its holder, keeps the stream open and claims the round:

    first request, the holder     tools/call ──▶ the server asks ──▶ the questions, in the sealed state
    next request, any process     round 0: the answers ──▶ the holder claims it, answers the server ──▶ finish

A call writes rows only after a question. If the holder dies, its lease is not renewed: the next
request ends with an error that says that the call may have taken effect, and the call is never
repeated. The same holds if the server has forgotten the session. A session belongs to one caller and
has one call at a time, because a question does not identify its call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from msgspec import Struct, structs
from msgspec.structs import replace

from roundgate import json
from roundgate.auth import Principal, task_owner
from roundgate.backends.dialogue import (
    McpRefusal,
    Questions,
    Result,
    outcome_from_json,
    recorded,
)
from roundgate.backends.mcp.held_sessions import HeldSessions, MakeConnection
from roundgate.backends.service_tasks import check_request
from roundgate.background import cancelled
from roundgate.client.connection import Connection
from roundgate.client.link import Link, Position
from roundgate.client.messages import META, Listener
from roundgate.client.sender import Headers
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    ClientError,
    HttpRefused,
    LeaseLost,
    NoCommonVersion,
    QuotaExceeded,
    RpcError,
    ServerRefused,
    ToolError,
    Unavailable,
)
from roundgate.replay import AnyContext, HiddenRound, HiddenRounds, NotSent, Raw, call_of
from roundgate.storage import TaskRef

SHED_MS: Final = 1_000
"""Milliseconds before the deadline of a request at which it ends without an outcome; a retry waits
for the outcome."""
SHARE: Final = 5
"""The divisor that limits one caller to a share of the calls of a process; at least one call."""
MAX_EXPIRING: Final = 1_000
"""The maximum number of calls that are not held whose questions a process cancels when the time for
answers ends. Beyond it, the oldest call stays open until the server ends it."""
SETTLE_S: Final = 0.05
"""Seconds after a question in which further questions join its round."""
LONGEST_WORK_S: Final = 900.0
"""Seconds that a server may work on answers until its next question or result; the caller may have
left."""
STOP_S: Final = 2.0
"""Seconds that a process which is about to end may spend on writing the end of a call."""
FORGOTTEN: Final = frozenset({400, 404})
"""HTTP statuses with which a server refuses a session or an event that it does not know."""

LOST: Final = (
    "The process that held this call at {server} has died, and the call's result is lost. The call may "
    "have taken effect; check before you repeat it"
)
LATE: Final = (
    "The questions of {server} were answered too late: they were open for longer than held_s, and the "
    "gateway cancelled them. The call may have taken effect; check before you repeat it"
)
ANSWERED: Final = "These questions of {server} were already answered, with different answers"
ENDED: Final = (
    "An operator of the gateway ended this call at {server}. The call may have taken effect; check "
    "before you repeat it"
)
STOPPED: Final = (
    "The process that held this call at {server} was stopped. The call may have taken effect; check "
    "before you repeat it"
)
FAILED: Final = (
    "The call at {server} failed in the gateway, for a reason that its log has. The call may have "
    "taken effect; check before you repeat it"
)
GONE: Final = (
    "{server} no longer knows the session of this call, and the call's result is lost. The call may "
    "have taken effect; check before you repeat it"
)
UNREADABLE: Final = (
    "The result of this call at {server} is lost: {fact}. The call may have taken effect; check before "
    "you repeat it"
)
LATE_RESULT: Final = (
    f"{{server}} did not finish within {LONGEST_WORK_S:g} s after the answers to its questions. The call "
    "may have taken effect; check before you repeat it"
)
BUSY: Final = "Too many calls are waiting for their users (max_held_calls); try again later"
UNHELD: Final = (
    "On AWS Lambda, the gateway can carry questions only of servers that keep the events of their "
    "streams; run the gateway as a process or a container"
)

CallOutcome: TypeAlias = Result | McpRefusal | Questions

log = logging.getLogger("roundgate.backends")


def can_hold(context: AnyContext) -> bool:
    """Return whether a call has rounds, through which any process can answer its questions."""
    return call_of(context).hidden is not None


class _Rounds(Struct, frozen=True):
    hidden: HiddenRounds
    principal: Principal
    id: str
    server: str

    def ref(self, number: int) -> TaskRef:
        """Return the reference of the round that begins with the answers to outcome `number`."""
        return self.hidden.ref(self.principal, "held", self.id, number)

    async def close(self, number: int, outcome: CallOutcome) -> bool:
        """End a round without answers; return `False` if it has answers. Raise Unavailable if the
        store fails."""
        return await self.hidden.close(self.ref(number), self.server, _encode(outcome))

    def receive(self, number: int) -> Awaitable[HiddenRound | None]:
        """Claim a round once it has answers; return `None` if it has ended instead."""
        return self.hidden.receive(self.ref(number))


@dataclass(eq=False)
class HeldCalls:
    """The calls of one older server in sessions of their callers, with this process as the holder of
    calls with questions."""

    server: str
    """The server's name for error texts."""
    make_connection: MakeConnection
    convert_error: Callable[[ClientError], BackendError]
    """Returns an error of the client library as a `BackendError`."""
    caller_headers: Callable[[Principal], Headers]
    """Returns the headers that tell who calls."""
    clock: Clock
    max_calls: int
    """The maximum number of calls that wait for answers at once, with open streams."""
    held_s: float
    """The seconds for which a call waits for answers."""
    can_hold: bool
    """Whether this process can keep streams open between two requests."""
    may_ask: bool = True
    """Whether sessions declare the capabilities of the client, so that the server may ask."""
    _running: dict[str, HeldCall] = field(default_factory=dict)
    """All calls by id, also those that have not asked."""
    _expiring: OrderedDict[TaskRef, asyncio.Task[None]] = field(default_factory=OrderedDict)
    """The tasks that cancel the questions of calls that are not held once the time for answers ends,
    by round."""
    _asking: set[str] = field(default_factory=set)
    """The tools of a server of 2026-07-28 that ask in older revisions only; see `mcp.eras`."""

    def __post_init__(self) -> None:
        self.sessions = HeldSessions(
            self.server, self.make_connection, self.clock, keeps_idle=self.can_hold
        )

    def has_to_ask(self, tool: str) -> bool:
        """Return whether a tool of a server of 2026-07-28 asks in older revisions only."""
        return tool in self._asking

    async def find(self, context: AnyContext, tool: str) -> bool:
        """Return whether the server opens a session of an older revision; if so, `tool` is called in
        such sessions from now on."""
        owner = task_owner(context.principal)
        try:
            self.sessions.close(await self.sessions.take(owner, {}))
        except (ClientError, BackendError):
            return False
        if tool not in self._asking:
            self._asking.add(tool)
            fields = {"backend": self.server, "tool": tool}
            log.warning("a tool asks in an older revision", extra={"fields": fields})
        return True

    async def begin(
        self, context: AnyContext, method: str, params: Json, listener: Listener
    ) -> CallOutcome:
        """Make a call; return its result or its questions.

        Raises:
            ClientError, BackendError: the call failed.
        """
        owner = task_owner(context.principal)
        capabilities = (listener.capabilities or {}) if self.may_ask else {}
        listener = replace(listener, capabilities=capabilities)
        try:
            connection = await self.sessions.take(owner, capabilities)
        except NoCommonVersion:
            self._asking.clear()  # the server no longer speaks older revisions
            raise
        try:
            await _set_log_level(connection, (listener.meta or {}).get(f"{META}logLevel"))
        except BaseException:
            self.sessions.close(connection)
            raise
        held_call = HeldCall(
            self,
            context,
            owner,
            connection,
            self._rounds(context, self.clock.new_id()),
            lambda own: connection.exchange(method, params, own, may_repeat=False),
            listener,
            self.held_s * 1000,
        )
        self._running[held_call.rounds.id] = held_call
        try:
            outcome = await held_call.begin()
            if isinstance(outcome, McpRefusal):
                raise held_call.failure or ToolError(STOPPED.format(server=self.server))
            return outcome
        finally:
            held_call.attach(None)

    async def answer(
        self,
        context: AnyContext,
        questions: Questions,
        answers: Mapping[str, Any],
        notify: Callable[[str, Json], Any],
    ) -> CallOutcome:
        """Answer the questions of a call, and return its next outcome. Shortly before the deadline,
        return the questions as pending: the next request waits again. `notify` receives the call's
        notifications, if this process has its stream.

        Raises:
            ToolError: the call failed, its holder has died, the server has forgotten the call, or its
                questions have other answers.
        """
        remaining_ms = context.deadline.remaining_ms()
        limit_s = None if remaining_ms is None else max(0, remaining_ms - SHED_MS) / 1000
        try:
            async with asyncio.timeout(limit_s):
                outcome = await self._answer(context, questions, answers, notify)
        except TimeoutError:
            return replace(questions, pending=True)
        if isinstance(outcome, McpRefusal) and outcome.code is None:
            message = outcome.error
            raise ToolError(message)
        return outcome

    async def _answer(
        self,
        context: AnyContext,
        questions: Questions,
        answers: Mapping[str, Any],
        notify: Callable[[str, Json], Any],
    ) -> CallOutcome:
        rounds = self._rounds(context, questions.held)
        ref = rounds.ref(questions.number)
        await self._check_in_time(rounds, questions)
        self._stop_expiring(ref)
        running, continues = self._running.get(rounds.id), questions.position is not None
        if running is not None:
            running.attach(notify)
        try:
            sent = json.encode(dict(answers))
            answered = await rounds.hidden.send(
                ref, self.server, sent, secret=rounds.id, continues=continues
            )
            if isinstance(answered, bytes):
                return _decode(answered)
            if answered is NotSent.OTHER:
                raise ToolError(ANSWERED.format(server=self.server))
            if answered is NotSent.LOST:
                raise ToolError(LOST.format(server=self.server))
            if answered is NotSent.ENDED:
                raise ToolError(ENDED.format(server=self.server))
            responses = {key: {"result": answer} for key, answer in answers.items()}
            running = await self._continue(context, questions, responses, answered)
            running.attach(notify)
            return await running.first_outcome()
        except QuotaExceeded as error:
            raise ToolError(str(error)) from None
        finally:
            if running is not None:
                running.attach(None)

    async def _check_in_time(self, rounds: _Rounds, questions: Questions) -> None:
        """Raise ToolError if the answers to a call that no process holds are late."""
        position = questions.position
        if position is None or self.clock.now_ms() < position["until_ms"]:
            return
        text = LATE.format(server=self.server)
        with suppress(Unavailable):
            if not await rounds.close(questions.number, McpRefusal(text)):
                return  # they were sent before
        raise ToolError(text)

    def progress_token(self, questions: Questions) -> str | None:
        """Return the progress token of a call whose notifications this process receives, if it has
        one."""
        if questions.position is not None:
            sealed: str | None = questions.position["token"]
            return sealed
        held_call = self._running.get(questions.held or "")
        return None if held_call is None else held_call.token

    async def until_unused(self) -> None:
        """Wait until all calls have ended, and the questions of calls that are not held have expired."""
        running = self._running.values
        while open_calls := [*(call.ended for call in running()), *self._expiring.values()]:
            await asyncio.wait(open_calls)

    async def aclose(self) -> None:
        """End the held calls and publish their end; close the sessions."""
        running, expiring = list(self._running.values()), list(self._expiring.values())
        for held_call in running:
            held_call.stop()
        if running:
            await asyncio.wait([held_call.ended for held_call in running], timeout=STOP_S)
        tasks = [held_call.task for held_call in running if held_call.task is not None]
        await cancelled(*tasks, *expiring)
        await self.sessions.aclose()

    def _rounds(self, context: AnyContext, call_id: str | None) -> _Rounds:
        call = call_of(context)
        assert call.hidden is not None, "callers check `can_hold`"
        assert call_id is not None, "questions of a call in a session"
        return _Rounds(call.hidden(), call.principal, call_id, self.server)

    def forget(self, held_call: HeldCall) -> None:
        """Forget a call that has ended."""
        if self._running.get(held_call.rounds.id) is held_call:
            del self._running[held_call.rounds.id]

    # -- calls that are not held -------------------------------------------------------------------

    async def _continue(
        self,
        context: AnyContext,
        questions: Questions,
        responses: Mapping[str, Json],
        claimed: HiddenRound | None,
    ) -> HeldCall:
        """Continue a call from the position of its questions, with the responses to them by key."""
        sealed = questions.position
        assert sealed is not None, "no process holds the call"
        try:
            connection = await self.make_connection({})
        except BaseException:
            if claimed is not None:
                await claimed.let_go()
            raise
        link, rounds = connection.link, self._rounds(context, questions.held)
        assert isinstance(link, Link), "only the sessions of HTTP servers are left"
        position = Position(**{name: sealed[name] for name in Position.__struct_fields__})
        messages = {sealed["ids"][name]: response for name, response in responses.items()}
        principal = context.principal
        held_call = self._running[rounds.id] = HeldCall(
            self,
            context,
            task_owner(principal),
            connection,
            rounds,
            lambda listener: link.resume(position, messages, listener),
            Listener(
                meta={"progressToken": sealed["token"]},
                caller_headers=self.caller_headers(principal),
            ),
            max(0, sealed["until_ms"] - self.clock.now_ms()),
            begins=questions.number + 1,
            asked=sealed["asked"],
            claimed=claimed,
        )
        held_call.start()
        return held_call

    def expire_later(self, context: AnyContext, questions: Questions) -> None:
        """Cancel the questions of a call that is not held, unless they are answered in time. Do
        nothing on AWS Lambda, which freezes the process."""
        ref = self._rounds(context, questions.held).ref(questions.number)
        if not self.can_hold or ref in self._expiring:
            return
        owned = [other for other in self._expiring if other.owner == ref.owner]
        if len(owned) >= max(1, MAX_EXPIRING // SHARE):
            self._stop_expiring(owned[0])
        elif len(self._expiring) >= MAX_EXPIRING:
            self._stop_expiring(next(iter(self._expiring)))
        task = self._expiring[ref] = asyncio.create_task(self._expire(context, questions))
        task.add_done_callback(lambda _: self._expiring.pop(ref, None))

    def _stop_expiring(self, ref: TaskRef) -> None:
        """Undo `expire_later` for questions that have answers, or for which there is no room."""
        if (task := self._expiring.pop(ref, None)) is not None:
            task.cancel()

    async def _expire(self, context: AnyContext, questions: Questions) -> None:
        assert questions.position is not None, "no process holds the call"
        await self.clock.sleep(max(0, questions.position["until_ms"] - self.clock.now_ms()) / 1000)
        rounds = self._rounds(context, questions.held)
        with suppress(Unavailable, BackendError):
            if await rounds.close(questions.number, McpRefusal(LATE.format(server=self.server))):
                requests = questions.requests.items()
                cancelled = {key: cancelled_answer(request) for key, request in requests}
                await self._continue(context, questions, cancelled, None)

    # -- held calls --------------------------------------------------------------------------------

    def hold(self, call: HeldCall) -> bool:
        """Let a call wait for answers until its end; return `False` beyond the limits of the process
        and the caller."""
        if not call.is_held:
            held = [other for other in self._running.values() if other.is_held]
            owned = sum(other.owner == call.owner for other in held)
            call.is_held = len(held) < self.max_calls and owned < max(1, self.max_calls // SHARE)
        return call.is_held


def _make_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False)
class HeldCall:
    """A call, from its request to its result.

    the server asks ──▶ outcome: the questions ──▶ another process can continue the call: leave it
                                               └─▶ else claim the round with the answers, answer the
                                                   server, renew the lease ──▶ the next outcome

    The last outcome is the result or an error. Until the server asks, the call runs in the task of
    its request.
    """

    calls: HeldCalls
    context: AnyContext
    owner: str
    connection: Connection
    rounds: _Rounds
    send: Callable[[Listener], Coroutine[Any, Any, Json]]
    """Sends the request, or continues it; returns its result."""
    listener: Listener
    left_ms: float
    """Milliseconds for which questions may still wait for answers."""
    begins: int = 0
    """The number of the first outcome. A call that was left after questions, and continues from its
    position, begins with a later one."""
    asked: int = 0
    """How many questions the call has asked."""
    claimed: HiddenRound | None = None
    """The round that the next outcome ends."""
    is_held: bool = False
    """Whether the call may wait for answers."""
    _open: dict[str, tuple[str | int, Json, asyncio.Future[Json]]] = field(default_factory=dict)
    """The open questions by key: the server's id, the question and its answer."""
    _unasked: list[str] = field(default_factory=list)
    """The keys of questions that are not yet in an outcome."""
    _question: asyncio.Future[None] = field(default_factory=_make_future)
    """Is done once a question is not yet in an outcome."""
    _is_unanswered: bool = False
    """Whether the round of the last questions has no answers and no outcome, as far as known."""
    task: asyncio.Task[None] | None = None
    """The task of a call that has asked, was continued, or was cancelled."""
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.number = self.begins
        """The number of the next outcome."""
        self._notify = self.listener.on_notification
        self._first: asyncio.Future[CallOutcome] = _make_future()
        self.ended: asyncio.Future[None] = _make_future()
        listener = replace(
            self.listener, on_request=self._answer_request, on_notification=self._notify_request
        )
        self._exchange = asyncio.create_task(self.send(listener))

    @property
    def token(self) -> str | None:
        """The progress token of the call, if it has one."""
        return (self.listener.meta or {}).get("progressToken")

    async def begin(self) -> CallOutcome:
        """Return the first outcome of a call that begins. If the caller is cancelled before, end the
        call."""
        try:
            outcome = await self._next_outcome()
        except asyncio.CancelledError:
            self._exchange.cancel()
            self.start()
            raise
        if isinstance(outcome, Questions) or not self.calls.can_hold:
            self.start(outcome)
            return await self.first_outcome()
        await self._run(outcome)
        return outcome

    def start(self, outcome: CallOutcome | None = None) -> None:
        """Run the call in its own task, from an outcome or from the next one."""
        self.task = asyncio.create_task(self._run(outcome))

    async def first_outcome(self) -> CallOutcome:
        """Return the first outcome in this process. If the caller is cancelled before, cancel a call
        whose first questions are not published."""
        try:
            return await asyncio.shield(self._first)
        except asyncio.CancelledError:
            if not self.begins and self.task is not None:
                self.task.cancel()
            raise

    def attach(self, notify: Callable[[str, Json], Any] | None) -> None:
        """Send the call's notifications to a request; `None` drops them."""
        self._notify = notify

    def stop(self) -> None:
        """End the call, because the process ends."""
        self._exchange.cancel()

    # -- the call ----------------------------------------------------------------------------------

    async def _run(self, outcome: CallOutcome | None) -> None:
        """Run the call from an outcome to its end: publish outcomes, and wait for answers in between.
        If another process can continue the call, leave it after the first questions."""
        is_session_returned = False
        try:
            outcome = outcome or await self._next_outcome()
            while isinstance(outcome, Questions):
                if (position := self._detach(outcome)) is not None:
                    await asyncio.gather(self._exchange, return_exceptions=True)
                    await self._leave_session()
                    is_session_returned = True
                    outcome = replace(outcome, position=position)
                    self.calls.expire_later(self.context, outcome)
                    await self._publish(outcome)
                    return
                self.calls.hold(self)
                await self._publish(outcome)
                since_ms = self.calls.clock.monotonic_ms()
                answers = await self._wait_for_answers()
                self.left_ms -= self.calls.clock.monotonic_ms() - since_ms
                self._resolve(outcome.requests, answers)
                outcome = await self._next_outcome()
            await self._store(outcome)
            if not self.begins or self._is_over(outcome):
                # before the caller gets the result and can call again
                is_clean = isinstance(outcome, Result) and not self._open and not self.begins
                await self._return_session(is_clean=is_clean)
                is_session_returned = True
            self._complete(outcome)
        finally:
            try:
                if not (is_session_returned and self._exchange.done()):
                    await cancelled(self._exchange)
            finally:  # a second cancellation may come
                self.calls.forget(self)
                if not is_session_returned and self.begins:
                    await self._leave_session()
                elif not is_session_returned:
                    await self._return_session(is_clean=False)
                if not self.ended.done():
                    self.ended.set_result(None)

    async def _return_session(self, *, is_clean: bool) -> None:
        """Keep the session for the next call of the caller if it is clean and this process can hold
        it; otherwise close it."""
        capabilities = self.listener.capabilities or {}
        sessions = self.calls.sessions
        await sessions.give_back(self.connection, self.owner, capabilities, is_clean=is_clean)

    # -- leaving -----------------------------------------------------------------------------------

    def _detach(self, outcome: Questions) -> Json | None:
        """Leave the call, if another process can continue it; return its position."""
        link = self.connection.link
        if not isinstance(link, Link):
            return None
        ids = {key: self._open[key][0] for key in outcome.requests if key in self._open}
        if (position := link.detach(set(ids.values()))) is None:
            return None
        return {
            **structs.asdict(position),
            "ids": ids,
            "asked": self.asked,
            "token": self.token,
            "until_ms": self.calls.clock.now_ms() + round(self.left_ms),
        }

    async def _leave_session(self) -> None:
        """Keep the session at the server, for requests in other processes."""
        assert isinstance(self.connection.link, Link), "see `_detach`"
        await self.connection.link.leave_session()

    def _is_over(self, outcome: CallOutcome) -> bool:
        """Return whether the server has answered the call, rather than become unreachable."""
        return isinstance(outcome, Result) or isinstance(self.failure, RpcError)

    # -- outcomes ----------------------------------------------------------------------------------

    async def _next_outcome(self) -> CallOutcome:
        """Return the next outcome: the result, an error, or questions."""
        limit_s = LONGEST_WORK_S if self.number else None
        async with nullcontext() if self.claimed is None else self.claimed.renewed():
            waited: set[asyncio.Future[Any]] = {self._exchange, self._question}
            await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not self._exchange.done():
                await asyncio.wait({self._exchange}, timeout=SETTLE_S)
        if self._exchange.done():
            return self._final_outcome()
        self._question = _make_future()
        if not self._unasked:
            return McpRefusal(LATE_RESULT.format(server=self.calls.server))
        keys, self._unasked = self._unasked, []
        requests = {key: self._open[key][1] for key in keys if key in self._open}
        return Questions(requests, None, self.rounds.id, self.number)

    def _final_outcome(self) -> CallOutcome:
        try:
            return Result(self._exchange.result())
        except ClientError as error:
            self.failure = error
            if self.begins and not isinstance(error, RpcError):
                return McpRefusal(self._lost_result(error))
            return refusal(self.calls.convert_error(error))
        except BackendError as error:
            self.failure = error
            return McpRefusal(str(error))
        except asyncio.CancelledError:  # see `stop`
            return McpRefusal(STOPPED.format(server=self.calls.server))
        except BaseException as error:  # a task's progress may end the run with `Suspend`
            self.failure = error
            if isinstance(error, Exception):
                fields = {"backend": self.calls.server}
                log.error("a held call failed", exc_info=error, extra={"fields": fields})
            return McpRefusal(FAILED.format(server=self.calls.server))

    def _lost_result(self, error: ClientError) -> str:
        if isinstance(error, HttpRefused) and error.status in FORGOTTEN:
            return GONE.format(server=self.calls.server)
        return UNREADABLE.format(server=self.calls.server, fact=error.args[0])

    async def _publish(self, outcome: CallOutcome) -> None:
        """Make an outcome available to all processes, then to this one."""
        await self._store(outcome)
        self._complete(outcome)

    def _complete(self, outcome: CallOutcome) -> None:
        if not self._first.done():
            self._first.set_result(outcome)

    async def _store(self, outcome: CallOutcome) -> None:
        """End the round before an outcome; the first outcome has none. If the server of a continued
        call cannot be reached, leave the round to the next request, which may reach it."""
        try:
            if self._is_unanswered:
                if await self.rounds.close(self.number - 1, outcome):
                    return
                self.claimed = await self.rounds.receive(self.number - 1)
            if self.claimed is None:
                return
            if self.begins and isinstance(outcome, McpRefusal) and not self._is_over(outcome):
                await self.claimed.let_go()
                return
            try:
                await self.claimed.finish(_encode(outcome))
            except QuotaExceeded as error:
                lost = McpRefusal(f"The result cannot be stored. {error}")
                await self.claimed.finish(_encode(lost))
        except (LeaseLost, Unavailable) as error:
            fields = {"backend": self.calls.server, "error": str(error)}
            log.warning("the outcome of a held call could not be stored", extra={"fields": fields})
        finally:
            self.claimed, self._is_unanswered = None, False

    # -- answers -----------------------------------------------------------------------------------

    async def _wait_for_answers(self) -> Mapping[str, Any] | None:
        """Claim the round of the last outcome, once a process has posted its answers; return them.
        Return `None` if the wait has expired, or the round or the call has ended."""
        number, self.number = self.number, self.number + 1
        self._is_unanswered = True
        receiving = asyncio.ensure_future(self.rounds.receive(number))
        waited: set[asyncio.Future[Any]] = {self._exchange, receiving}
        left_s = max(0, self.left_ms) / 1000
        try:
            await asyncio.wait(waited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done() and self._exchange.done():
                return None
            is_late = not receiving.done() and await self._is_late(number)
            self.claimed = None if is_late else await receiving
            self._is_unanswered = False
        finally:
            receiving.cancel()
        return None if self.claimed is None else json.decode(self.claimed.answers)

    async def _is_late(self, number: int) -> bool:
        """End a round whose wait has expired; return `False` if its answers have just come."""
        try:
            return await self.rounds.close(
                number, McpRefusal(LATE.format(server=self.calls.server))
            )
        except Unavailable:
            return True

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
                future.set_result(cancelled_answer(request))

    # -- from the server ---------------------------------------------------------------------------

    async def _notify_request(self, method: str, params: Json) -> None:
        if self._notify is not None:
            await self._notify(method, params)

    async def _answer_request(self, request_id: Any, method: str, params: Json) -> Json:
        """Return the answer to a request of the server. A question waits for the user."""
        if method == "ping":
            return {"result": {}}
        request = _question(method, params)
        try:
            check_request(request)
            is_supported = call_of(self.context).capabilities.has(Raw(request).requires)
        except (ValueError, KeyError, TypeError, AttributeError):
            return _error(-32602, f"{method[:40]} is not supported in this form")
        if not is_supported:
            return _error(-32601, f"The client did not declare that it can answer {method}")
        if self.left_ms <= 0:  # earlier questions have used up the time for answers
            return cancelled_answer(request)
        link = self.connection.link
        if not (isinstance(link, Link) and link.can_detach):
            if not self.calls.can_hold:
                return _error(-32601, UNHELD)
            if not self.calls.hold(self):  # at once, because it takes room
                return _error(-32000, BUSY)
        self.asked += 1
        key = f"question-{self.asked}"
        future: asyncio.Future[Json] = _make_future()
        self._open[key] = request_id, request, future
        self._unasked.append(key)
        if not self._question.done():
            self._question.set_result(None)
        try:
            return await future
        finally:
            self._open.pop(key, None)


def _question(method: str, params: Json) -> Json:
    """Return a request of an older server as an input request."""
    left_out = ("_meta", "task", "elicitationId")
    members = {name: value for name, value in params.items() if name not in left_out}
    return {"method": method, "params": members} if members else {"method": method}


def refusal(error: BackendError) -> McpRefusal:
    """Return an error as an outcome."""
    if not isinstance(error, ServerRefused):
        return McpRefusal(str(error), reason=error.reason or "")
    return McpRefusal(str(error), error.code, error.details, error.reason or "")


def cancelled_answer(request: Json) -> Json:
    """Return the response to a question that was not answered in time."""
    if request["method"] == "elicitation/create":
        return {"result": {"action": "cancel"}}
    return _error(-1, "The user did not answer in time")


def _error(code: int, message: str) -> Json:
    return {"error": {"code": code, "message": message}}


def _encode(outcome: CallOutcome) -> bytes:
    return json.encode(recorded(outcome))


def _decode(value: bytes) -> CallOutcome:
    outcome = outcome_from_json(json.decode(value))
    assert isinstance(outcome, Result | McpRefusal | Questions), "as `_encode` wrote it"
    return outcome


async def _set_log_level(connection: Connection, level: str | None) -> None:
    if level is None:
        return
    try:
        await connection.set_log_level(level)
    except ClientError as error:
        log.debug("a server refused a log level", exc_info=error)
