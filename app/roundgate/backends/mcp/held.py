"""Calls of older servers in sessions of their callers, during which the server may ask the user; any
replica can take the answers.

A server of a revision before 2026-07-28 asks on the stream of the call, and sends the result on the
same stream. If the server keeps the events of its streams, the process that made the call leaves
the session, and the sealed state has the session, the last event and the ids of the questions:

    round 1, any process    tools/call ──▶ the server asks ──▶ outcome 0: questions and position
    round 2, any process    row a0: the answers ──▶ answers to the session, GET with Last-Event-ID ──▶ outcome 1

Otherwise the process that made the call, its holder, keeps the stream open:

    round 1, the holder     tools/call ──▶ the server asks ──▶ outcome 0: the questions, in the sealed state
    round 2, any process    row a0: the answers ──▶ the holder reads them, answers the server, sends heartbeats
                            row 1: outcome 1, the result or further questions ◀── the holder writes it

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
from typing import Any, Final

from msgspec.structs import asdict, replace

from roundgate import json
from roundgate.auth import Principal, task_owner
from roundgate.backends.mcp.held_call import HeldCall, cancelled_answer
from roundgate.backends.mcp.held_rows import (
    FIRST_POLL_S,
    LONGEST_POLL_S,
    LOST_MS,
    CallRows,
    Silence,
)
from roundgate.backends.mcp.held_sessions import HeldSessions, MakeConnection
from roundgate.client.connection import Connection
from roundgate.client.link import Link, Position
from roundgate.client.messages import META, Listener
from roundgate.client.sender import Headers
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    ClientError,
    QuotaExceeded,
    ToolError,
    Unavailable,
)
from roundgate.replay import Context, run_of

KEEP_MS: Final = 900_000
"""Milliseconds for which rows stay after the wait for answers, so that a round can be repeated."""
SHED_MS: Final = 1_000
"""Milliseconds before the deadline of a round at which it ends without an outcome; a retry waits for
the outcome."""
SHARE: Final = 5
"""The divisor that limits one caller to a share of the calls of a process; at least one call."""
MAX_EXPIRING: Final = 1_000
"""The maximum number of calls that are not held whose questions a process cancels when the time for
answers ends. Beyond it, the oldest call stays open until the server ends it."""

LOST: Final = (
    "The process that held this call at {server} has died, and the call's result is lost. The call may "
    "have taken effect; check before you repeat it"
)
LATE: Final = (
    "The questions of {server} were answered too late: they were open for longer than held_s, and the "
    "gateway cancelled them. The call may have taken effect; check before you repeat it"
)
ANSWERED: Final = "These questions of {server} were already answered, with different answers"

log = logging.getLogger("roundgate.backends")


def can_hold(context: Context) -> bool:
    """Return whether a call has rows, through which any process can answer its questions."""
    return run_of(context).call.rows_of is not None


class HeldCalls:
    """The calls of one older server in sessions of their callers, with this process as the holder of
    calls with questions.

    Args:
        server: the server's name for error texts.
        make_connection: makes a connection.
        convert_error: returns an error of the client library as a `BackendError`.
        caller_headers: returns the headers that tell who calls.
        on_refused: is called with the error of a call that the server refused.
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
        on_refused: Callable[[ClientError], Awaitable[None]],
        caller_headers: Callable[[Principal], Headers],
        clock: Clock,
        *,
        max_calls: int,
        held_s: float,
        can_hold: bool,
    ) -> None:
        self.server = server
        self.can_hold = can_hold
        self.convert_error = convert_error
        self._on_refused = on_refused
        self._caller_headers = caller_headers
        self.clock = clock
        self.held_s = held_s
        self.may_ask = True
        """Whether sessions declare the capabilities of the client, so that the server may ask."""
        self._make_connection = make_connection
        self._max_calls = max_calls
        self._held: dict[str, HeldCall] = {}
        self._continued: dict[tuple[str, int], HeldCall] = {}
        """The calls that continue from a position, by id and the number of the answered outcome."""
        self._running: set[HeldCall] = set()
        """All calls, also those that have not asked."""
        self._expiring: OrderedDict[tuple[str, int], tuple[str, asyncio.Task[None]]] = OrderedDict()
        """The owners of calls that are not held, and the tasks that cancel their questions once the
        time for answers ends, by id and the number of the outcome."""
        self._sessions = HeldSessions(server, make_connection, clock, keeps_idle=can_hold)
        self._asking: set[str] = set()
        """The tools of a server of 2026-07-28 that ask in older revisions only; see `mcp.eras`."""

    def has_to_ask(self, tool: str) -> bool:
        """Return whether a tool of a server of 2026-07-28 asks in older revisions only."""
        return tool in self._asking

    async def find(self, context: Context, tool: str) -> bool:
        """Return whether the server opens a session of an older revision; if so, `tool` is called in
        such sessions from now on."""
        owner = task_owner(run_of(context).call.principal)
        try:
            self._sessions.close(await self._sessions.take(owner, {}))
        except (ClientError, BackendError):
            return False
        if tool not in self._asking:
            self._asking.add(tool)
            fields = {"backend": self.server, "tool": tool}
            log.warning("a tool asks in an older revision", extra={"fields": fields})
        return True

    async def begin(self, context: Context, method: str, params: Json, listener: Listener) -> Json:
        """Make a call. Return `{"result": …}`, or the questions: `{"inputRequests": …, "state":
        None, "held": id, "number": 0}`, with the member `position` unless this process holds the call.

        Raises:
            ClientError, BackendError: the call failed.
        """
        call = run_of(context).call
        assert call.rows_of is not None, "callers check `can_hold`"
        owner = task_owner(call.principal)
        capabilities = (listener.capabilities or {}) if self.may_ask else {}
        listener = replace(listener, capabilities=capabilities)
        connection = await self._sessions.take(owner, capabilities)
        try:
            await _set_log_level(connection, (listener.meta or {}).get(f"{META}logLevel"))
        except BaseException:
            self._sessions.close(connection)
            raise
        held_call = HeldCall(
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
        except ClientError as error:
            await self._on_refused(error)
            raise
        finally:
            held_call.attach(None)

    async def answer(
        self,
        context: Context,
        questions: Json,
        answers: Mapping[str, Any],
        notify: Callable[[str, Json], Any],
    ) -> Json:
        """Answer the questions of a call, and return its next outcome as `begin` does, or the JSON-RPC
        error of the server as `refusal`. Shortly before the deadline, return the questions with the member
        `pending`: the next round waits again.

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
        silence = Silence(**questions.get("pending", {"since_ms": self.clock.now_ms()}))
        try:
            async with asyncio.timeout(limit_s):
                outcome = await self._answer(context, questions, answers, notify, silence)
        except TimeoutError:
            return {**questions, "pending": asdict(silence)}
        message = outcome.get("error")
        if message is not None and "code" not in outcome:
            raise ToolError(message)
        return outcome

    async def _answer(
        self,
        context: Context,
        questions: Json,
        answers: Mapping[str, Any],
        notify: Callable[[str, Json], Any],
        silence: Silence,
    ) -> Json:
        call_rows, number = self._rows(context, questions["held"]), questions["number"]
        position = questions.get("position")
        await self._store_answers(call_rows, number, answers, position)
        self._stop_expiring((call_rows.id, number))
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
        expiring = [task for _, task in self._expiring.values()]
        for task in expiring:
            task.cancel()
        tasks = [held_call.task for held_call in running]
        await asyncio.gather(*tasks, *expiring, return_exceptions=True)
        await self._sessions.aclose()

    def _rows(self, context: Context, call_id: str, keep_ms: int = KEEP_MS) -> CallRows:
        call = run_of(context).call
        assert call.rows_of is not None, "callers check `can_hold`"
        return CallRows(call.rows_of(call.principal), call_id, self.clock, keep_ms)

    def _start(self, held_call: HeldCall) -> None:
        self._running.add(held_call)
        held_call.task.add_done_callback(lambda _: self._running.discard(held_call))

    # -- calls that are not held -------------------------------------------------------------------

    async def _continue(
        self, context: Context, questions: Json, answers: Mapping[str, Json]
    ) -> HeldCall:
        """Continue a call from the position of its questions, with the responses to them by key,
        unless another round in this process does so already."""
        key = questions["held"], questions["number"]
        connection = await self._make_connection({})
        if (running := self._continued.get(key)) is not None:
            return running
        link, sealed = connection.link, questions["position"]
        assert isinstance(link, Link), "only the sessions of HTTP servers are left"
        position = Position(**{name: sealed[name] for name in Position.__struct_fields__})
        responses = {sealed["ids"][name]: answer for name, answer in answers.items()}
        held_call = HeldCall(
            self,
            context,
            task_owner(run_of(context).call.principal),
            connection,
            self._rows(context, questions["held"]),
            lambda listener: link.resume(position, responses, listener),
            Listener(
                meta={"progressToken": sealed["token"]},
                caller_headers=self._caller_headers(run_of(context).call.principal),
            ),
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
        key = questions["held"], questions["number"]
        if not self.can_hold or key in self._expiring:
            return
        owner = task_owner(run_of(context).call.principal)
        owned = [other for other, (its_owner, _) in self._expiring.items() if its_owner == owner]
        if len(owned) >= max(1, MAX_EXPIRING // SHARE):
            self._stop_expiring(owned[0])
        elif len(self._expiring) >= MAX_EXPIRING:
            self._stop_expiring(next(iter(self._expiring)))
        task = asyncio.create_task(self._expire(context, questions))
        self._expiring[key] = owner, task
        task.add_done_callback(lambda _: self._expiring.pop(key, None))

    def _stop_expiring(self, key: tuple[str, int]) -> None:
        """Undo `expire_later` for questions that have answers, or for which there is no room."""
        if key in self._expiring:
            _, task = self._expiring.pop(key)
            task.cancel()

    async def _expire(self, context: Context, questions: Json) -> None:
        until_ms = questions["position"]["until_ms"]
        await self.clock.sleep(max(0, until_ms - self.clock.now_ms()) / 1000)
        call_rows = self._rows(context, questions["held"])
        with suppress(Unavailable, BackendError):
            key = call_rows.key(f"a{questions['number']}")
            if await call_rows.rows.put_new(key, b"null", call_rows.forget_ms):
                requests: Json = questions["inputRequests"]
                answers = {key: cancelled_answer(request) for key, request in requests.items()}
                await self._continue(context, questions, answers)

    # -- answers and outcomes ----------------------------------------------------------------------

    async def _store_answers(
        self,
        call_rows: CallRows,
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

    async def _stored_outcome(self, call_rows: CallRows, number: int) -> Json | None:
        """Return an outcome that a process has written, or `None`."""
        try:
            return (await call_rows.read_outcome(number))[0]
        except Unavailable:  # the server has the result, too
            return None

    async def _wait_for_outcome(self, call_rows: CallRows, number: int, silence: Silence) -> Json:
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

    def has_room(self, call: HeldCall) -> bool:
        """Return whether a call may wait for answers, within the limits of the process and caller."""
        if call.call_rows.id in self._held:
            return True
        owned = sum(other.owner == call.owner for other in self._held.values())
        return len(self._held) < self._max_calls and owned < max(1, self._max_calls // SHARE)

    def hold(self, call: HeldCall) -> None:
        """Register a call that waits for answers, until its end."""
        self._held[call.call_rows.id] = call

    def forget(self, call: HeldCall) -> None:
        """Unregister a call."""
        self._held.pop(call.call_rows.id, None)

    async def return_session(self, call: HeldCall, *, is_clean: bool) -> None:
        """Keep the session of a call for the next call of its caller if it is clean and this process
        can hold it; otherwise close it."""
        capabilities = call.listener.capabilities or {}
        await self._sessions.give_back(call.connection, call.owner, capabilities, is_clean=is_clean)


async def _outcome_for(
    held_call: HeldCall, number: int, notify: Callable[[str, Json], Any]
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
