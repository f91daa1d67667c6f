"""Questions in words: clients that cannot be asked are told what is needed, and a
tool takes the answers."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, Form, Roots, Sample, tool
from roundgate.errors import ConfigError
from roundgate.settings.process import Settings
from tests.support.asgi import client, gateway
from tests.support.replay import Name
from tests.support.rounds import KEYS, accept, retry, sampled
from tests.support.sessions import called, tools_of

steps: list[str] = []


def noted(what: str) -> str:
    steps.append(what)
    return what


@tool
async def greet(ctx: Context, greeting: str) -> str:
    """Does something, asks twice, and does something else."""
    await ctx.step("before", noted, "before")
    who = await ctx.elicit("who", "Who are you?", Name)
    where = await ctx.elicit("where", f"Where is {who.name}?", Name)
    await ctx.step("after", noted, f"after {who.name}")
    return f"{greeting} {who.name} in {where.name}"


@tool
async def three(ctx: Context) -> str:
    """Asks three things of three kinds at once."""
    answers = await ctx.ask(
        {"name": Form("Name?", Name), "poem": Sample("Rhyme", max_tokens=9), "roots": Roots()}
    )
    return f"{answers['name'].get().name}, {answers['poem'].get().text}, {answers['roots'].get()[0].uri}"


@tool
async def both(ctx: Context) -> str:
    """Sends the user to a page, and asks with a form."""
    await ctx.elicit_url("login", "Log in", "https://example.com/login")
    await ctx.step("between", noted, "between")
    return (await ctx.elicit("who", "Who are you?", Name)).name


@tool
async def parts(ctx: Context) -> str:
    """Asks, and does what it does in two rounds."""
    who = await ctx.elicit("who", "Who are you?", Name)
    await ctx.step("first", noted, "first")
    await ctx.shed()
    return who.name


@tool
async def page(ctx: Context) -> str:
    """Sends the user to a page."""
    await ctx.elicit_url("login", "Log in", "https://example.com/login")
    return "gone there"


@tool
async def long(ctx: Context, size: int) -> str:
    """Remembers so many characters, and asks."""
    ctx.state["much"] = "x" * size
    return f"{(await ctx.elicit('who', 'Who?', Name)).name} {len(ctx.state['much'])}"


@tool(once=True)
async def pay(ctx: Context, amount: int) -> str:
    """Pays, once."""
    who = await ctx.elicit("who", "To whom?", Name)
    await ctx.step("pay", noted, f"paid {who.name}")
    return f"{amount} for {who.name}"


@tool
async def count() -> dict[str, int]:
    """Has an output schema."""
    return {"n": 1}


@tool
async def destroy() -> str:
    """Destroys everything."""
    steps.append("destroyed")
    return "destroyed"


TOOLS = (greet, three, page, both, parts, long, pay, count, destroy)
OFF = {"ask_in_words": False}
IN_WORDS = {"ask_in_words": True}


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    steps.clear()


@pytest.fixture(scope="module")
def using(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("store")
    return Settings(store=f"sqlite:///{folder}/shared.sqlite3", state_keys=KEYS)


@pytest.fixture(scope="module")
def app(using: Settings) -> FastAPI:
    return gateway(*TOOLS, using=using, fallback=IN_WORDS)


def told(result: dict[str, Any]) -> str:
    """The text of a result that is no error."""
    assert not result.get("isError"), result
    text: str = result["content"][0]["text"]
    return text


def refused(result: dict[str, Any]) -> str:
    """The text of an error."""
    assert result["isError"], result
    text: str = result["content"][0]["text"]
    return text


def state_in(result: dict[str, Any]) -> str:
    """The state of a result that asks, as a model copies it from the example."""
    example = json.loads(told(result).splitlines()[-1])
    assert example.keys() == {"state", "answers"}
    state: str = example["state"]
    return state


EVERY = pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"])
EITHER = pytest.mark.parametrize("version", ["2026-07-28", "2025-03-26"])
"""With and without a session."""


@EITHER
async def test_a_call_goes_on_with_answers_in_words_at_any_gateway(
    app: FastAPI, using: Settings, version: str
) -> None:
    other = partial(called, gateway(*TOOLS, using=using, fallback=IN_WORDS), version)
    asked = await called(app, version, "greet", greeting="Hello")
    assert "Who are you?" in told(asked)
    assert "do not make" in told(asked)
    again = await other("answer", state=state_in(asked), answers={"who": accept(name="Ann")})
    assert "Where is Ann?" in told(again)
    where = {"where": accept(name="Rome")}
    result = await called(app, version, "answer", state=state_in(again), answers=where)
    assert told(result) == "Hello Ann in Rome"
    assert steps == ["before", "after Ann"]


@EVERY
async def test_the_tool_for_answers_is_listed_for_who_needs_it(
    app: FastAPI, using: Settings, version: str
) -> None:
    listed = await tools_of(app, version)
    assert listed["answer"]["inputSchema"]["required"] == ["state", "answers"]
    assert "outputSchema" not in listed["count"]
    off = gateway(*TOOLS, using=using, fallback=OFF)
    assert "answer" not in await tools_of(off, version)


@EITHER
async def test_a_tool_that_is_known_to_ask_asks_in_words_without_a_setting(
    using: Settings, version: str
) -> None:
    app = gateway(*TOOLS, using=using)
    model = partial(called, app, version)
    assert "Question" in told(await model("greet", greeting="Hi"))
    assert "answer" in await tools_of(app, version)
    assert "Question" not in told(await model("count")), "it asks nothing"


async def test_a_client_that_can_be_asked_sees_and_gets_what_it_always_did(
    app: FastAPI, using: Settings
) -> None:
    able: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
    async with client(app) as mcp:
        listed = await mcp.result("tools/list", clientCapabilities=able)
        async with client(gateway(*TOOLS, using=using, fallback=OFF)) as off:
            assert listed["tools"] == (await off.result("tools/list"))["tools"]
        assert listed["cacheScope"] == "private"
        call = {"name": "greet", "arguments": {"greeting": "Hi"}}
        response = await mcp.post("tools/call", call, clientCapabilities=able)
    assert response.json()["result"]["resultType"] == "input_required"


async def test_what_the_client_can_be_asked_it_is_asked_and_the_rest_in_words(app: FastAPI) -> None:
    async with client(app) as mcp:
        forms: dict[str, Any] = {"elicitation": {}}
        asks = await mcp.post(
            "tools/call",
            {"name": "greet", "arguments": {"greeting": "Hi"}},
            clientCapabilities=forms,
        )
        assert asks.json()["result"]["resultType"] == "input_required"
        words = await mcp.call("three", clientCapabilities=forms)
    assert "Question poem, for you" in told(words)


async def test_what_comes_after_an_answer_in_words_the_client_can_be_asked(app: FastAPI) -> None:
    forms: dict[str, Any] = {"elicitation": {}}
    async with client(app) as mcp:
        words = await mcp.call("both", clientCapabilities=forms)
        arguments = {"state": state_in(words), "answers": {"login": {"action": "accept"}}}
        call: dict[str, Any] = {"name": "answer", "arguments": arguments}
        form = (await mcp.post("tools/call", call, clientCapabilities=forms)).json()["result"]
        assert form["inputRequests"].keys() == {"who"}
        answered = retry(call, form, who=accept(name="Ann"))
        assert told(await mcp.result("tools/call", answered, clientCapabilities=forms)) == "Ann"
    assert steps == ["between"]


async def test_an_answer_in_words_may_take_several_rounds(app: FastAPI) -> None:
    async with client(app) as mcp:
        state = state_in(await mcp.call("parts"))
        arguments = {"state": state, "answers": {"who": accept(name="Ann")}}
        call: dict[str, Any] = {"name": "answer", "arguments": arguments}
        shed = (await mcp.post("tools/call", call)).json()["result"]
        assert shed["resultType"] == "input_required"
        assert told(await mcp.result("tools/call", retry(call, shed))) == "Ann"
    assert steps == ["first"]


async def test_questions_of_every_kind_are_asked_in_words(app: FastAPI) -> None:
    model = partial(called, app, "2025-06-18")
    asked = await model("three")
    answers = {
        "name": accept(name="Bob"),
        "poem": sampled("a poem"),
        "roots": {"roots": [{"uri": "file:///a"}]},
    }
    result = await model("answer", state=state_in(asked), answers=answers)
    assert told(result) == "Bob, a poem, file:///a"
    asked = await model("page")
    assert "https://example.com/login" in told(asked)
    went = {"login": {"action": "accept"}}
    assert told(await model("answer", state=state_in(asked), answers=went)) == "gone there"


async def test_an_answer_that_does_not_fit_or_is_missing_is_asked_for_again(app: FastAPI) -> None:
    model = partial(called, app, "2025-06-18")
    asked = await model("greet", greeting="Hello")
    again = await model("answer", state=state_in(asked), answers={"who": accept(name=7)})
    assert "could not be used" in told(again)
    still = await model("answer", state=state_in(again), answers={"nobody": {}})
    assert "Who are you?" in told(still)
    answers = {"who": {"action": "decline"}, "who~2": {"action": "decline"}}
    assert "declined" in refused(await model("answer", state=state_in(still), answers=answers))
    assert steps == ["before"]


async def test_a_state_that_is_too_long_to_copy_is_kept(app: FastAPI) -> None:
    model = partial(called, app, "2025-06-18")
    state = state_in(await model("long", size=20_000))
    assert len(state) < 1_000
    result = await model("answer", state=state, answers={"who": accept(name="Bob")})
    assert told(result) == "Bob 20000"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"state": "x", "answers": {}},
        {"state": "v1.a.b", "answers": {"who": {}}},
        {"state": 7, "answers": {}},
        {"state": "", "answers": []},
    ],
)
async def test_a_state_that_nobody_was_given_is_an_error_that_the_model_reads(
    app: FastAPI, arguments: dict[str, Any]
) -> None:
    assert refused(await called(app, "2025-06-18", "answer", **arguments))


async def test_a_request_state_is_no_state_in_words(app: FastAPI) -> None:
    async with client(app) as mcp:
        call = {"name": "greet", "arguments": {"greeting": "Hi"}}
        asks = await mcp.post("tools/call", call, clientCapabilities={"elicitation": {}})
        state = asks.json()["result"]["requestState"]
        answer = await mcp.call("answer", {"state": state, "answers": {"who": accept(name="A")}})
    assert "not valid" in refused(answer)


async def test_what_must_happen_once_happens_once(app: FastAPI) -> None:
    model = partial(called, app, "2025-06-18")
    state = state_in(await model("pay", amount=5))
    for _ in range(2):
        result = await model("answer", state=state, answers={"who": accept(name="Ann")})
        assert told(result) == "5 for Ann"
    other = await model("answer", state=state, answers={"who": accept(name="Eve")})
    assert "not valid" in refused(other)
    assert steps == ["paid Ann"]


@EITHER
async def test_an_approval_is_never_asked_in_words(using: Settings, version: str) -> None:
    app = gateway(*TOOLS, using=using, fallback=IN_WORDS, backend={"approve": "destructive"})
    if version == "2026-07-28":
        async with client(app) as mcp:
            _, error = await mcp.error("tools/call", {"name": "destroy", "arguments": {}})
        assert error["code"] == -32021
        text = error["message"]
    else:
        text = refused(await called(app, version, "destroy"))
    assert "a person" in text
    assert "elicitation.form" in text
    assert steps == []


async def test_an_approval_is_not_asked_in_words_because_of_what_is_asked_beside_it(
    using: Settings,
) -> None:
    schema = {
        "type": "object",
        "properties": {"approve": {"type": "boolean", "title": "Go ahead", "default": False}},
        "required": ["approve"],
    }

    @tool
    async def aside(ctx: Context) -> str:
        """Asks for an approval and for a poem, each by itself."""
        approval = Form("Run it?", schema, is_approval=True)
        await asyncio.gather(
            ctx.ask({"approve": approval}), ctx.ask({"poem": Sample("Rhyme", max_tokens=9)})
        )
        return noted("ran")

    async with client(gateway(aside, using=using, fallback=IN_WORDS)) as mcp:
        params = {"name": "aside", "arguments": {}}
        _, error = await mcp.error("tools/call", params, clientCapabilities={"elicitation": {}})
    assert error["code"] == -32021
    assert error["data"]["requiredCapabilities"] == {"sampling": {}}
    assert steps == []


@pytest.mark.parametrize("for_all", [True, False])
async def test_one_tool_may_be_asked_in_words_and_another_not(
    using: Settings, for_all: bool
) -> None:
    override = {"greet": {"ask_in_words": not for_all}}
    app = gateway(
        *TOOLS, using=using, fallback={"ask_in_words": for_all}, backend={"override": override}
    )
    model = partial(called, app, "2025-06-18")
    greeted, gone = await model("greet", greeting="Hello"), await model("page")
    words, none = (gone, greeted) if for_all else (greeted, gone)
    assert "not finished" in told(words)
    assert "elicitation" in refused(none)


async def test_a_name_that_another_tool_has_is_an_error_at_the_start(using: Settings) -> None:
    @tool
    async def answer() -> str:
        """Somebody's own tool."""
        return "mine"

    with pytest.raises(ConfigError) as raised:
        gateway(greet, answer, using=using, fallback=IN_WORDS)
    (problem,) = raised.value.problems
    assert "'answer'" in str(problem)
    assert "fallback.answer_tool" in str(problem)
    app = gateway(
        greet, answer, using=using, fallback={**IN_WORDS, "answer_tool": "reply_to_question"}
    )
    model = partial(called, app, "2025-06-18")
    asked = await model("greet", greeting="Hello")
    assert "call the tool reply_to_question" in told(asked)
    answers = {"who": accept(name="Ann")}
    again = await model("reply_to_question", state=state_in(asked), answers=answers)
    assert "Where is Ann?" in told(again)
    assert told(await model("answer")) == "mine"


async def test_many_questions_in_words_at_once_do_not_meet(app: FastAPI) -> None:
    model = partial(called, app, "2025-06-18")

    async def whole(name: str) -> str:
        asked = await model("long", size=len(name))
        answers = {"who": accept(name=name)}
        return told(await model("answer", state=state_in(asked), answers=answers))

    names = [f"{'n' * n}" for n in range(1, 9)]
    assert await asyncio.gather(*map(whole, names)) == [f"{n} {len(n)}" for n in names]
