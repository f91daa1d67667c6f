"""Functions for calls in rounds, for programs that send the requests by themselves.

    envelope ─▶ recognize_input_required ─▶ collect_responses ─▶ build_retry_params ─▶ next request

Names and rules follow mcptest's page on elicitation, which was written before the revision was
final. The page's own form of a round (requests and responses as arrays, without `resultType`) is
recognized, but produced only with `dialect=ARRAY`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from roundgate.client.flows import read_input_required
from roundgate.client.questions import Question, response_to
from roundgate.client.transport import Limits
from roundgate.client.types import Json
from roundgate.errors import BadAnswer, TooManyRounds, Unanswered

DEFAULT_MAX_ELICITATION_ROUNDS: Final = 5

Dialect: TypeAlias = Literal["standard", "array"]
STANDARD: Final = "standard"
ARRAY: Final = "array"

InputResponseFixture: TypeAlias = Mapping[str, Any]
"""Answers by the id of their request, in a form that `response_to` accepts; in the array dialect,
plain values."""


class InputRequest(Struct, frozen=True):
    """One request for input. `kind` is the kind of the question (`form`, …); in the array dialect,
    a type such as `string`."""

    id: str
    kind: str
    description: str
    required: bool = True
    question: Question | None = None


class InputResponse(Struct, frozen=True):
    """One answer, in the form in which it is sent."""

    id: str
    value: Any


class InputRequiredResult(Struct, frozen=True):
    """A result that asks for input. Only the array dialect has a `description`."""

    input_requests: tuple[InputRequest, ...]
    request_state: str | None
    dialect: Dialect
    description: str | None = None

    @property
    def is_standard(self) -> bool:
        return self.dialect == STANDARD


def recognize_input_required(
    envelope: Any,
    limits: Limits = Limits(),  # noqa: B008 — frozen
) -> InputRequiredResult | None:
    """Return the round in a JSON-RPC response, or `None` if the response does not ask for input or
    has an incomplete round of the array dialect.

    Raises:
        BadAnswer: the response has `resultType: "input_required"` and violates the protocol.
    """
    result = envelope.get("result") if isinstance(envelope, Mapping) else None
    if not isinstance(result, dict):
        return None
    if (required := read_input_required(result, limits)) is not None:
        questions = [Question.read(key, request) for key, request in required.requests.items()]
        requests = tuple(
            InputRequest(question.key, question.kind.value, question.message, True, question)
            for question in questions
        )
        return InputRequiredResult(requests, required.request_state, STANDARD)
    return _read_array_dialect(result) if "resultType" not in result else None


def _read_array_dialect(result: Json) -> InputRequiredResult | None:
    items, state = result.get("inputRequests"), result.get("requestState")
    if not isinstance(items, list) or not items or not isinstance(state, str) or not state:
        return None
    if not all(isinstance(item, dict) and isinstance(item.get("id"), str) for item in items):
        return None
    requests = tuple(
        InputRequest(
            item["id"],
            str(item.get("kind", "string")),
            str(item.get("description", "")),
            item.get("required") is not False,
        )
        for item in items
    )
    description = result.get("description")
    text = description if isinstance(description, str) else None
    return InputRequiredResult(requests, state, ARRAY, text)


def collect_responses(
    requests: Sequence[InputRequest], fixture: InputResponseFixture
) -> list[InputResponse]:
    """Return the fixture's answer to each request; skip optional requests without an answer.

    Raises:
        Unanswered: a required answer is missing.
        AnswerInvalid: an answer does not match its question.
    """
    missing = [request for request in requests if request.required and request.id not in fixture]
    if missing:
        names = ", ".join(f"{request.id} ({request.description[:100]})" for request in missing)
        questions = [request.question or request for request in missing]
        raise Unanswered(f"The fixture has no answer for {names}", questions)
    answered = [(request, fixture[request.id]) for request in requests if request.id in fixture]
    return [
        InputResponse(
            request.id, response_to(request.question, answer) if request.question else answer
        )
        for request, answer in answered
    ]


def build_retry_params(
    original: Any,
    state: str | None,
    responses: Sequence[InputResponse],
    dialect: Dialect = STANDARD,
) -> Json:
    """Return the params of the next request: the `original` params, the answers, and the state.

    Answers and state of an earlier round are removed. An `original` that is not a mapping is
    treated as empty.
    """
    params: Json = dict(original) if isinstance(original, Mapping) else {}
    for name in ("inputResponses", "requestState"):
        params.pop(name, None)
    if dialect == ARRAY:
        params["inputResponses"] = [{"id": item.id, "value": item.value} for item in responses]
    elif responses:
        params["inputResponses"] = {item.id: item.value for item in responses}
    if state is not None:
        params["requestState"] = state
    return params


async def run_elicitation_chain(
    initial_response: Any,
    initial_params: Any,
    fixture: InputResponseFixture,
    max_rounds: int = DEFAULT_MAX_ELICITATION_ROUNDS,
    next_response: Callable[[Json], Any | Awaitable[Any]] | None = None,
    *,
    dialect: Dialect = STANDARD,
) -> Any:
    """Answer rounds from a fixture, and return the first response that does not ask for input.
    `next_response` sends params and returns the response.

    Raises:
        TooManyRounds: the server still asks after `max_rounds` rounds.
        BadAnswer: a round is malformed, or in another dialect.
        Unanswered, AnswerInvalid: see `collect_responses`. Also raised without `next_response`.
    """
    response = initial_response
    for _ in range(max_rounds):
        required = recognize_input_required(response)
        if required is None:
            return response
        if required.dialect != dialect:
            raise BadAnswer(
                f"The server asks in the {required.dialect} dialect, but {dialect} was expected; "
                "the array dialect is not part of the protocol, and is answered only with "
                "dialect='array'"
            )
        if next_response is None:
            raise Unanswered(
                "The server asks, but next_response is missing, so the answers cannot be sent", ()
            )
        responses = collect_responses(required.input_requests, fixture)
        params = build_retry_params(initial_params, required.request_state, responses, dialect)
        sent = next_response(params)
        response = await sent if isawaitable(sent) else sent
    if recognize_input_required(response) is None:
        return response
    raise TooManyRounds(max_rounds)
