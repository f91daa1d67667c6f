"""Requests for a server's prompts and resources: their rounds, and the completion of arguments.

The rounds of a request use the sealed journal, as the rounds of a tool call do (`mcp.calls`): with
the same keys, and the server's state inside the gateway's state. All of these requests are
repeatable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from roundgate.auth import Principal
from roundgate.backends.base import Complete
from roundgate.backends.dialogue import (
    Lacking,
    McpRefusal,
    PagesToOpen,
    Questions,
    Recorded,
    Result,
    Step,
    recorded,
)
from roundgate.backends.mcp.calls import (
    Relay,
    outcome_from_wire,
    pages_to_open,
    refuse_for_lack,
    send_request,
    server_dialogue,
)
from roundgate.backends.mcp.eras import refuses_to_ask
from roundgate.backends.mcp.held import CallOutcome, HeldCalls, can_hold
from roundgate.backends.mcp.server import CHANGED, McpServer, answers_questions
from roundgate.client import Limits
from roundgate.client.types import Json
from roundgate.errors import (
    BackendError,
    InvalidParams,
    NeedsCapability,
    ResourceNotFound,
    ToolError,
    Unavailable,
    UnexpectedAnswer,
)
from roundgate.json import bounded_integer
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
        outcome = await server_dialogue(
            context,
            step,
            self.server.name,
            params,
            partial(self._exchange, context, method),
            partial(self._answer, context),
        )
        match outcome:
            case Result(result):
                return result
            case Lacking(required):
                refuse_for_lack(required, context, f"{method} of {self.server.name}")
            case McpRefusal():
                raise self._refusal(outcome.reason, outcome.error, params)
        raise AssertionError("an exchange has no other outcome")

    def _exchange(self, context: Context, method: str, params: Json, may_open: bool) -> Step:
        async def exchange() -> Mapping[str, Any]:
            if self.is_older and answers_questions(params):
                return recorded(McpRefusal(CHANGED.format(server=self.server.name)))
            held_calls = self.held_calls if can_hold(context) else None
            try:
                if self.is_older:
                    return recorded(await self._request(context, method, params, held_calls))
                try:
                    return recorded(await self._request(context, method, params, None))
                except BackendError as error:
                    cannot_ask = refuses_to_ask(str(error)) and not answers_questions(params)
                    if held_calls is None or not cannot_ask:
                        raise
                    return recorded(await self._request(context, method, params, held_calls))
            except UnexpectedAnswer:
                raise
            except NeedsCapability as error:
                return recorded(Lacking(error.required))
            except BackendError as error:  # a failed step does not record the reason of its error
                if may_open and (pages := pages_to_open(error, context)):
                    return recorded(PagesToOpen(pages))
                return recorded(McpRefusal(str(error), reason=error.reason or ""))

        return exchange

    async def _request(
        self, context: Context, method: str, params: Json, held_calls: HeldCalls | None
    ) -> Recorded:
        """Send a request; with `held_calls`, in a session of its caller (see `mcp.eras`)."""
        listener = Relay(context, self.server).listener((), {})
        raw = await send_request(self.server, held_calls, context, method, params, listener, True)
        return self._outcome(raw, context)

    def _answer(self, context: Context, questions: Questions, answers: Mapping[str, Any]) -> Step:
        held_calls = self.held_calls

        async def answer() -> Mapping[str, Any]:
            if held_calls is None:
                return recorded(McpRefusal(CHANGED.format(server=self.server.name)))
            relay = Relay(context, self.server, held_calls.progress_token(questions))
            try:
                outcome = await held_calls.answer(context, questions, answers, relay.notify)
            except ToolError as error:
                return recorded(McpRefusal(str(error)))
            return recorded(self._outcome(outcome, context))

        return answer

    def _outcome(self, raw: CallOutcome, context: Context) -> Recorded:
        return outcome_from_wire(raw, self.limits, self.server.name, context)

    def _refusal(self, reason: str, text: str, params: Json) -> Exception:
        """Return the gateway's error for a `BackendError` with a reason and text."""
        if reason in (_INVALID, _OLDER_NOT_FOUND):
            self.on_unknown()
        if reason == _OLDER_NOT_FOUND and "uri" in params:
            return ResourceNotFound(params["uri"])
        return (InvalidParams if reason.startswith("error ") else Unavailable)(text)

    def completes(self, ref: Mapping[str, str], argument: str) -> Complete:
        """Return a function that completes an argument of the prompt or resource template that the
        server knows as `ref`."""

        async def complete(caller: Principal, text: str, others: Mapping[str, str]) -> Completion:
            params: Json = {"ref": dict(ref), "argument": {"name": argument, "value": text}}
            if others:
                params["context"] = {"arguments": dict(others)}
            try:
                raw = await self.server.ask("completion/complete", params, COMPLETE_S, caller)
            except UnexpectedAnswer:
                raise
            except BackendError as error:
                raise self._refusal(error.reason or "", str(error), params) from None
            return _completion(raw, self.server.name)

        return complete


def _completion(raw: Json, server: str) -> Completion:
    """Return a server's suggestions. Raise UnexpectedAnswer if its answer has none."""
    completion: Any = raw.get("completion")
    values = completion.get("values") if isinstance(completion, dict) else None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UnexpectedAnswer(f"{server} answered with suggestions that are not text")
    total, has_more = bounded_integer(completion.get("total")), completion.get("hasMore")
    return Completion(values, total, has_more if isinstance(has_more, bool) else None)
