"""What a handler changes of a value is its own: what is remembered stays as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roundgate import tool
from roundgate.replay import Context, Journal, Suspended, SyncContext
from roundgate.replay.questions import Raw
from roundgate_testing import Gateway
from tests.support.clocks import FixedClock
from tests.support.lives import DiesAt, Story, every_death
from tests.support.replay import Effects, asked_of, play, play_to_the_end, value_of
from tests.support.rounds import accept, sampled
from tests.support.task_runs import SharedJournal

FORM = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}


def cart(number: int) -> dict[str, Any]:
    return {"number": number, "total": 10, "items": ["book"]}


def client(key: str, request: Any) -> Any:
    return accept(name="Ada")


def charging(charged: Effects) -> Any:
    async def handler(ctx: Context) -> Any:
        found = await ctx.step("cart", cart, 7)
        found["total"] += 5
        await ctx.elicit("go", "Charge it?", FORM)
        return await ctx.step("charge", charged.do, found["total"])

    return handler


def charging_in_a_thread(charged: Effects) -> Any:
    def handler(ctx: SyncContext) -> Any:
        found = ctx.step("cart", cart, 7)
        found["total"] += 5
        ctx.elicit("go", "Charge it?", FORM)
        return ctx.step("charge", charged.do, found["total"])

    return handler


@pytest.mark.parametrize("task_id", ["task", None])
@pytest.mark.parametrize("make", [charging, charging_in_a_thread])
async def test_what_is_charged_is_the_same_wherever_a_process_dies(
    make: Any, task_id: str | None
) -> None:
    async def lived(fate: DiesAt) -> None:
        charged = Effects()
        story = Story(make(charged), lambda _: accept(name="Ada"), fate, task_id=task_id)
        assert value_of(await story.told()) == 15
        assert set(charged.seen) == {15}

    await every_death(lived)


async def test_what_a_call_knew_before_it_became_a_task_is_what_it_was() -> None:
    charged = Effects()

    async def handler(ctx: Context) -> Any:
        found = await ctx.step("cart", cart, 7)
        found["total"] += 5
        found["items"].append("pen")
        await ctx.continue_as_task()
        return await ctx.step("charge", charged.do, [found["total"], *found["items"]])

    home = SharedJournal(task_id=None, may_become_task=True)
    outcome = await home.run(handler)
    assert isinstance(outcome, Suspended)
    assert outcome.wants_task
    home.task_id, home.may_become_task = "task", False
    assert value_of(await home.run(handler)) == [15, "book", "pen"]


async def test_a_changed_answer_is_not_held_against_its_form_again() -> None:
    async def handler(ctx: Context) -> str:
        first = await ctx.elicit("first", "Who?", FORM)
        first["name"] = f"{first['name']} Lovelace"  # longer than its form takes
        second = await ctx.elicit("second", "Who else?", FORM)
        second["title"] = "Countess"
        await ctx.elicit("third", "Sure?", FORM)
        return f"{first['name']}, {second['title']}"

    played = await play_to_the_end(handler, client)
    assert played.rounds == [["first"], ["second"], ["third"]]
    assert played.value == "Ada Lovelace, Countess"


async def test_so_it_is_with_polls_samples_roots_and_answers_as_they_came() -> None:
    async def handler(ctx: Context) -> Any:
        polled = await ctx.poll("poll", cart, 7, every_s=1)
        polled["items"].append("pen")
        sample = await ctx.sample("sample", "Say", max_tokens=5)
        content: Any = sample.content
        content[0]["text"] += "!"
        roots = await ctx.roots()
        roots.clear()
        raw = (await ctx.ask({"raw": Raw({"method": "roots/list"})}))["raw"].get()
        raw["roots"].append({"uri": "file:///more"})
        await ctx.elicit("go", "Go on?", FORM)
        return [polled["items"], sample.text, len(await ctx.roots("again")), len(raw["roots"])]

    def answers(key: str, request: Any) -> Any:
        match request["method"]:
            case "sampling/createMessage":
                return sampled("said")
            case "roots/list":
                return {"roots": [{"uri": "file:///root"}]}
        return accept(name="Ada")

    played = await play_to_the_end(handler, answers)
    assert played.value == [["book", "pen"], "said!", 1, 2]
    assert played.rounds == [["sample"], ["roots"], ["raw"], ["go"], ["again"]]


async def test_so_it_is_with_the_low_level_form() -> None:
    async def handler(ctx: Context) -> Any:
        response = ctx.input_response("who")
        if response is None:
            await ctx.request_input(
                {
                    "who": {
                        "method": "elicitation/create",
                        "params": {"message": "Who?", "requestedSchema": FORM},
                    }
                }
            )
        response["content"]["name"] += "!"
        ctx.state["name"] = response["content"]
        await ctx.shed()
        again = ctx.input_response("who")
        return [again["content"]["name"], response["content"]["name"], ctx.state["name"]["name"]]

    first = await play(handler)
    second = await play(handler, first, {"who": accept(name="Ada")})
    assert value_of(await play(handler, second)) == ["Ada", "Ada!", "Ada!"]


async def test_so_it_is_with_answers_that_nobody_had_asked_for() -> None:
    response = accept(name="Ada")
    journal = Journal(unasked={"who": response, "raw": response})

    async def handler(ctx: Context) -> Any:
        found = await ctx.elicit("who", "Who?", FORM)
        found["name"] += "!"
        raw = ctx.input_response("raw")
        raw["content"]["name"] += "?"
        return [found["name"], raw["content"]["name"]]

    assert value_of(await play(handler, journal, takes_unasked=True)) == ["Ada!", "Ada?"]
    assert response == accept(name="Ada")


async def test_a_default_is_the_handlers_own_in_every_call() -> None:
    default = {"name": "nobody"}

    async def handler(ctx: Context) -> Any:
        found = await ctx.elicit("who", "Who?", FORM, timeout_s=0.001, default=default)
        found["name"] += "!"
        return found["name"]

    clock = FixedClock()
    home = SharedJournal(clock=clock)
    assert isinstance(await home.run(handler), Suspended)
    clock.skip(1)
    assert [value_of(await home.run(handler)), default["name"]] == ["nobody!", "nobody"]


async def test_what_is_asked_is_what_it_was_when_it_was_asked() -> None:
    messages: list[Any] = [{"role": "user", "content": {"type": "text", "text": "Hello"}}]

    async def asks(ctx: Context) -> str:
        return (await ctx.sample("sample", messages, max_tokens=5)).text

    async def adds(ctx: Context) -> None:
        await ctx.step("add", lambda: None)
        messages[0]["content"]["text"] = "Good bye"

    async def handler(ctx: Context) -> Any:
        messages[0]["content"]["text"] = "Hello"
        return (await asyncio.gather(asks(ctx), adds(ctx)))[0]

    asked = asked_of(first := await play(handler))
    assert asked["sample"]["params"]["messages"][0]["content"]["text"] == "Hello"
    assert value_of(await play(handler, first, {"sample": sampled("said")})) == "said"


async def test_arguments_that_a_call_changes_are_not_those_of_its_task() -> None:
    @tool(task="optional")
    async def order(ctx: Context, cart: dict[str, Any]) -> list[str]:
        cart["items"].append("pen")
        await ctx.continue_as_task()
        await ctx.step("note", lambda: None)
        items: list[str] = cart["items"]
        return items

    async with Gateway(order) as gateway:
        result = await gateway.call("order", cart={"items": ["book"]})
        assert result.value == ["book", "pen"]


async def test_nor_are_those_that_a_call_was_restarted_with() -> None:
    @tool(task="optional")
    async def order(ctx: Context, cart: dict[str, Any], again: bool = True) -> list[str]:
        if again:
            await ctx.restart(cart=cart, again=False)
        cart["items"].append("pen")
        await ctx.shed()
        items: list[str] = cart["items"]
        return items

    async with Gateway(order) as gateway:
        result = await gateway.call("order", cart={"items": ["book"]})
        assert result.value == ["book", "pen"]
