"""Answers are found by key, field, schema or function; they fit their questions, or are
refused before they go out."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.client import ACCEPT, CANCEL, DECLINE, Answers, Question, by_schema, defaults
from roundgate.client.questions import answer_all, response_to
from roundgate.errors import AnswerInvalid, BadAnswer, Unanswered


def form(key: str = "q", required: tuple[str, ...] = (), **fields: Any) -> Question:
    schema = {"type": "object", "properties": fields, "required": list(required)}
    params = {"message": "Well?", "requestedSchema": schema}
    return Question.read(key, {"method": "elicitation/create", "params": params}, "tool", 1)


GO = form("go", ("ok",), ok={"type": "boolean"})
NAME = form("who", ("name",), name={"type": "string"}, title={"type": "string", "default": "Dr"})
URL = Question.read(
    "visit",
    {
        "method": "elicitation/create",
        "params": {"mode": "url", "message": "Go", "url": "https://a.example/"},
    },
)
SAMPLE = Question.read(
    "poem", {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 9}}
)
ROOTS = Question.read("roots", {"method": "roots/list"})


async def answered(question: Question, *sources: Any) -> Any:
    return await Answers(*sources)(question)


async def test_a_mapping_answers_by_key_then_by_the_names_of_the_fields() -> None:
    assert await answered(GO, {"go": {"ok": True}, "ok": False}) == {"ok": True}
    assert await answered(GO, {"ok": False}) == {"ok": False}
    assert await answered(NAME, {"name": "Ada"}) == {"name": "Ada"}
    assert await answered(form(required=("a", "b"), a={}, b={}), {"a": 1}) is None
    assert await answered(URL, {"ok": True}) is None


async def test_sources_are_asked_in_turn_until_one_knows() -> None:
    async def second(question: Question) -> Any:
        return question.key.upper()

    assert await answered(GO, lambda _: None, [{"x": 1}, second], {"go": "never"}) == "GO"
    assert await answered(GO, lambda _: None) is None


async def test_keys_that_nobody_asked_for_are_told() -> None:
    answers = Answers({"go": True, "ok": 1, "typo": 2}, {"name": "Ada"})
    for question in (GO, NAME):
        await answers(question)
    assert answers.unused == ["ok", "typo"]


async def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(TypeError, match="mapping"):
        Answers("yes")


async def test_a_schema_pattern_answers_the_fields_that_have_it() -> None:
    yes = by_schema({"type": "boolean"}, True)
    assert await answered(GO, yes) == {"ok": True}
    assert await answered(NAME, yes) is None


async def test_defaults_answer_only_where_they_are_enough() -> None:
    assert await answered(NAME, defaults) is None
    assert (
        await answered(form(required=("n",), n={"type": "integer", "default": 3}), defaults)
        is ACCEPT
    )


@pytest.mark.parametrize(
    ("question", "answer", "response"),
    [
        (GO, True, {"action": "accept", "content": {"ok": True}}),
        (GO, {"ok": True}, {"action": "accept", "content": {"ok": True}}),
        (GO, {"action": "accept", "content": {"ok": False}}, {"action": "accept", "content": {"ok": False}}),
        (GO, {"action": "decline"}, {"action": "decline"}),
        (GO, DECLINE, {"action": "decline"}),
        (GO, CANCEL, {"action": "cancel"}),
        (NAME, {"name": "Ada"}, {"action": "accept", "content": {"title": "Dr", "name": "Ada"}}),
        (form(n={"type": "integer", "default": 3}), ACCEPT, {"action": "accept", "content": {"n": 3}}),
        (form("f", action={"type": "string"}, more={"type": "string"}), {"action": "jump", "more": "x"},
         {"action": "accept", "content": {"action": "jump", "more": "x"}}),
        (URL, True, {"action": "accept"}),
        (URL, False, {"action": "decline"}),
        (URL, DECLINE, {"action": "decline"}),
        (SAMPLE, "Roses", {"role": "assistant", "content": {"type": "text", "text": "Roses"},
                           "model": "roundgate.client", "stopReason": "endTurn"}),
        (SAMPLE, {"role": "user", "content": {}, "model": "m"}, {"role": "user", "content": {}, "model": "m"}),
        (ROOTS, ["file:///a"], {"roots": [{"uri": "file:///a"}]}),
        (ROOTS, {"roots": [{"uri": "file:///a", "name": "A"}]}, {"roots": [{"uri": "file:///a", "name": "A"}]}),
    ],
)  # fmt: skip
def test_an_answer_goes_out_as_the_protocol_has_it(
    question: Question, answer: Any, response: Any
) -> None:
    assert response_to(question, answer) == response


@pytest.mark.parametrize(
    ("question", "answer", "complaint"),
    [
        (GO, "yes", "boolean"),
        (GO, {}, "ok"),
        (NAME, "Ada", "name, title"),
        (NAME, {"name": 5}, "string"),
        (URL, "later", "URL"),
        (SAMPLE, 5, "text"),
        (ROOTS, "file:///a", "list"),
        (ROOTS, ["https://a.example"], "file://"),
        (form(n={"type": "integer", "minimum": 5, "maximum": 1}), {"n": 3}, "n"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_before_it_goes_out(
    question: Question, answer: Any, complaint: str
) -> None:
    with pytest.raises(AnswerInvalid, match=complaint) as caught:
        response_to(question, answer)
    assert caught.value.key == question.key


def test_a_schema_that_is_none_is_the_servers_fault() -> None:
    odd = Question.read(
        "q",
        {
            "method": "elicitation/create",
            "params": {"requestedSchema": {"type": "object", "properties": 5}},
        },
    )
    with pytest.raises(BadAnswer, match="unusable schema"):
        response_to(odd, {})


async def test_what_nobody_answers_is_told_with_the_state_to_go_on() -> None:
    with pytest.raises(Unanswered, match="who: Well") as caught:
        await answer_all([GO, NAME], Answers({"go": True}), "state")
    assert [one.key for one in caught.value.questions] == ["who"]
    assert caught.value.request_state == "state"


def test_a_question_can_be_handed_to_another_program() -> None:
    assert SAMPLE.as_json() == {
        "key": "poem",
        "method": "sampling/createMessage",
        "params": {"messages": [], "maxTokens": 9},
    }
    assert (URL.as_json()["method"], GO.as_json()["key"]) == ("elicitation/create", "go")
