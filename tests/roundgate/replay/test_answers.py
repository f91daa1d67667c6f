"""An answer belongs to the question as it was shown: what does not fit is asked for again,
under a key of its own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import BaseModel, Field

from roundgate.replay.asking import MAX_CHANGES
from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.journal import Answered, Asked, Journal
from roundgate.replay.questions import Form
from tests.support.replay import (
    Effects,
    Name,
    asked_of,
    error_of,
    play,
    play_to_the_end,
    polite,
    value_of,
)
from tests.support.rounds import accept


class Age(BaseModel):
    age: int = Field(ge=18)


def messages(outcome: Any) -> dict[str, str]:
    return {key: request["params"]["message"] for key, request in asked_of(outcome).items()}


def asks(*questions: tuple[str, str]) -> Any:
    """A version of a handler, by what it asks: (name, message) in this order, all in one round."""

    async def handler(ctx: Context) -> dict[str, str]:
        answers = await ctx.ask({name: Form(message, Name) for name, message in questions})
        return {name: answer.get().name for name, answer in answers.items()}

    return handler


async def test_a_new_version_keeps_the_answers_it_needs_and_asks_only_what_is_new() -> None:
    first = await play(asks(("who", "Who?"), ("old", "Old?")))
    new = asks(("who", "Who?"), ("new", "New?"))
    second = await play(new, first, {"who": accept(name="Ada"), "old": accept(name="gone")})
    assert messages(second) == {"new": "New?"}
    assert value_of(await play(new, second, {"new": accept(name="N")})) == {
        "who": "Ada",
        "new": "N",
    }


async def test_an_answer_to_a_question_that_reads_differently_now_is_stale_and_asked_again() -> (
    None
):
    first = await play(asks(("who", "Who?")))
    second = await play(asks(("who", "Whom?")), first, {"who": accept(name="Ada")})
    assert messages(second) == {"who~2": "Whom?"}
    third = await play(
        asks(("who", "Whom?")), second, {"who": accept(name="stale"), "who~2": accept(name="Bob")}
    )
    assert value_of(third) == {"who": "Bob"}


async def test_a_question_that_changed_before_it_was_answered_has_a_new_key_too() -> None:
    first = await play(asks(("who", "Who?")))
    second = await play(asks(("who", "Whom?")), first)
    assert messages(second) == {"who~2": "Whom?"}
    assert messages(
        await play(asks(("who", "Whom?")), second, {"who": accept(name="to the old one")})
    ) == {"who~2": "Whom?"}


@pytest.mark.parametrize(
    "before",
    [
        Form(
            "Who?", {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}
        ),
        Form("Who?", {"type": "object", "properties": {"name": {"type": "string"}}}),
    ],
    ids=["a bound", "required"],
)
async def test_a_form_whose_fields_changed_is_another_question(before: Form) -> None:
    async def old(ctx: Context) -> None:
        await ctx.ask({"who": before})

    second = await play(asks(("who", "Who?")), await play(old), {"who": accept(name="Ada")})
    assert messages(second) == {"who~2": "Who?"}


async def test_a_form_from_a_schema_written_in_another_order_is_the_same_question() -> None:
    schema = Name.model_json_schema()
    turned = {key: schema[key] for key in reversed(schema)}

    async def other(ctx: Context) -> Any:
        return await ctx.elicit("who", "Who?", turned)

    assert value_of(
        await play(other, await play(asks(("who", "Who?"))), {"who": accept(name="A")})
    ) == {"name": "A"}


async def test_what_was_wrong_is_told_of_the_last_answer_for_as_long_as_there_is_no_other() -> None:
    async def handler(ctx: Context) -> int:
        return (await ctx.elicit("age", "How old?", Age)).age

    second = await play(handler, await play(handler), {"age": accept(age=3)})
    again = await play(handler, second)
    third = await play(handler, again, {"age~2": accept(age="old")})
    assert messages(second) == messages(again)
    assert "answer.age: 3 is less than the minimum of 18" in messages(second)["age~2"]
    assert '"old" is not of type "integer"' in messages(third)["age~3"]
    assert value_of(await play(handler, third, {"age~3": accept(age=30)})) == 30


async def test_what_a_model_demands_beyond_its_schema_is_told_as_well() -> None:
    class Even(BaseModel):
        number: int = Field(multiple_of=2)

    async def handler(ctx: Context) -> int:
        return (await ctx.elicit("even", "Which?", Even)).number

    second = await play(handler, await play(handler), {"even": accept(number=3)})
    assert "number: Input should be a multiple of 2" in messages(second)["even~2"]


async def test_what_a_schema_demands_beyond_what_clients_are_shown_holds_too() -> None:
    fields = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]+$"}}}

    async def handler(ctx: Context) -> Any:
        return await ctx.elicit("code", "Code?", fields)

    first = await play(handler)
    assert "pattern" not in str(asked_of(first))
    assert list(asked_of(await play(handler, first, {"code": accept(code="abc")}))) == ["code~2"]
    assert value_of(await play(handler, first, {"code": accept(code="ABC")})) == {"code": "ABC"}


async def test_answers_to_what_was_never_asked_are_dropped() -> None:
    handler = asks(("who", "Who?"))
    stray = {"new": accept(name="x"), "who~2": accept(name="x"), "who#2": accept(name="x"), "": 1}
    second = await play(handler, await play(handler), stray)
    assert messages(second) == {"who": "Who?"}
    assert isinstance(second, Suspended)
    assert [entry.key for entry in second.journal.entries()] == ["who"]
    both = asks(("who", "Who?"), ("new", "New?"))
    assert list(messages(await play(both, second, {"who": accept(name="x")}))) == ["new"]


async def test_an_answer_that_came_before_counts_until_the_call_ends() -> None:
    handler = asks(("a", "A?"), ("b", "B?"))
    second = await play(handler, await play(handler), {"a": accept(name="first")})
    third = await play(
        handler, second, {"a": accept(name="changed my mind"), "b": accept(name="b")}
    )
    assert value_of(third) == {"a": "first", "b": "b"}


def unasked(**responses: Any) -> Journal:
    """A first round that brings answers along, as clients do that know a tool from before."""
    return Journal(unasked=responses)


async def test_once_taken_it_belongs_to_the_question_that_took_it() -> None:
    async def version(ctx: Context, message: str) -> None:
        await ctx.elicit("who", message, Name)
        await ctx.roots()

    first = await play(
        lambda_of(version, "Who?"), unasked(who=accept(name="a")), takes_unasked=True
    )
    assert list(asked_of(first)) == ["roots"]
    assert list(asked_of(await play(lambda_of(version, "Who?"), first))) == ["roots"]
    assert messages(await play(lambda_of(version, "Whom?"), first)) == {"who~2": "Whom?"}


def lambda_of(function: Any, *arguments: Any) -> Any:
    async def handler(ctx: Context) -> Any:
        return await function(ctx, *arguments)

    return handler


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "never answered"])
async def test_a_question_built_from_a_clock_ends_with_an_error_that_explains(
    answered: bool,
) -> None:
    clock = itertools.count()

    async def handler(ctx: Context) -> None:
        await ctx.elicit("when", f"It is {next(clock)} o'clock. Go?", Name)

    outcome, keys = await play(handler), list[str]()
    while isinstance(outcome, Suspended):
        keys += asked_of(outcome)
        outcome = await play(handler, outcome, {keys[-1]: accept(name="x")} if answered else {})
    assert keys == [f"when~{n}" if n > 1 else "when" for n in range(1, MAX_CHANGES + 1)]
    said = str(error_of(outcome))
    assert "question 'when' changes in every round" in said
    assert "ctx.now" in said


async def test_two_changes_with_a_usable_answer_between_are_no_clock() -> None:
    outcome: Any = None
    for version in range(8):
        handler = asks(("who", f"Who, in version {version}?"))
        outcome = await play(handler, outcome)
        outcome = await play(handler, outcome, {list(asked_of(outcome))[0]: 0})  # noqa: RUF015
    assert list(asked_of(outcome)) == ["who~16"]


async def test_a_clock_in_a_step_is_remembered_and_does_no_harm() -> None:
    clock = itertools.count()

    async def handler(ctx: Context) -> str:
        now = await ctx.step("now", lambda: next(clock))
        return (await ctx.elicit("when", f"It is {now} o'clock. Go?", Name)).name

    assert (await play_to_the_end(handler, polite)).rounds == [["when"]]


async def test_no_wire_key_ever_stands_for_two_questions() -> None:
    shown: dict[str, str] = {}

    async def version(ctx: Context, number: int) -> None:
        for index in range(2):
            await ctx.elicit("who", f"Question {number} {index}?", Name)

    outcome: Any = None
    for number, response in [
        (0, accept(name="x")),
        (1, 0),
        (1, accept(name="y")),
        (2, None),
        (2, accept(name="z")),
    ]:
        outcome = await play(lambda_of(version, number), outcome)
        for key, message in messages(outcome).items():
            assert shown.setdefault(key, message) == message
        outcome = await play(
            lambda_of(version, number), outcome, dict.fromkeys(asked_of(outcome), response)
        )
    assert len(shown) > 4


RAW = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Raw?", "requestedSchema": {}},
}


async def test_the_low_level_form_asks_by_itself_and_looks_answers_up() -> None:
    effects = Effects()

    async def handler(ctx: Context) -> Any:
        response = ctx.input_response("raw")
        if response is None:
            ctx.state["asked"] = ctx.state.get("asked", 0) + 1
            await ctx.request_input({"raw": RAW, "roots": {"method": "roots/list"}})
        effects.do("after")
        return [
            response,
            ctx.input_response("roots"),
            ctx.input_response("other"),
            ctx.state["asked"],
        ]

    first = await play(handler)
    assert asked_of(first) == {"raw": RAW, "roots": {"method": "roots/list"}}
    second = await play(handler, first, {"roots": {"roots": []}})
    assert list(asked_of(second)) == ["raw", "roots~2"]
    third = await play(handler, second, {"raw": {"any": "thing"}})
    assert value_of(third) == [{"any": "thing"}, None, None, 2]
    assert effects.seen == ["after"]


async def test_what_the_low_level_form_asks_anew_has_a_new_key() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.request_input({"raw": RAW})

    second = await play(handler, await play(handler), {"raw": {"any": "thing"}})
    third = await play(handler, second, {"raw~2": {"any": "thing"}})
    assert [list(asked_of(second)), list(asked_of(third))] == [["raw~2"], ["raw~3"]]


@pytest.mark.parametrize("response", [None, 5, "x", [1]], ids=repr)
async def test_a_response_that_is_no_object_is_none_to_the_low_level_form(response: Any) -> None:
    async def handler(ctx: Context) -> Any:
        return [ctx.input_response("raw")]

    assert value_of(await play(handler, unasked(raw=response), takes_unasked=True)) == [None]


async def test_an_unknown_method_in_the_low_level_form_is_refused() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.request_input({"raw": {"method": "tools/call"}})

    assert "roots/list" in str(error_of(await play(handler)))


async def test_the_journal_says_what_is_outstanding_in_the_order_asked() -> None:
    outcome = await play(asks(("b", "B?"), ("a", "A?"), ("c", "C?")))
    assert isinstance(outcome, Suspended)
    assert [entry.key for entry in outcome.journal.outstanding()] == ["b", "a", "c"]
    outcome.journal.receive({"a": accept(name="x")})
    assert [type(entry) for entry in outcome.journal.entries()] == [Asked, Answered, Asked]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "user", "content": Name(name="x")}, "content is Name"),
        ({"role": "user", 1: 2}, "has the key 1"),
    ],
    ids=["a model", "a key"],
)
async def test_a_question_that_is_not_json_is_refused_with_its_place(
    message: Any, place: str
) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.sample("say", [message], max_tokens=5)

    said = str(error_of(await play(handler)))
    assert said.startswith("question 'say'.params.messages[0]")
    assert place in said
