"""One call of an older server, from its request to its result (`mcp.held`).

    the server asks ──▶ outcome: the questions ──▶ another process can continue the call: leave it
                                               └─▶ else wait for the row with the answers, answer the
                                                   server, send heartbeats ──▶ the next outcome

The last outcome is the result or an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from msgspec import structs
from msgspec.structs import replace

from roundgate import json
from roundgate.backends.mcp.held_rows import (
    FIRST_POLL_S,
    HEARTBEAT_S,
    LONGEST_POLL_S,
    LOST_MS,
    CallRows,
)
from roundgate.backends.service_tasks import check_request
from roundgate.client.connection import Connection
from roundgate.client.link import Link
from roundgate.client.messages import Listener
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    ClientError,
    HttpRefused,
    QuotaExceeded,
    RpcError,
    ServerRefused,
    ToolError,
    Unavailable,
)
from roundgate.replay import Context, Raw

SETTLE_S: Final = 0.05
"""Seconds after a question in which further questions join its round."""
LONGEST_WORK_S: Final = 900.0
"""Seconds that a server may work on answers until its next question or result; the caller may have
left."""
FORGOTTEN: Final = frozenset({400, 404})
"""HTTP statuses with which a server refuses a session or an event that it does not know."""

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

log = logging.getLogger("roundgate.backends")


class Holder(Protocol):
    """The calls of one server in this process (`held.HeldCalls`)."""

    server: str
    clock: Clock
    can_hold: bool
    convert_error: Callable[[ClientError], BackendError]

    def expire_later(self, context: Context, questions: Json) -> None: ...
    def has_room(self, call: HeldCall) -> bool: ...
    def hold(self, call: HeldCall) -> None: ...
    def forget(self, call: HeldCall) -> None: ...
    async def return_session(self, call: HeldCall, *, is_clean: bool) -> None: ...


@dataclass(eq=False)
class HeldCall:
    """A call, from its request to its result."""

    calls: Holder
    context: Context
    owner: str
    connection: Connection
    call_rows: CallRows
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
            **structs.asdict(position),
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
            return {"error": LATE_RESULT.format(server=self.calls.server)}
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
            return refusal(self.calls.convert_error(error))
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
                future.set_result(cancelled_answer(request))

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
            return cancelled_answer(request)
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


def refusal(error: BackendError) -> Json:
    """Return the outcome for an error: `{"error": text}`, with the `code` and `data` of a JSON-RPC
    error."""
    if not isinstance(error, ServerRefused):
        return {"error": str(error)}
    return {"error": str(error), "code": error.code, "data": error.details}


def cancelled_answer(request: Json) -> Json:
    """Return the response to a question that was not answered in time."""
    if request["method"] == "elicitation/create":
        return {"result": {"action": "cancel"}}
    return _error(-1, "The user did not answer in time")


def _error(code: int, message: str) -> Json:
    return {"error": {"code": code, "message": message}}
