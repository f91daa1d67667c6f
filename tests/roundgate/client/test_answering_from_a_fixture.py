"""`run_elicitation_chain` and its parts: rounds that are answered from a fixture, by whoever sends
requests in a way of their own."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.client.elicitation import recognize_input_required, run_elicitation_chain
from roundgate.errors import BadAnswer, TooManyRounds, Unanswered

FORM = {
    "method": "elicitation/create",
    "params": {
        "message": "Refund?",
        "requestedSchema": {"type": "object", "properties": {"go": {"type": "boolean"}}},
    },
}
ASKS = {"result": {"resultType": "input_required", "inputRequests": {"q": FORM}}}
OLD = {
    "result": {
        "inputRequests": [
            {"id": "city", "description": "Where to?"},
            {"id": "x", "required": False},
        ],
        "requestState": "s1",
    }
}
DONE = {"result": {"resultType": "complete", "content": []}}


@pytest.mark.parametrize(
    "response",
    [
        None,
        "text",
        {"error": {"code": 1}},
        {"result": []},
        DONE,
        {"result": {"inputRequests": [{"name": "no id"}], "requestState": "s"}},
        {"result": {"inputRequests": ["city"], "requestState": "s"}},
        {"result": {"inputRequests": [{"id": "city"}], "requestState": ""}},
    ],
)
async def test_a_response_that_asks_for_nothing_is_the_last_one(response: Any) -> None:
    assert recognize_input_required(response) is None
    assert await run_elicitation_chain(response, {}, {}) is response


async def test_a_question_without_an_answer_or_a_way_to_send_it_is_said() -> None:
    with pytest.raises(Unanswered, match=r"no answer for q \(Refund\?\)") as caught:
        await run_elicitation_chain(ASKS, {}, {}, next_response=lambda params: DONE)
    assert [one.key for one in caught.value.questions] == ["q"]
    with pytest.raises(Unanswered, match="next_response is missing"):
        await run_elicitation_chain(ASKS, {}, {"q": {"go": True}})


async def test_the_last_round_may_be_the_one_that_ends_it() -> None:
    sent: list[Any] = []

    async def send(params: Any) -> Any:
        sent.append(params)
        return DONE if len(sent) == 2 else ASKS

    first, answers = {"name": "refund", "requestState": "of before"}, {"q": {"go": True}}
    assert await run_elicitation_chain(ASKS, first, answers, 2, send) is DONE
    accepted = {"q": {"action": "accept", "content": {"go": True}}}
    assert sent == [{"name": "refund", "inputResponses": accepted}] * 2
    with pytest.raises(TooManyRounds):
        await run_elicitation_chain(ASKS, first, answers, 2, lambda params: ASKS)


async def test_the_array_dialect_is_answered_only_where_that_is_wanted() -> None:
    sent: list[Any] = []

    def send(params: Any) -> Any:
        sent.append(params)
        return DONE

    with pytest.raises(BadAnswer, match="array dialect is not part of the protocol"):
        await run_elicitation_chain(OLD, {}, {"city": "Rome"}, next_response=send)
    await run_elicitation_chain(OLD, {}, {"city": "Rome"}, next_response=send, dialect="array")
    assert sent == [{"inputResponses": [{"id": "city", "value": "Rome"}], "requestState": "s1"}]
