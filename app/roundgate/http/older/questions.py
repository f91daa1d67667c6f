"""Questions to clients of a session: asked on the stream of the call, answered at any replica.

    holder    question ──▶ client ──answer──▶ any replica: one insert, 202
              └──────── sees the row ◀────────────┘          ▶ replay ▶ … ▶ result

Nobody who takes an answer knows the call: the id of the question says, sealed, that this session
was asked it. The first answer counts. The holder looks for the rows, more and more rarely, and at
once if the answer came to its own process.
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
from roundgate.storage import SessionStore
from roundgate.tokens.ids import QuestionId, SessionFacts, StreamIds

FIRST_LOOK_S: Final = 0.05
LAST_LOOK_S: Final = 1.0
"""How long, at first and in the end, the holder waits between two looks for an answer."""
LEEWAY_MS: Final = 60_000
"""For how much longer than anybody waits for it an answer is kept."""
MAX_MESSAGE: Final = 500
"""Characters of what a client says about why it does not answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The questions of one round of one call."""

    round: str
    requests: Mapping[str, Any]
    """By their keys, in the order in which they are asked."""
    until_ms: int
    """Until when somebody waits for the answers, in milliseconds since the epoch."""


class Questions:
    """The questions that this process has asked, and the answers that come to it, whoever asked.

    Args:
        store: keeps answers.
        ids: makes and opens the ids of questions.
        clock: of the process.
        max_open: calls that wait here for answers at once.
        max_per_caller: of these, how many one caller may have.
    """

    def __init__(
        self,
        store: SessionStore,
        ids: StreamIds,
        clock: Clock,
        *,
        max_open: int,
        max_per_caller: int,
    ) -> None:
        self.ids = ids
        self._rows = store
        self._clock = clock
        self._max_open = max_open
        self._max_per_caller = max_per_caller
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        """By round; several requests may go on with the same."""
        self._of_caller: Counter[tuple[str, str, str]] = Counter()
        self._closing = False

    @property
    def open(self) -> int:
        """How many calls wait here for answers."""
        return self._of_caller.total()

    @property
    def is_closing(self) -> bool:
        """Whether the server is shutting down."""
        return self._closing

    def close(self) -> None:
        """Have every call stop waiting."""
        self._closing = True
        self._wake(*self._waiting)

    def ask(self, asked: Asked, key_number: int, session: SessionFacts, owner: Principal) -> str:
        """The JSON-RPC id for one question of a round.

        Args:
            asked: the questions of the round.
            key_number: which of them, from 0.
            session: whose client is asked.
            owner: who is calling in it.
        """
        return self.ids.seal_question(QuestionId(session.id, asked.round, key_number), owner)

    async def take(
        self, response: Response, session: SessionFacts, owner: Principal, keep_s: float
    ) -> None:
        """Keep an answer; one that was given before stays.

        Args:
            response: what the client sent.
            session: in which it came.
            owner: who is calling in it.
            keep_s: seconds for which somebody may still wait for it.

        Raises:
            InvalidRequest: nobody asked this session.
            Unavailable: it cannot be kept just now.
        """
        question = self.ids.open_question(response.id, session.id, owner)
        if question is None:
            raise InvalidRequest(
                "This session was not asked a question with this id, so there is nothing to answer"
            )
        said = {"error": response.error} if response.result is None else {"result": response.result}
        forget_ms = self._clock.now_ms() + int(keep_s * 1000) + LEEWAY_MS
        await self._rows.put_new(_answer_key(question), json.encode(said), forget_ms)
        self._wake(question.round)

    async def cancel(self, request_id: RequestId, session: SessionFacts, keep_s: float) -> None:
        """Tell whoever holds a call of this session that nobody waits for it any more.

        Args:
            request_id: of the call.
            session: that the call was made in.
            keep_s: seconds for which the call may still be running.

        Raises:
            Unavailable: that cannot be kept just now.
        """
        forget_ms = self._clock.now_ms() + int(keep_s * 1000)
        await self._rows.put_new(_cancel_key(session, request_id), b"{}", forget_ms)
        self._wake(*self._waiting)

    async def is_cancelled(self, request_id: RequestId, session: SessionFacts) -> bool:
        """Whether a call has been cancelled, at any replica. Raises Unavailable."""
        return await self._rows.read(_cancel_key(session, request_id)) is not None

    @contextmanager
    def waiting(self, asked: Asked, owner: Principal) -> Iterator[asyncio.Event]:
        """Be counted among those who wait; the event is set when there may be something
        new. Raises as `room`."""
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
        """Be counted among those who wait for what happens elsewhere.

        Raises:
            Unavailable: too many wait.
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
        *,
        wait_s: float,
    ) -> dict[str, dict[str, Any]] | None:
        """What the client has answered to all questions of a round, by key; `None`
        if `wait_s` was too short.

        Args:
            asked: the questions.
            news: set when there may be something new (`waiting`).
            request_id: of the call that asks.
            session: whose client is asked.
            wait_s: seconds to wait at most.

        Raises:
            CallCancelled: nobody waits for the call any more.
            ToolError: there was no answer in time, or the client could give none.
        """
        keys = {
            _answer_key(QuestionId(session.id, asked.round, n)): key
            for n, key in enumerate(asked.requests)
        }
        cancelled = _cancel_key(session, request_id)
        look_s, until = FIRST_LOOK_S, self._clock.monotonic_ms() + wait_s * 1000
        while True:
            found = await self._look([*keys, cancelled])
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

    async def _look(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        try:
            return await self._rows.read_values(keys)
        except Unavailable:  # for a moment; until when somebody waits is bounded
            return {}

    def _wake(self, *rounds: str) -> None:
        for round_ in rounds:
            for news in self._waiting.get(round_, ()):
                news.set()


def _results(said: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Raises ToolError: one of the answers is that there is none."""
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
