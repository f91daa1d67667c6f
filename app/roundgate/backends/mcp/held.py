"""Calls of older servers that ask their user, answered at any replica.

A server of a revision before 2026-07-28 asks on the stream of the call, and sends the result on that
stream. The process that made the call holds the stream; any process can answer:

    round 1, here        tools/call ──▶ the server asks ──▶ outcome 0: the questions, in our sealed state
    round 2, anywhere    row a0: the answers ──▶ the holder reads them, answers the server, beats
                         row 1: outcome 1, the result or further questions ◀── the holder writes it

    rows of the caller, under the call's random id
    a0, a1 …   answers; the first that is inserted counts, also if it says that nobody answered in time
    1, 2 …     outcomes, so that a repeated round gets the same one
    beat       changes every `BEAT_S` seconds while the server works on answers

A row is written only once a call has asked. If the holder dies, its beat stops: the next round ends
with an error that says that the call may have taken effect, and the call is never made again. A
session belongs to one caller and has one call at a time, because nothing else says which call a
question belongs to.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from roundgate import json
from roundgate.auth import task_owner
from roundgate.backends.base import check_request
from roundgate.backends.mcp.server import is_over
from roundgate.client.connection import Connection
from roundgate.client.messages import META, Listener
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    ClientError,
    QuotaExceeded,
    ToolError,
    Unavailable,
)
from roundgate.replay import Context, Raw, Rows, run_of

SETTLE_S: Final = 0.05
"""Seconds after a question in which further ones join its round."""
BEAT_S: Final = 2.0
"""Seconds between two beats of a holder."""
LOST_MS: Final = 10_000
"""Milliseconds without a beat after which a holder counts as dead."""
FIRST_POLL_S: Final = 0.1
LONGEST_POLL_S: Final = 1.0
"""Seconds between two looks at a row: of the holder for answers, of a round for an outcome."""
KEEP_MS: Final = 900_000
"""Milliseconds for which rows are kept after the wait for answers, for rounds that are repeated."""
LONGEST_WORK_S: Final = 900.0
"""Seconds that a server may work on answers before it asks again or ends; nobody may be waiting."""
CHUNK: Final = 250_000
"""Bytes of an outcome in one row."""
MAX_CHUNKS: Final = 80
MAX_IDLE: Final = 32
"""Sessions that are kept for the next call of their caller."""
IDLE_MS: Final = 60_000
"""Milliseconds for which they are kept, and at most twice that."""
SHARE: Final = 5
"""One caller may hold a fifth of the calls of a process, and at least one."""

LOST: Final = (
    "The process that held this call at {server} is gone, and so is the call's result. The call may "
    "have taken effect; find out before you make it again"
)
STOPPED: Final = (
    "The process that held this call at {server} was stopped. The call may have taken effect; find "
    "out before you make it again"
)
FAILED: Final = (
    "The call at {server} failed in the gateway, for a reason that its log has. The call may have "
    "taken effect; find out before you make it again"
)
LATE: Final = (
    "The questions of {server} were answered too late: they were open for longer than held_s. The "
    "server was told that they were cancelled; what it did then is not known"
)
ANSWERED: Final = "These questions of {server} have been answered before, with other answers"
BUSY: Final = "Too many calls wait for their users now (max_held_calls); try again later"

log = logging.getLogger("roundgate.backends")

MakeConnection: TypeAlias = Callable[[Json], Awaitable[Connection]]
"""Makes a connection of its own that declares these capabilities. Raises BackendError."""


@dataclass(frozen=True, slots=True)
class _Box:
    """The rows of one held call."""

    rows: Rows
    id: str
    clock: Clock
    keep_ms: int
    """Milliseconds for which a row is kept after its last write."""

    @property
    def forget_ms(self) -> int:
        """The end of a row that is written now."""
        return self.clock.now_ms() + self.keep_ms

    def key(self, name: str | int) -> str:
        """Return the key of a row."""
        return f"held.{self.id}.{name}"

    async def put_outcome(self, number: int, outcome: Json) -> None:
        """Write an outcome. Raise Unavailable."""
        data = json.encode(outcome)
        chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
        if len(chunks) > MAX_CHUNKS:
            outcome = {"error": "The result is too large to be handed on to another process"}
            return await self.put_outcome(number, outcome)
        for place, chunk in reversed(list(enumerate(chunks))):  # the first row says that all exist
            head = b"%d\n" % len(chunks) if place == 0 else b""
            await self.rows.put(self.key(f"{number}.{place}"), head + chunk, self.forget_ms)
        return None

    async def read_outcome(self, number: int) -> tuple[Json | None, bytes | None]:
        """Return an outcome, if it was written, and the last beat. Raise Unavailable."""
        first, beat = self.key(f"{number}.0"), self.key("beat")
        values = await self.rows.read_values([first, beat])
        if (head := values.get(first)) is None:
            return None, values.get(beat)
        count, _, data = head.partition(b"\n")
        keys = [self.key(f"{number}.{place}") for place in range(1, int(count))]
        others = await self.rows.read_values(keys) if keys else {}
        outcome: Json = json.decode(data + b"".join(others.get(key, b"") for key in keys))
        return outcome, None

    async def beat(self, number: int) -> None:
        """Write the next beat. Raise Unavailable."""
        value, key = b"%020d" % number, self.key("beat")
        if not await self.rows.put_new(key, value, self.forget_ms):
            row = await self.rows.read(key)
            if row is not None:
                await self.rows.replace(key, value, row.version, row.forget_ms)


def is_possible(context: Context) -> bool:
    """Return whether other processes could answer the questions of a call."""
    return run_of(context).call.rows_of is not None


class HeldCalls:
    """The calls of one older server that may ask, held by this process.

    Args:
        server: the server's name for error texts.
        make_connection: makes a connection.
        error_of: returns an error of the client library in the words of the gateway.
        most: calls that wait for answers at once.
        held_s: seconds for which a call waits for answers.
        clock: the clock of the process.
    """

    def __init__(
        self,
        server: str,
        make_connection: MakeConnection,
        error_of: Callable[[ClientError], BackendError],
        clock: Clock,
        *,
        most: int,
        held_s: float,
    ) -> None:
        self.server = server
        self.error_of = error_of
        self.clock = clock
        self.held_s = held_s
        self._make_connection = make_connection
        self._most = most
        self._held: dict[str, _HeldCall] = {}
        self._running: set[_HeldCall] = set()
        """All calls, also those that have not asked."""
        self._idle: OrderedDict[Connection, tuple[tuple[str, bytes], float]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        """The next look at idle sessions."""

    async def begin(self, context: Context, params: Json, listener: Listener) -> Json:
        """Make a call. Return `{"result": …}`, or the questions: `{"inputRequests": …, "state":
        None, "held": id, "number": 0}`.

        Raises:
            ClientError, BackendError: the call failed.
        """
        call = run_of(context).call
        assert call.rows_of is not None, "the caller checks `is_possible`"
        owner = task_owner(call.principal)
        key = owner, json.encode(listener.capabilities or {})
        connection = self._reused(key) or await self._opened(listener.capabilities or {})
        try:
            await _set_log_level(connection, (listener.meta or {}).get(f"{META}logLevel"))
        except BaseException:
            self._close(connection)
            raise
        keep_ms = int(self.held_s * 1000) + KEEP_MS
        box = _Box(call.rows_of(call.principal), self.clock.new_id(), self.clock, keep_ms)
        held = _HeldCall(self, context, owner, connection, box, params, listener)
        self._running.add(held)
        held.task.add_done_callback(lambda _: self._running.discard(held))
        try:
            return await held.first_outcome()
        finally:
            held.attach(None)

    async def answer(
        self,
        context: Context,
        asked: Json,
        answers: Mapping[str, Any],
        notify: Callable[[str, Json], Any],
    ) -> Json:
        """Answer the questions of a call, and return its next outcome as `begin` does.

        Args:
            context: the context of this round.
            asked: the questions, as `begin` or `answer` returned them.
            answers: the answers by key.
            notify: takes the call's notifications, if this process holds it.

        Raises:
            ToolError: the call failed, its holder is gone, or its questions were answered before.
        """
        call = run_of(context).call
        assert call.rows_of is not None, "a call that asked has rows"
        box = _Box(call.rows_of(call.principal), asked["held"], self.clock, KEEP_MS)
        number: int = asked["number"]
        await self._put_answers(box, number, answers)
        held = self._held.get(box.id)
        if held is None:
            outcome = await self._outcome_elsewhere(box, number + 1)
        else:
            held.attach(notify)
            try:
                outcome = await held.outcome(number + 1)
            finally:
                held.attach(None)
        message = outcome.get("error")
        if message is not None:
            raise ToolError(message)
        return outcome

    def progress_token(self, asked: Json) -> str | None:
        """Return the progress token of a call that this process holds, if it has one."""
        held = self._held.get(asked["held"])
        return None if held is None else (held.listener.meta or {}).get("progressToken")

    async def aclose(self) -> None:
        """End the calls, and tell those who wait for them; close the sessions."""
        running = list(self._running)
        for each in running:
            each.stop()
        await asyncio.gather(*(each.task for each in running), return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*map(_closed, idle), *self._closing, return_exceptions=True)

    # -- answers and outcomes ----------------------------------------------------------------------

    async def _put_answers(self, box: _Box, number: int, answers: Mapping[str, Any]) -> None:
        """Insert the answers, unless the same ones were inserted before."""
        key, value = box.key(f"a{number}"), json.encode(dict(answers))
        while True:
            try:
                if await box.rows.put_new(key, value, box.forget_ms):
                    return
                row = await box.rows.read(key)
                break
            except QuotaExceeded as error:
                raise ToolError(str(error)) from None
            except Unavailable:  # the call's deadline ends this; a repeated insert does no harm
                await self.clock.sleep(LONGEST_POLL_S)
        known = None if row is None else json.decode(row.value)
        if known is None:
            raise ToolError(LATE.format(server=self.server))
        if known != json.decode(value):
            raise ToolError(ANSWERED.format(server=self.server))

    async def _outcome_elsewhere(self, box: _Box, number: int) -> Json:
        """Return an outcome that another process writes.

        Raises:
            ToolError: the process is gone.
        """
        poll_s, seen = FIRST_POLL_S, None
        since_ms = self.clock.monotonic_ms()
        while True:
            try:
                outcome, beat = await box.read_outcome(number)
            except Unavailable:  # the holder cannot beat either
                since_ms = self.clock.monotonic_ms()
            else:
                if outcome is not None:
                    return outcome
                if beat != seen:
                    seen, since_ms = beat, self.clock.monotonic_ms()
                elif self.clock.monotonic_ms() - since_ms > LOST_MS:
                    raise ToolError(LOST.format(server=self.server))
            await self.clock.sleep(poll_s)
            poll_s = min(poll_s * 1.5, LONGEST_POLL_S)

    # -- held calls --------------------------------------------------------------------------------

    def has_room(self, held: _HeldCall) -> bool:
        """Return whether a call may begin to wait for answers."""
        if held.box.id in self._held:
            return True
        of_owner = sum(each.owner == held.owner for each in self._held.values())
        return len(self._held) < self._most and of_owner < max(1, self._most // SHARE)

    def hold(self, held: _HeldCall) -> None:
        """Hold a call that has asked, until it has ended."""
        self._held[held.box.id] = held

    def forget(self, held: _HeldCall) -> None:
        """Hold a call no longer."""
        self._held.pop(held.box.id, None)

    def give_back(self, held: _HeldCall, *, is_clean: bool) -> None:
        """Keep the session of a call for the next one, if nothing of the call is left in it."""
        if not is_clean:
            self._close(held.connection)
            return
        key = held.owner, json.encode(held.listener.capabilities or {})
        self._idle[held.connection] = key, self.clock.monotonic_ms()
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(IDLE_MS / 1000, self._look_at_idle)
        if len(self._idle) > MAX_IDLE:
            self._close(self._idle.popitem(last=False)[0])

    # -- sessions ----------------------------------------------------------------------------------

    def _reused(self, key: tuple[str, bytes]) -> Connection | None:
        """Return a session of a caller with these capabilities that no call uses."""
        self._close_old()
        for connection in reversed(list(self._idle)):
            if self._idle[connection][0] == key:
                del self._idle[connection]
                if not is_over(connection):
                    return connection
                self._close(connection)
        return None

    async def _opened(self, capabilities: Json) -> Connection:
        connection = await self._make_connection(capabilities)
        try:
            await connection.connect()
        except BaseException:
            await asyncio.shield(_closed(connection))
            raise
        return connection

    def _look_at_idle(self) -> None:
        """Close old sessions, and look again while there are others."""
        self._timer = None
        self._close_old()
        if self._idle:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(IDLE_MS / 1000, self._look_at_idle)

    def _close_old(self) -> None:
        oldest_ms = self.clock.monotonic_ms() - IDLE_MS
        for connection in [each for each, (_, ms) in self._idle.items() if ms < oldest_ms]:
            del self._idle[connection]
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        closing = asyncio.create_task(_closed(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _set_log_level(connection: Connection, level: str | None) -> None:
    """Have the server send log messages of this level and above, if it can."""
    server = connection.server
    if level is None or server is None or "logging" not in server.capabilities:
        return
    try:
        await connection.request("logging/setLevel", {"level": level})
    except ClientError as error:
        log.debug("a server did not take a log level", exc_info=error)


async def _closed(connection: Connection) -> None:
    with suppress(ClientError):
        await connection.link.end_session()


@dataclass(eq=False)
class _HeldCall:
    """One call, from its request to its result."""

    calls: HeldCalls
    context: Context
    owner: str
    connection: Connection
    box: _Box
    params: Json
    listener: Listener
    _open: dict[str, tuple[Json, asyncio.Future[Json]]] = field(default_factory=dict)
    """Questions without an answer, by key."""
    _unasked: list[str] = field(default_factory=list)
    """Keys of the questions that no outcome has yet."""
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when this process has written answers."""
    _outcomes: dict[int, asyncio.Future[Json]] = field(default_factory=dict)
    _questions: int = 0
    _beats: int = 0
    _is_stopped: bool = False
    _failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._notify = self.listener.on_notification
        self.task = asyncio.create_task(self._conduct())

    async def first_outcome(self) -> Json:
        """Return the first outcome; cancel the call if its caller is cancelled before."""
        try:
            outcome = await self.outcome(0)
        except asyncio.CancelledError:
            self.task.cancel()
            raise
        if "error" in outcome:
            raise self._failure or ToolError(STOPPED.format(server=self.calls.server))
        return outcome

    async def outcome(self, number: int) -> Json:
        """Return an outcome once it is known here, and let the holder look for answers now."""
        self._woken.set()
        return await asyncio.shield(self._future(number))

    def attach(self, notify: Callable[[str, Json], Any] | None) -> None:
        """Give the call's notifications to a round, or to none."""
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

    async def _conduct(self) -> None:
        """Run the call to its end: outcome, answers, outcome …"""
        listener = replace(
            self.listener, on_request=self._answer_request, on_notification=self._notified
        )
        exchange = asyncio.ensure_future(
            self.connection.exchange("tools/call", self.params, listener, may_repeat=False)
        )
        number, is_given_back = 0, False
        left_ms = self.calls.held_s * 1000
        try:
            while "inputRequests" in (outcome := await self._next(exchange, number)):
                await self._publish(number, outcome)
                since_ms = self.calls.clock.monotonic_ms()
                answers = await self._answers(exchange, number, since_ms + left_ms)
                left_ms -= self.calls.clock.monotonic_ms() - since_ms
                self._resolve(outcome["inputRequests"], answers)
                number += 1
            # before its caller learns the result, and calls again
            self.calls.give_back(self, is_clean="result" in outcome and not self._open)
            is_given_back = True
            await self._publish(number, outcome)
        except asyncio.CancelledError:
            if self._is_stopped:
                await self._publish_stopped(number)
            raise
        finally:
            exchange.cancel()
            try:
                await asyncio.gather(exchange, return_exceptions=True)
            finally:  # a second cancellation may come
                if not is_given_back:
                    self.calls.give_back(self, is_clean=False)
                self.calls.forget(self)

    async def _publish_stopped(self, number: int) -> None:
        """Make known that the call has ended here, as the outcome that a round waits for."""
        number += self._future(number).done()
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_S):
                await self._publish(number, {"error": STOPPED.format(server=self.calls.server)})

    async def _next(self, exchange: asyncio.Future[Json], number: int) -> Json:
        """Return the next outcome: the result, an error, or questions."""
        asked = asyncio.ensure_future(self._asked.wait())
        beating = asyncio.ensure_future(self._beating()) if number else None
        limit_s = LONGEST_WORK_S if number else None
        try:
            waited: set[asyncio.Future[Any]] = {exchange, asked}
            await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not exchange.done():
                await asyncio.wait({exchange}, timeout=SETTLE_S)
        finally:
            asked.cancel()
            if beating is not None:
                beating.cancel()
        self._asked.clear()
        if exchange.done():
            return self._ended(exchange)
        if not self._unasked:
            return {"error": f"{self.calls.server} did not end within {LONGEST_WORK_S:g} s"}
        keys, self._unasked = self._unasked, []
        requests = {key: self._open[key][0] for key in keys}
        return {"inputRequests": requests, "state": None, "held": self.box.id, "number": number}

    def _ended(self, exchange: asyncio.Future[Json]) -> Json:
        try:
            return {"result": exchange.result()}
        except ClientError as error:
            self._failure = error
            return {"error": str(self.calls.error_of(error))}
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

    async def _publish(self, number: int, outcome: Json) -> None:
        """Make an outcome known: the first here, later ones everywhere."""
        if number:
            await self._store(number, outcome)
        future = self._future(number)
        if not future.done():
            future.set_result(outcome)

    async def _store(self, number: int, outcome: Json) -> None:
        """Write an outcome; retry for `LOST_MS`, in which other processes hold the call for alive."""
        until_ms = self.calls.clock.monotonic_ms() + LOST_MS
        while True:
            try:
                return await self.box.put_outcome(number, outcome)
            except Unavailable as error:
                if isinstance(error, QuotaExceeded) and "result" in outcome:
                    outcome = {"error": f"The result cannot be handed on. {error}"}
                elif self.calls.clock.monotonic_ms() >= until_ms:
                    fields = {"backend": self.calls.server, "error": str(error)}
                    log.warning(
                        "the outcome of a held call could not be stored", extra={"fields": fields}
                    )
                    return None
                else:
                    await self.calls.clock.sleep(LONGEST_POLL_S)

    async def _beating(self) -> None:
        while True:
            self._beats += 1
            with suppress(Unavailable):
                await self.box.beat(self._beats)
            await asyncio.sleep(BEAT_S)

    async def _answers(
        self, exchange: asyncio.Future[Json], number: int, until_ms: float
    ) -> Mapping[str, Any] | None:
        """Return the answers to the questions of an outcome, once some process has inserted them;
        `None` if the wait is over, or the call."""
        clock, key = self.calls.clock, self.box.key(f"a{number}")
        poll_s = FIRST_POLL_S
        while not exchange.done():
            is_late = clock.monotonic_ms() >= until_ms
            try:
                if is_late and await self.box.rows.put_new(key, b"null", self.box.forget_ms):
                    return None
                if (row := await self.box.rows.read(key)) is not None:
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
            if (known := self._open.pop(key, None)) is None or known[1].done():
                continue
            if answers is not None and key in answers:
                known[1].set_result({"result": answers[key]})
            elif request["method"] == "elicitation/create":
                known[1].set_result({"result": {"action": "cancel"}})
            else:
                known[1].set_result(_error(-1, "The user did not answer in time"))

    # -- from the server ---------------------------------------------------------------------------

    async def _notified(self, method: str, params: Json) -> None:
        if self._notify is not None:
            await self._notify(method, params)

    async def _answer_request(self, request_id: Any, method: str, params: Json) -> Json:
        """Return the answer to a request of the server: a question waits for its user."""
        if method == "ping":
            return {"result": {}}
        request = _question(method, params)
        try:
            check_request(request)
            is_supported = self.context.supports(Raw(request))
        except (ValueError, KeyError, TypeError, AttributeError):
            return _error(-32602, f"{method[:40]} is not possible in this form")
        if not is_supported:
            return _error(-32601, f"The client did not declare that it can answer {method}")
        if not self.calls.has_room(self):
            return _error(-32000, BUSY)
        self.calls.hold(self)
        self._questions += 1
        key = f"question-{self._questions}"
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._open[key] = request, future
        self._unasked.append(key)
        self._asked.set()
        try:
            return await future
        finally:
            self._open.pop(key, None)


def _question(method: str, params: Json) -> Json:
    """Return a request of an older server as an input request."""
    left_out = ("_meta", "task", "elicitationId")
    kept = {name: value for name, value in params.items() if name not in left_out}
    return {"method": method, "params": kept} if kept else {"method": method}


def _error(code: int, message: str) -> Json:
    return {"error": {"code": code, "message": message}}
