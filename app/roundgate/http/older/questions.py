"""Questions to clients of a session: sent on the stream of the call, answered at any replica.

    holder    question ──▶ client ──answer──▶ any replica: one insert, 202
              └──────── reads the row ◀───────────┘          ▶ replay ▶ … ▶ result

The replica that takes an answer does not know the call: the sealed id of the question proves that
this session was asked. The first answer counts. The holder polls for the rows, less and less often,
and reads them immediately if the answer came to its own process.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import CallCancelled, InvalidRequest, ToolError, Unavailable
from roundgate.protocol import RequestId, Response
from roundgate.storage import RowsOf, SessionStore
from roundgate.tokens.ids import QuestionId, SessionFacts, StreamIds

FIRST_LOOK_S: Final = 0.05
LAST_LOOK_S: Final = 1.0
"""The longest pause between two reads for an answer, in seconds; the first is `FIRST_LOOK_S`."""
LEEWAY_MS: Final = 60_000
"""How much later than the end of the wait an answer is accepted, in milliseconds, because the clocks
of replicas differ; it is kept as much longer."""
MAX_MESSAGE: Final = 500
"""The longest shown reason of a client that cannot answer, in characters."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The questions of one round of one call."""

    round: str
    requests: Mapping[str, Any]
    """The questions by key, in the order of asking."""
    until_ms: int
    """When the wait for answers ends, in milliseconds since the epoch."""


class Questions:
    """The questions of this process, and the answers that arrive here, to any replica's questions.

    Args:
        rows_of: returns the rows of a caller, which keep its answers.
        ids: makes and opens the ids of questions.
        clock: the clock of the process.
        max_open: the limit on calls that wait here at once.
        max_per_caller: the limit on waiting calls of one caller.
    """

    def __init__(
        self,
        rows_of: RowsOf,
        ids: StreamIds,
        clock: Clock,
        *,
        max_open: int,
        max_per_caller: int,
    ) -> None:
        self.ids = ids
        self._rows_of = rows_of
        self._clock = clock
        self._max_open = max_open
        self._max_per_caller = max_per_caller
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        """The events of waiting requests, by round; several may continue one round."""
        self._of_caller: Counter[tuple[str, str, str]] = Counter()
        self._closing = False

    @property
    def open(self) -> int:
        """Return how many calls wait here."""
        return self._of_caller.total()

    @property
    def is_closing(self) -> bool:
        """Return whether the server is shutting down."""
        return self._closing

    def close(self) -> None:
        """Make every call stop waiting, now and later."""
        self._closing = True
        self._wake(*self._waiting)

    def ask(self, asked: Asked, key_number: int, session: SessionFacts, owner: Principal) -> str:
        """Return the JSON-RPC id for one question of a round.

        Args:
            asked: the questions of the round.
            key_number: the position of the question, from 0.
            session: the session that is asked.
            owner: the caller in that session.
        """
        question = QuestionId(session.id, asked.round, key_number, asked.until_ms)
        return self.ids.seal_question(question, owner)

    async def take(self, response: Response, session: SessionFacts, owner: Principal) -> None:
        """Store an answer, unless the question has one already.

        Args:
            response: the client's response.
            session: the session that it came in.
            owner: the caller in that session.

        Raises:
            InvalidRequest: this session was not asked such a question, or no call waits for its
                answer any more.
            Unavailable: the answer cannot be stored now.
        """
        question = self.ids.open_question(response.id, session.id, owner)
        if question is None or self._clock.now_ms() > question.until_ms + LEEWAY_MS:
            raise InvalidRequest(
                "This session was not asked a question with this id, or too long ago, so there is "
                "nothing to answer"
            )
        said = {"error": response.error} if response.result is None else {"result": response.result}
        key, forget_ms = _answer_key(question), question.until_ms + 2 * LEEWAY_MS
        await self._rows_of(owner).put_new(key, json.encode(said), forget_ms)
        self._wake(question.round)

    async def cancel(
        self, request_id: RequestId, session: SessionFacts, owner: Principal, keep_s: float
    ) -> None:
        """Store the cancellation of a call, for the replica that runs the call.

        Args:
            request_id: the id of the call.
            session: the session of the call.
            owner: the caller in that session.
            keep_s: seconds for which the call may still be running.

        Raises:
            Unavailable: the cancellation cannot be stored now.
        """
        forget_ms = self._clock.now_ms() + int(keep_s * 1000)
        await self._rows_of(owner).put_new(_cancel_key(session, request_id), b"{}", forget_ms)
        self._wake(*self._waiting)

    async def is_cancelled(
        self, request_id: RequestId, session: SessionFacts, owner: Principal
    ) -> bool:
        """Return whether a call has been cancelled, at any replica.

        Raises:
            Unavailable: the store cannot be reached.
        """
        return await self._rows_of(owner).read(_cancel_key(session, request_id)) is not None

    @contextmanager
    def waiting(self, asked: Asked, owner: Principal) -> Iterator[asyncio.Event]:
        """Count a call as waiting in this block, and yield an event that is set when there may be
        an answer or a cancellation. Raises as `room`."""
        news = asyncio.Event()
        with self.room(owner):
            self._waiting[asked.round].add(news)
            try:
                yield news
            finally:
                self._waiting[asked.round].discard(news)
                if not self._waiting[asked.round]:
                    del self._waiting[asked.round]

    @contextmanager
    def room(self, owner: Principal) -> Iterator[None]:
        """Count a request in this block as one that waits, or that runs without its client.

        Raises:
            Unavailable: too many do.
        """
        if self.open >= self._max_open or self._of_caller[owner.identity] >= self._max_per_caller:
            raise Unavailable(
                "Too many calls wait for answers (http.max_streams, http.max_streams_per_caller);"
                " answer their questions, or cancel them, first"
            )
        self._of_caller[owner.identity] += 1
        try:
            yield
        finally:
            self._of_caller[owner.identity] -= 1
            if not self._of_caller[owner.identity]:
                del self._of_caller[owner.identity]

    async def answers(
        self,
        asked: Asked,
        news: asyncio.Event,
        request_id: RequestId,
        session: SessionFacts,
        owner: Principal,
        *,
        wait_s: float,
    ) -> dict[str, dict[str, Any]] | None:
        """Return the client's answers to all questions of a round by key, or `None` if they take
        longer than `wait_s` seconds.

        Args:
            asked: the questions.
            news: the event of `waiting`.
            request_id: the id of the call.
            session: the session that is asked.
            owner: the caller in that session.
            wait_s: the longest wait, in seconds.

        Raises:
            CallCancelled: the client has cancelled the call.
            ToolError: there was no answer in time, or the client could not answer.
        """
        keys = {
            _answer_key(QuestionId(session.id, asked.round, n, asked.until_ms)): key
            for n, key in enumerate(asked.requests)
        }
        cancelled = _cancel_key(session, request_id)
        look_s, until = FIRST_LOOK_S, self._clock.monotonic_ms() + wait_s * 1000
        while True:
            found = await _look(self._rows_of(owner), [*keys, cancelled])
            if cancelled in found:
                raise CallCancelled
            said = {key: json.decode(found[row]) for row, key in keys.items() if row in found}
            if len(said) == len(keys) or any("error" in one for one in said.values()):
                return _results(said)
            if self._clock.now_ms() > asked.until_ms:
                raise ToolError(
                    "The question of this call was not answered in time; call again to be asked again"
                )
            left_s = (until - self._clock.monotonic_ms()) / 1000
            if left_s <= 0 or self._closing:
                return None
            news.clear()
            try:
                async with asyncio.timeout(min(look_s, left_s)):
                    await news.wait()
            except TimeoutError:
                look_s = min(LAST_LOOK_S, look_s * 1.5)

    def _wake(self, *rounds: str) -> None:
        for round_ in rounds:
            for news in self._waiting.get(round_, ()):
                news.set()


async def _look(rows: SessionStore, keys: Sequence[str]) -> Mapping[str, bytes]:
    try:
        return await rows.read_values(keys)
    except Unavailable:  # the caller reads again, until its wait ends
        return {}


def _results(said: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results of answers by key; raise ToolError if one is an error."""
    for key, one in said.items():
        if (error := one.get("error")) is not None:
            message = error.get("message")
            reason = message[:MAX_MESSAGE] if isinstance(message, str) else "no reason given"
            raise ToolError(f"The client could not answer the question {key!r}: {reason}")
    return {key: one["result"] for key, one in said.items()}


def _answer_key(question: QuestionId) -> str:
    return f"answer.{question.session}.{question.round}.{question.number}"


def _cancel_key(session: SessionFacts, request_id: RequestId) -> str:
    return f"cancel.{session.id}.{json.digest(request_id)}"
