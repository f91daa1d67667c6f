"""The questions of a round: sends them on the stream of the call, and waits for their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from roundgate import json
from roundgate.errors import ToolError
from roundgate.http.older.caller import Caller
from roundgate.http.older.open_calls import OpenCall, OpenCalls, after
from roundgate.http.older.questions import Asked, Questions
from roundgate.http.older.stream import SessionStream
from roundgate.protocol.v2025.asking import answer_of, request_params

SHORT_WAIT_S: Final = 3.0
"""Seconds that a request waits for answers if the platform cannot hold a stream. Clients stop
reading after 5 s."""
LEAVE_MS: Final = 2_000
"""The milliseconds that must be left of the environment's time for a held stream to continue."""


class Asking:
    """Sends questions on the streams of calls.

    Args:
        questions: makes the ids of questions, and waits for answers.
        calls: makes the ids of the events with the questions.
        keep_alive_s: seconds between comments on a quiet stream.
    """

    def __init__(self, questions: Questions, calls: OpenCalls, *, keep_alive_s: float) -> None:
        self._questions = questions
        self._calls = calls
        self._keep_alive_s = keep_alive_s

    async def answers(
        self, call: OpenCall, caller: Caller, stream: SessionStream, told: int
    ) -> dict[str, Any] | None:
        """Ask the client a call's questions and return the answers, or `None` if the stream has
        ended before.

        Args:
            call: the call, with its questions.
            caller: the caller, who is asked.
            stream: the stream to ask on.
            told: how many of the questions the client has received already.

        Raises:
            ToolError: the client cannot be asked, did not answer in time, or could not answer.
            CallCancelled: the client has cancelled the call.
            Unavailable: too many calls wait, or the store cannot be reached.
        """
        _check(call, stream)
        asked = Asked(call.round, call.requests, call.until_ms)
        with self._questions.waiting(asked, caller.principal) as news:
            await self._tell(asked, call, caller, stream, told)
            if stream.is_finite and told < len(call.requests):
                return None
            # a platform that holds no streams delivers the body, and so the questions, at its end
            if not stream.holds and stream.resumes and not stream.is_resumed:
                await stream.responder.end()
                return None
            found = await self._wait(asked, news, call, caller, stream)
        if found is None:
            await self.leave(call, caller, stream)
            return None
        return {key: _answer(call, caller, key, result) for key, result in found.items()}

    async def leave(self, call: OpenCall, caller: Caller, stream: SessionStream) -> None:
        """End a stream whose call another request will continue; a finite one stays open for a
        result.

        Raises:
            ToolError: the client cannot resume a stream.
            Unavailable: the call cannot be stored now.
        """
        if stream.is_finite:
            return
        if not stream.resumes:
            raise ToolError("The server is being restarted; call again to be asked again")
        await stream.leave(await self._calls.event_id(call, caller, len(call.requests)))

    def patience_s(self, caller: Caller, stream: SessionStream) -> float:
        """Return how many seconds a request waits before it sends a keep-alive or ends."""
        if stream.holds:
            return self._keep_alive_s
        left_ms = caller.deadline.remaining_ms() if stream.is_finite else None
        return SHORT_WAIT_S if left_ms is None else min(SHORT_WAIT_S, left_ms / 2000)

    async def goes_on(self, caller: Caller, stream: SessionStream) -> bool:
        """Return whether a request may wait longer; send a keep-alive if so."""
        left_ms = caller.deadline.remaining_ms()
        is_late = left_ms is not None and left_ms < LEAVE_MS
        if not stream.holds or self._questions.is_closing or is_late:
            return False
        await stream.keep_alive()
        return True

    async def _tell(
        self, asked: Asked, call: OpenCall, caller: Caller, stream: SessionStream, told: int
    ) -> None:
        if told >= len(call.requests):
            return
        event_id = await self._calls.event_id(call, caller)
        for number, (key, request) in enumerate(call.requests.items()):
            if number >= told:
                message = self._question(asked, number, request, caller, call.pages.get(key))
                await stream.message(message, after(event_id, number + 1))

    def _question(
        self,
        asked: Asked,
        number: int,
        request: Mapping[str, Any],
        caller: Caller,
        page: str | None,
    ) -> bytes:
        """Return a question as a JSON-RPC request to the client."""
        question_id = self._questions.ask(asked, number, caller.session, caller.principal)
        params = request_params(caller.revision, request["method"], request.get("params", {}), page)
        message = {"jsonrpc": "2.0", "id": question_id, "method": request["method"]}
        return json.encode({**message, "params": params} if params else message)

    async def _wait(
        self,
        asked: Asked,
        news: asyncio.Event,
        call: OpenCall,
        caller: Caller,
        stream: SessionStream,
    ) -> dict[str, dict[str, Any]] | None:
        """Return the answers, or `None` if this request must not wait for them any longer."""
        wait_s = self.patience_s(caller, stream)
        while True:
            found = await self._questions.answers(
                asked,
                news,
                call.request.id,
                caller.session,
                caller.principal,
                wait_s=wait_s,
            )
            if found is not None:
                return found
            if not await self.goes_on(caller, stream):
                return None


def _check(call: OpenCall, stream: SessionStream) -> None:
    """Raise ToolError if the client cannot be asked on this stream."""
    is_call = call.request.method == "tools/call"
    if not stream.can_tell or (stream.is_finite and not is_call):
        raise ToolError(
            "This has to ask the user something, and this client cannot be asked here: it would "
            "have to take event streams and resume them, as clients of revision 2025-11-25 do"
        )


def _answer(call: OpenCall, caller: Caller, key: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return a client's answer in the form of the engine."""
    request = call.requests[key]
    return answer_of(caller.revision, request["method"], request.get("params", {}), result)
