"""Requests for a server's prompts and resources: their rounds, and the completion of arguments.

The rounds of a request use the sealed journal, as the rounds of a tool call do (`mcp.calls`): with
the same keys, and the server's state inside the gateway's state. All of these requests are
repeatable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from msgspec import Struct

from roundgate.auth import Principal
from roundgate.backends.base import Complete
from roundgate.backends.mcp.calls import (
    MAX_EXCHANGES,
    Relay,
    answers_to,
    open_pages,
    pages_to_open,
    questions_from_wire,
    refuse_for_lack,
    with_meta,
)
from roundgate.backends.mcp.eras import refuses_to_ask
from roundgate.backends.mcp.held import HeldCalls, can_hold
from roundgate.backends.mcp.server import CHANGED, McpServer, answers_questions
from roundgate.client import Limits
from roundgate.client.flows import read_input_required
from roundgate.client.messages import Listener
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    BadAnswer,
    InvalidParams,
    NeedsCapability,
    ResourceNotFound,
    ToolError,
    Unavailable,
    UnexpectedAnswer,
)
from roundgate.protocol import Completion
from roundgate.replay import Context

COMPLETE_S: Final = 10.0
"""The timeout of a completion in seconds. It is short, because the user is typing."""
_INVALID: Final = "error -32602"
_OLDER_NOT_FOUND: Final = "error -32002"
"""The error of revisions before 2026-07-28 for an unknown resource."""


class ServerRequests(Struct, frozen=True):
    """The requests for one server's prompts and resources."""

    server: McpServer
    limits: Limits
    on_unknown: Callable[[], None]
    """Called when the server no longer knows a prompt or resource."""
    require_accepted_page: Callable[[str, Sequence[Json]], None]
    """Raises InvalidParams if the contents of a URI are a quarantined page."""
    held_calls: HeldCalls | None = None
    """Makes requests in sessions of their callers, in which an older server may ask; `None` if it may
    not."""
    is_older: bool = False
    """Whether the server speaks only revisions before 2026-07-28."""

    async def send(self, context: Context, step: str, method: str, params: Json) -> Json:
        """Return the result of prompts/get or resources/read, after its rounds.

        Args:
            context: the context of the request.
            step: the name of the step in the journal.
            method: the method.
            params: its params.

        Raises:
            InvalidParams: the server refused the request.
            MissingCapability: the client lacks capabilities that the server needs.
            Unavailable: the server did not answer, or is busy.
            UnexpectedAnswer: the answer is malformed.
        """
        answering: Json = {}
        questions: Json = {}
        for number in count(1):
            if number > MAX_EXCHANGES:
                raise UnexpectedAnswer(
                    f"{self.server.name} asked for input more than {MAX_EXCHANGES} times"
                )
            if "held" in questions:
                exchange = self._answer(context, questions, answering)
            else:
                exchange = self._exchange(
                    context, method, {**params, **answering}, may_open="pages" not in questions
                )
            outcome: Json = await context.step(step, exchange)
            if "result" in outcome:
                result: Json = outcome["result"]
                return result
            if "required" in outcome:
                what_for = f"{method} of {self.server.name}"
                refuse_for_lack(outcome["required"], context, what_for)
            if "refusal" in outcome:
                raise self._refusal(outcome["reason"], outcome["refusal"], params)
            if "pages" in outcome:
                await open_pages(outcome["pages"], context, self.server.name)
            elif outcome.get("pending"):
                await context.shed()
            else:
                answering = await answers_to(outcome, context)
            questions = outcome
        raise AssertionError("the loop returns or raises")

    def _exchange(
        self, context: Context, method: str, params: Json, *, may_open: bool
    ) -> Callable[[], Awaitable[Json]]:
        async def exchange() -> Json:
            if self.is_older and answers_questions(params):
                return {"refusal": CHANGED.format(server=self.server.name), "reason": ""}
            held_calls = self.held_calls
            can_ask = held_calls is not None and can_hold(context)
            try:
                if can_ask and self.is_older:
                    return await self._begin(context, method, params)
                try:
                    return await self._send(context, method, params)
                except BackendError as error:
                    if not can_ask or not refuses_to_ask(str(error)) or answers_questions(params):
                        raise
                    return await self._begin(context, method, params)  # see `mcp.eras`
            except UnexpectedAnswer:
                raise
            except NeedsCapability as error:
                return {"required": error.required}
            except BackendError as error:  # a failed step does not record the reason of its error
                if may_open and (pages := pages_to_open(error, context)):
                    return {"pages": pages}
                return {"refusal": str(error), "reason": error.reason or ""}

        return exchange

    async def _send(self, context: Context, method: str, params: Json) -> Json:
        listener = Relay(context, self.server).listener((), {})
        raw = await self.server.request(
            method, with_meta(params, context), listener, context.deadline, is_repeatable=True
        )
        return self._outcome(raw, context)

    async def _begin(self, context: Context, method: str, params: Json) -> Json:
        """Make a request in a session of its caller."""
        held_calls = self.held_calls
        assert held_calls is not None, "checked by `_exchange`"
        listener = Relay(context, self.server).listener((), {})
        outcome = await self.server.limited(
            lambda: held_calls.begin(context, method, with_meta(params, context), listener),
            context.deadline,
            is_repeatable=True,
        )
        return self._held_outcome(outcome, context)

    def _answer(
        self, context: Context, questions: Json, answering: Json
    ) -> Callable[[], Awaitable[Json]]:
        held_calls = self.held_calls

        async def answer() -> Json:
            if held_calls is None:
                return {"refusal": CHANGED.format(server=self.server.name), "reason": ""}
            relay = Relay(context, self.server, held_calls.progress_token(questions))
            answers = answering.get("inputResponses", {})
            try:
                outcome = await held_calls.answer(context, questions, answers, relay.notify)
            except ToolError as error:
                return {"refusal": str(error), "reason": ""}
            return self._held_outcome(outcome, context)

        return answer

    def _held_outcome(self, outcome: Json, context: Context) -> Json:
        if "code" in outcome:
            return {"refusal": outcome["error"], "reason": f"error {outcome['code']}"}
        return self._outcome(outcome["result"], context) if "result" in outcome else outcome

    def _outcome(self, raw: Json, context: Context) -> Json:
        name = self.server.name
        try:
            required = read_input_required(raw, self.limits)
        except BadAnswer as error:
            raise UnexpectedAnswer(f"{name} failed: {error}") from None
        if required is not None:
            return questions_from_wire(required, name, context)
        if raw.get("resultType", "complete") != "complete":
            raise UnexpectedAnswer(f"{name} answered with a result of an unknown type")
        return {"result": raw}

    def _refusal(self, reason: str, text: str, params: Json) -> Exception:
        """Return the gateway's error for a `BackendError` with a reason and text."""
        if reason in (_INVALID, _OLDER_NOT_FOUND):
            self.on_unknown()
        if reason == _OLDER_NOT_FOUND and "uri" in params:
            return ResourceNotFound(params["uri"])
        return (InvalidParams if reason.startswith("error ") else Unavailable)(text)

    def completes(self, ref: Mapping[str, str], argument: str, clock: Clock) -> Complete:
        """Return a function that completes an argument of a prompt or resource template.

        Args:
            ref: the reference to the prompt or template, as the server knows it.
            argument: the name of the argument.
            clock: the clock of the process.
        """

        async def complete(caller: Principal, text: str, others: Mapping[str, str]) -> Completion:
            params: Json = {"ref": dict(ref), "argument": {"name": argument, "value": text}}
            if others:
                params["context"] = {"arguments": dict(others)}
            deadline = clock.deadline(COMPLETE_S * 1000)
            try:
                own = self.server.caller_headers(caller)
                raw = await self.server.request(
                    "completion/complete",
                    params,
                    Listener(capabilities={}, caller_headers=own),
                    deadline,
                    is_repeatable=True,
                )
            except UnexpectedAnswer:
                raise
            except BackendError as error:
                raise self._refusal(error.reason or "", str(error), params) from None
            return _completion(raw, self.server.name)

        return complete


def _completion(raw: Json, server: str) -> Completion:
    """Return a server's suggestions.

    Raises:
        UnexpectedAnswer: the server's answer has no suggestions.
    """
    completion: Any = raw.get("completion")
    values = completion.get("values") if isinstance(completion, dict) else None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UnexpectedAnswer(f"{server} answered with suggestions that are not text")
    total, has_more = completion.get("total"), completion.get("hasMore")
    is_count = isinstance(total, int) and not isinstance(total, bool)
    return Completion(
        values, total if is_count else None, has_more if isinstance(has_more, bool) else None
    )
