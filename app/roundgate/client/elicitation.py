"""The pieces of a call in rounds, for who sends the requests himself: recognise, collect,
build, and the loop around.

    envelope ─▶ recognize_input_required ─▶ collect_responses ─▶ build_retry_params ─▶ the next request

Names and rules are those of mcptest's page on elicitation, which was written before the revision
was final. Its shape of a round (requests and responses as arrays, without `resultType`) is
recognised, and called non-standard: it is produced only when asked for with `dialect=ARRAY`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, Literal, TypeAlias

from roundgate.client.flows import read_input_required
from roundgate.client.limits import Limits
from roundgate.client.questions import Question, response_to
from roundgate.client.types import Json
from roundgate.errors import BadAnswer, TooManyRounds, Unanswered

DEFAULT_MAX_ELICITATION_ROUNDS: Final = 5

Dialect: TypeAlias = Literal["standard", "array"]
STANDARD: Final = "standard"
ARRAY: Final = "array"

InputResponseFixture: TypeAlias = Mapping[str, Any]
"""Answers by the id of their request, as `response_to` takes them; in the array
dialect the bare values."""


@dataclass(frozen=True, slots=True)
class InputRequest:
    """One thing that is asked. `kind` is a question's (`form`, …), in the array dialect a
    type such as `string`."""

    id: str
    kind: str
    description: str
    required: bool = True
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class InputResponse:
    """One answer, as it goes over the wire."""

    id: str
    value: Any


@dataclass(frozen=True, slots=True)
class InputRequiredResult:
    """A result that asks for more; in the array dialect it may say why."""

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
    """The round in a JSON-RPC response, `None` if its result is another, or is only half a
    round of the array dialect.

    Raises:
        BadAnswer: it says `resultType: "input_required"` and breaks the protocol's rules.
    """
    result = envelope.get("result") if isinstance(envelope, Mapping) else None
    if not isinstance(result, dict):
        return None
    if (required := read_input_required(result, limits)) is not None:
        questions = [Question.read(key, one) for key, one in required.requests.items()]
        requests = tuple(
            InputRequest(one.key, one.kind.value, one.message, True, one) for one in questions
        )
        return InputRequiredResult(requests, required.request_state, STANDARD)
    return _array_dialect(result) if "resultType" not in result else None


def _array_dialect(result: Json) -> InputRequiredResult | None:
    requests, state = result.get("inputRequests"), result.get("requestState")
    if not isinstance(requests, list) or not requests or not isinstance(state, str) or not state:
        return None
    if not all(isinstance(one, dict) and isinstance(one.get("id"), str) for one in requests):
        return None
    found = tuple(
        InputRequest(
            one["id"],
            str(one.get("kind", "string")),
            str(one.get("description", "")),
            one.get("required") is not False,
        )
        for one in requests
    )
    description = result.get("description")
    return InputRequiredResult(
        found, state, ARRAY, description if isinstance(description, str) else None
    )


def collect_responses(
    requests: Sequence[InputRequest], fixture: InputResponseFixture
) -> list[InputResponse]:
    """The answers that a fixture has. What is optional and has none is left out.

    Raises:
        Unanswered: what is required has none.
        AnswerInvalid: an answer does not fit its question.
    """
    missing = [one for one in requests if one.required and one.id not in fixture]
    if missing:
        names = ", ".join(f"{one.id} ({one.description[:100]})" for one in missing)
        raise Unanswered(
            f"The fixture has no answer for {names}", [one.question or one for one in missing]
        )
    answered = [one for one in requests if one.id in fixture]
    return [
        InputResponse(
            one.id, response_to(one.question, fixture[one.id]) if one.question else fixture[one.id]
        )
        for one in answered
    ]


def build_retry_params(
    original: Any,
    state: str | None,
    responses: Sequence[InputResponse],
    dialect: Dialect = STANDARD,
) -> Json:
    """The params of the next request: those of the first, with the answers, and with
    the state if there was one.

    What an earlier round added is taken off. Params that are no object count as none.
    """
    params: Json = dict(original) if isinstance(original, Mapping) else {}
    for name in ("inputResponses", "requestState"):
        params.pop(name, None)
    if dialect == ARRAY:
        params["inputResponses"] = [{"id": one.id, "value": one.value} for one in responses]
    elif responses:
        params["inputResponses"] = {one.id: one.value for one in responses}
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
    """Answer round after round from a fixture until a response asks for nothing;
    `next_response` sends params.

    Raises:
        TooManyRounds: the server still asks after `max_rounds` rounds.
        BadAnswer: it asks in the array dialect, and that was not asked for.
        Unanswered, AnswerInvalid: as `collect_responses`.
    """
    response = initial_response
    for _ in range(max_rounds):
        required = recognize_input_required(response)
        if required is None:
            return response
        if required.dialect != dialect:
            raise BadAnswer(
                f"The server asks in the {required.dialect} dialect, and {dialect} was expected; the array dialect is "
                "not part of the protocol, and is answered only with dialect='array'"
            )
        if next_response is None:
            raise Unanswered(
                "The server asks, and there is no next_response to send the answers", ()
            )
        responses = collect_responses(required.input_requests, fixture)
        sent = next_response(
            build_retry_params(initial_params, required.request_state, responses, dialect)
        )
        response = await sent if isawaitable(sent) else sent
    if recognize_input_required(response) is None:
        return response
    raise TooManyRounds(max_rounds)
