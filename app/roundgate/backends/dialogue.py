"""Dialogues with back ends, independent of the transport: exchanges, and questions in between.

    exchange 1 ──▶ questions ──▶ the client answers ──▶ exchange 2 … ──▶ the last outcome

Each exchange is a step, so a later round or another worker does not repeat it. A back end's state
travels sealed inside the gateway's state; the client cannot read it. The journal has each outcome as
a JSON object with the member `kind`; journals of earlier versions have the other members alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from roundgate.backends.service_tasks import check_request
from roundgate.client.types import Json
from roundgate.errors import DOUBT, BackendError, NotJson, ToolError, UnexpectedAnswer
from roundgate.replay import NAME, Context, Raw


class Result(Struct, frozen=True, tag_field="kind", tag="result"):
    """The result of an MCP server."""

    result: Json


class HandedOver(Struct, frozen=True, tag_field="kind", tag="task"):
    """A task of an MCP server, which the call has become."""

    task: Json


class Lacking(Struct, frozen=True, tag_field="kind", tag="required"):
    """The client capabilities that a server needs for the request."""

    required: Mapping[str, Any]


class McpRefusal(Struct, frozen=True, tag_field="kind", tag="error"):
    """The error of a server, or the failure of a call. A failed step would record the text alone."""

    error: str
    code: int | None = None
    """The code of a JSON-RPC error; `None` for any other failure."""
    data: Any = None
    reason: str = ""
    """The reason of a `BackendError`."""


class PagesToOpen(Struct, frozen=True, tag_field="kind", tag="pages"):
    """Pages that the user has to open, after which the request is sent again."""

    pages: Json
    """The questions that open them, by key."""


class Questions(
    Struct,
    frozen=True,
    tag_field="kind",
    tag="questions",
    omit_defaults=True,
    rename={"requests": "inputRequests"},
):
    """Questions of a back end, by key."""

    requests: Json
    state: Any
    """The state of the back end, for the next exchange."""
    held: str | None = None
    """The id of the call of an older server, which takes the answers (`mcp.held`)."""
    number: int = 0
    """The number of questions of this call before."""
    position: Json | None = None
    """The position after which any process continues the call; `None` if a process holds it."""
    pending: bool = False
    """Whether the answers were sent, and the next exchange waits for the outcome again."""


class LastAnswer(Struct, frozen=True):
    """The last answer of a service, in the form that its transport records."""

    kept: Mapping[str, Any]


Recorded: TypeAlias = Result | HandedOver | Lacking | McpRefusal | PagesToOpen | Questions
Outcome: TypeAlias = Recorded | LastAnswer

_KINDS: Final = {
    "result": "result",
    "task": "task",
    "required": "required",
    "error": "error",
    "pages": "pages",
    "inputRequests": "questions",
}
"""The kind of an outcome without `kind`, by a member."""


class Answering(Struct, frozen=True):
    """The client's answers by key, and the state that the back end sent with its questions; passed
    to every exchange after the first."""

    responses: Mapping[str, Any]
    state: Any

    def params(self) -> Json:
        """Return the members of the next request to an MCP server."""
        params: Json = {"inputResponses": dict(self.responses)} if self.responses else {}
        return params if self.state is None else {**params, "requestState": self.state}


Kept: TypeAlias = Mapping[str, Any]
"""An outcome or an answer as JSON, the result of a step."""
Step: TypeAlias = Callable[[], Awaitable[Kept]]
Exchange: TypeAlias = Callable[[int, Questions | PagesToOpen | None, Answering | None], Step]
"""Returns the nth exchange, counted from 1, as a step without arguments, because a credential or an
endpoint may change between rounds. The step returns an outcome as `recorded` does, or the last answer
of a service. The function of the step keeps its name, by which a replay recognizes it."""


def recorded(outcome: Recorded) -> Kept:
    """Return an outcome for the journal."""
    kept: Kept = msgspec.to_builtins(outcome)
    return kept


def outcome_from_json(kept: Kept) -> Outcome:
    """Return the outcome that the journal has."""
    known = (kind for member, kind in _KINDS.items() if member in kept)
    kind = kept.get("kind") or next(known, None)
    if kind is None:
        return LastAnswer(kept)
    pending = {"pending": True} if kept.get("pending") else {}
    outcome: Outcome = msgspec.convert({**kept, **pending, "kind": kind}, Recorded)
    return outcome


async def dialogue(
    context: Context,
    step: str,
    exchange: Exchange,
    server: str,
    *,
    at_most_once: bool = False,
    most: int | None = None,
) -> Outcome:
    """Exchange requests and answers until the back end has no more questions; return its last
    outcome.

    Args:
        step: the name of each step.
        server: the name of the back end for error texts.
        at_most_once: whether a worker that dies during an exchange leaves an unknown outcome.
        most: the maximum number of exchanges.

    Raises:
        ToolError: the user refused to open a page.
        UnexpectedAnswer: the back end asks too often, or answers with JSON that is nested too deeply.
    """
    asked: Questions | PagesToOpen | None = None
    answering: Answering | None = None
    for number in count(1):
        if most is not None and number > most:
            raise UnexpectedAnswer(f"{server} asked for input more than {most} times")
        is_answer = isinstance(asked, Questions) and asked.held is not None
        try:
            kept = await context.step(
                step,
                exchange(number, asked, answering),
                at_most_once=at_most_once and not is_answer,
            )
        except NotJson:  # beyond the depth of the journal
            text = f"{server} answered with JSON that is nested too deeply{DOUBT}"
            raise UnexpectedAnswer(text) from None
        outcome = outcome_from_json(kept)
        match outcome:
            case PagesToOpen():
                await _open_pages(outcome, context, server)
            case Questions(pending=True):
                await context.shed()
            case Questions():
                answers = await _ask(outcome.requests, context) if outcome.requests else {}
                answering = Answering(answers, outcome.state)
            case _:
                return outcome
        asked = outcome
    raise AssertionError("the loop returns or raises")


async def _ask(requests: Json, context: Context) -> Json:
    answers = await context.ask({key: Raw(request) for key, request in requests.items()})
    return {key: answer.value for key, answer in answers.items()}


async def _open_pages(outcome: PagesToOpen, context: Context, server: str) -> None:
    """Ask the user to open pages. Raise ToolError if the user refuses."""
    for key, answer in (await _ask(outcome.pages, context)).items():
        if answer.get("action") != "accept":
            raise ToolError(
                f"{server} needs the user to open a page, and the answer to {key} was "
                f"{str(answer.get('action'))[:20]!r}"
            )


def service_questions(envelope: Any) -> Questions:
    """Return the questions in an envelope: `{"inputRequests": {key: InputRequest}, "state":
    anything}` (`roundgate docs rounds`).

    Raises:
        BackendError: the envelope is malformed, or no client can show one of the questions.
    """
    try:
        requests: Mapping[str, Any] = envelope["inputRequests"]
        for key, request in requests.items():
            if not NAME.fullmatch(key):
                raise ValueError(key)
            check_request(request)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackendError(
            "The service asked for input in a form that the gateway does not know"
        ) from None
    if not requests:
        raise BackendError("The service asked for input but had no question")
    return Questions(dict(requests), envelope.get("state"))


ServiceExchange: TypeAlias = Callable[[int, Answering | None], Awaitable[Kept]]
"""A function that runs the nth exchange, counted from 1. It returns recorded questions or the last
answer, or raises BackendError."""


async def service_dialogue(exchange: ServiceExchange, context: Context, service: str) -> Kept:
    """Return the last answer of a service."""
    outcome = await dialogue(
        context,
        "exchange",
        lambda number, _, answering: lambda: exchange(number, answering),
        service,
    )
    assert isinstance(outcome, LastAnswer), "a service answers in its own form"
    return outcome.kept
