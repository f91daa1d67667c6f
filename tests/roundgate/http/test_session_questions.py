"""Questions to clients of the revisions with sessions: asked on the stream of the call,
answered at any replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from mcp_types import _v2025_11_25 as official
from msgspec.structs import replace

from roundgate import Context, Form, Roots, Sample, SyncContext, prompt, tool
from roundgate.client import Client, Question
from roundgate.client.questions import Kind
from roundgate.http.older import calls
from roundgate.methods.rounds import IDEMPOTENCY_KEY
from roundgate.settings.process import Settings
from tests.support import sessions
from tests.support.asgi import NO_FALLBACK, gateway
from tests.support.rounds import Name, accept, sampled
from tests.support.sessions import Event, Session, calling, cancelling, opened, request

steps: list[str] = []
"""What steps have been run, in all gateways of a test."""


def noted(what: str) -> str:
    steps.append(what)
    return what


@tool
async def greet(ctx: Context) -> str:
    """Does something, asks who it is for, and does something else."""
    await ctx.step("before", noted, "before")
    who = await ctx.elicit("who", "Who are you?", Name)
    await ctx.step("after", noted, f"after {who.name}")
    where = await ctx.elicit("where", f"Where is {who.name}?", Name)
    return f"{who.name} in {where.name}"


@tool
async def three(ctx: Context) -> str:
    """Asks three things of three kinds at once."""
    answers = await ctx.ask(
        {"name": Form("Name?", Name), "poem": Sample("Rhyme", max_tokens=9), "roots": Roots()}
    )
    return f"{answers['name'].get().name}, {answers['poem'].get().text}, {answers['roots'].get()[0].uri}"


@tool
async def page(ctx: Context) -> str:
    """Sends the user to a page."""
    await ctx.elicit_url("login", "Log in", "https://example.com/login")
    return "gone there"


@tool
async def connect(ctx: Context) -> str:
    """Sends the user to two pages, says that they are done with, and asks."""
    await ctx.elicit_url("login", "Log in", "https://example.com/login")
    await ctx.elicit_url("pay", "Pay", "https://example.com/pay")
    await ctx.elicit_url_done("login")
    await ctx.elicit_url_done("pay")
    who = await ctx.elicit("who", "Who?", Name)
    await ctx.elicit_url_done("pay")
    return f"connected, {who.name}"


@tool
def connect_blocking(ctx: SyncContext) -> str:
    """Does it in a thread, twice under one name."""
    for _ in range(2):
        ctx.elicit_url("login", "Log in", "https://example.com/login")
        ctx.elicit_url_done("login")
    return "connected"


@tool
async def early(ctx: Context) -> str:
    """Says that a page is done with to which it sent nobody."""
    try:
        await ctx.elicit_url_done("login")
    except ValueError as error:
        return str(error)
    return "no error"


@tool
async def choose(ctx: Context) -> str:
    """Asks for one of two, and for several of three."""
    fields = {
        "one": {
            "type": "string",
            "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}],
            "default": "a",
        },
        "some": {"type": "array", "items": {"type": "string", "enum": ["x", "y", "z"]}},
    }
    answer = (await ctx.ask({"choice": Form("Choose", {"type": "object", "properties": fields})}))[
        "choice"
    ]
    return f"{answer.value['one']} {'+'.join(answer.value['some'])}"


@tool
async def shed(ctx: Context, size: int) -> str:
    """Remembers so many characters, and asks."""
    ctx.state["much"] = "x" * size
    return f"{(await ctx.elicit('who', 'Who?', Name)).name} {len(ctx.state['much'])}"


@tool(name="sampled")
async def sampled_(ctx: Context) -> str:
    """Asks a model twice."""
    await ctx.step("before", noted, "before")
    who = (await ctx.sample("who", "Who?", max_tokens=5)).text
    await ctx.step("after", noted, f"after {who}")
    return f"{who} in {(await ctx.sample('where', 'Where?', max_tokens=5)).text}"


@tool
async def counted(ctx: Context) -> dict[str, int]:
    """Asks, and has an output schema."""
    return {"n": len((await ctx.elicit("who", "Who?", Name)).name)}


@prompt
async def letter(ctx: Context) -> str:
    """Asks whom it is for."""
    return f"Dear {(await ctx.elicit('who', 'To whom?', Name)).name}"


TOOLS = (
    greet,
    three,
    page,
    connect,
    connect_blocking,
    early,
    choose,
    shed,
    sampled_,
    counted,
    letter,
)


@pytest.fixture
def two(using: Settings) -> Iterator[tuple[FastAPI, FastAPI]]:
    """Two gateways with nothing in common but a store and a key."""
    steps.clear()
    apps = [gateway(*TOOLS, using=using, fallback=NO_FALLBACK) for _ in range(2)]
    yield apps[0], apps[1]
    steps.clear()


@pytest.fixture
def finite(using: Settings) -> FastAPI:
    """A gateway where no stream can be held."""
    return gateway(*TOOLS, using=replace(using, listen="off"))


def error_text(response: dict[str, Any]) -> str:
    """Of a response with the error of a tool."""
    assert response["result"]["isError"], response
    return sessions.text(response)


def text(response: dict[str, Any]) -> str:
    """Of a response with the result of a tool that went well."""
    assert not response["result"].get("isError"), response
    return sessions.text(response)


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_a_question_is_answered_at_another_gateway_than_the_one_that_asks(
    two: tuple[FastAPI, FastAPI], version: str
) -> None:
    holder, other = two
    session = await opened(other, version)
    async with session.stream(holder, calling("greet", request_id="call")) as stream:
        who = await stream.asked()
        official.ElicitRequest.model_validate(who.asked)
        assert (await session.answer(other, who, accept(name="Ann"))).status_code == 202
        where = await stream.asked()
        assert where.asked["params"]["message"] == "Where is Ann?"
        assert (await session.answer(other, where, accept(name="Rome"))).status_code == 202
        (response,) = await stream.over()
    assert response["id"] == "call"
    assert text(response) == "Ann in Rome"
    assert steps == ["before", "after Ann"]


async def test_a_repeated_call_with_a_key_asks_all_its_questions_again(using: Settings) -> None:
    @tool(once=True)
    async def introduce(ctx: Context) -> str:
        """Asks twice, once for each key."""
        steps.append("introduce")
        who = await ctx.elicit("who", "Who?", Name)
        return f"{who.name} in {(await ctx.elicit('where', 'Where?', Name)).name}"

    steps.clear()
    app = gateway(introduce, using=using, fallback=NO_FALLBACK)
    session = await opened(app)
    for number in range(2):
        asked = calling("introduce", request_id=number + 1)
        asked["params"]["_meta"] = {IDEMPOTENCY_KEY: "k"}
        async with session.stream(app, asked) as stream:
            for name in ("Ann", "Rome"):
                await session.answer(app, await stream.asked(), accept(name=name))
            (response,) = await stream.over()
        assert text(response) == "Ann in Rome"
    assert steps == ["introduce"] * 3


async def test_questions_of_one_round_are_asked_together_each_as_its_own_request(
    two: tuple[FastAPI, FastAPI],
) -> None:
    holder, other = two
    session = await opened(holder)
    async with session.stream(holder, calling("three")) as stream:
        asked = {one.asked["method"]: one for one in [await stream.asked() for _ in range(3)]}
        official.CreateMessageRequest.model_validate(asked["sampling/createMessage"].asked)
        assert "params" not in asked["roots/list"].asked
        await session.answer(other, asked["roots/list"], {"roots": [{"uri": "file:///a"}]})
        await session.answer(other, asked["sampling/createMessage"], sampled("a poem"))
        await session.answer(other, asked["elicitation/create"], accept(name="Bob"))
        (response,) = await stream.over()
    assert text(response) == "Bob, a poem, file:///a"


async def test_a_page_to_open_has_an_id_of_its_own(two: tuple[FastAPI, FastAPI]) -> None:
    session = await opened(two[0], capabilities={"elicitation": {"url": {}}})
    async with session.stream(two[0], calling("page")) as stream:
        question = await stream.asked()
        official.ElicitRequest.model_validate(question.asked)
        await session.answer(two[1], question, {"action": "accept"})
        (response,) = await stream.over()
    assert text(response) == "gone there"


COMPLETE = "notifications/elicitation/complete"
BOTH_MODES: dict[str, Any] = {"elicitation": {"url": {}, "form": {}}}


async def test_a_client_is_told_once_that_its_user_is_done_with_a_page(
    two: tuple[FastAPI, FastAPI],
) -> None:
    """In whatever order and however many rounds later, with the id of the page's question."""
    session = await opened(two[0], capabilities=BOTH_MODES)
    async with session.stream(two[0], calling("connect")) as stream:
        pages = []
        for _ in range(2):
            pages.append(await stream.asked())
            await session.answer(two[1], pages[-1], {"action": "accept"})
        ids = [page.asked["params"]["elicitationId"] for page in pages]
        assert len(set(ids)) == 2
        told = [await stream.message(), await stream.message()]
        for one in told:
            official.ElicitationCompleteNotification.model_validate(one)
        assert [one["method"] for one in told] == [COMPLETE, COMPLETE]
        assert [one["params"]["elicitationId"] for one in told] == ids
        await session.answer(two[1], await stream.asked(), accept(name="Bob"))
        (response,) = await stream.over()
    assert text(response) == "connected, Bob"


async def test_a_page_of_a_name_that_was_used_before_has_an_id_of_its_own(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0], capabilities=BOTH_MODES)
    async with session.stream(two[0], calling("connect_blocking")) as stream:
        asked, done = [], []
        for _ in range(2):
            page = await stream.asked()
            asked.append(page.asked["params"]["elicitationId"])
            await session.answer(two[1], page, {"action": "accept"})
            done.append((await stream.message())["params"]["elicitationId"])
        (response,) = await stream.over()
    assert (text(response), len(set(asked)), done) == ("connected", 2, asked)


async def test_a_page_that_nobody_was_sent_to_is_a_mistake(two: tuple[FastAPI, FastAPI]) -> None:
    session = await opened(two[0], capabilities=BOTH_MODES)
    response = await session.send(two[0], calling("early"))
    assert "call ctx.elicit_url('login', …)" in text(response.json())


async def test_a_client_of_2026_07_28_is_not_told_because_that_has_no_such_notification(
    two: tuple[FastAPI, FastAPI],
) -> None:
    seen: list[Any] = []

    def answer(question: Question) -> Any:
        return {"name": "Bob"} if question.kind is Kind.FORM else True

    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(two[0])) as http,
        Client(
            "http://127.0.0.1/mcp",
            http=http,
            versions=["2026-07-28"],
            answers=answer,
            observer=lambda direction, message, status: seen.append(message),
        ) as client,
    ):
        done = await client.call("connect", on_progress=lambda progress: None)
    assert done.value == "connected, Bob"
    assert not [one for one in seen if one.get("method") == COMPLETE]


@pytest.mark.parametrize(
    ("version", "name", "capabilities", "says"),
    [
        ("2025-11-25", "greet", {}, "elicitation"),
        ("2025-06-18", "page", {"elicitation": {}}, "elicitation.url"),
        ("2025-03-26", "greet", {"elicitation": {}}, "elicitation"),
    ],
)
async def test_a_client_that_cannot_be_asked_is_told_what_it_lacks(
    two: tuple[FastAPI, FastAPI], version: str, name: str, capabilities: dict[str, Any], says: str
) -> None:
    session = await opened(two[0], version, capabilities)
    response = await session.send(two[0], calling(name))
    assert says in error_text(response.json())


async def test_a_form_is_asked_in_2025_06_18_as_that_has_forms(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0], "2025-06-18")
    async with session.stream(two[0], calling("choose")) as stream:
        question = await stream.asked()
        assert question.asked["params"].keys() == {"message", "requestedSchema"}
        one, some = question.asked["params"]["requestedSchema"]["properties"].values()
        assert one == {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]}
        assert some["type"] == "string"
        assert "x, y, z" in some["description"]
        await session.answer(two[1], question, accept(one="b", some="x, z"))
        (response,) = await stream.over()
    assert text(response) == "b x+z"


async def test_a_prompt_asks_too(two: tuple[FastAPI, FastAPI]) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], request("prompts/get", {"name": "letter"})) as stream:
        await session.answer(two[1], await stream.asked(), accept(name="Eve"))
        (response,) = await stream.over()
    assert response["result"]["messages"][0]["content"]["text"] == "Dear Eve"


async def test_who_declines_ends_the_call_politely(two: tuple[FastAPI, FastAPI]) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("greet")) as stream:
        await session.answer(two[1], await stream.asked(), {"action": "decline"})
        (response,) = await stream.over()
    assert "declined" in error_text(response)


async def test_a_client_that_answers_with_an_error_ends_the_call_with_its_reason(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("greet")) as stream:
        question = await stream.asked()
        error = {"code": -32600, "message": "Elicitation not supported"}
        await session.send(two[1], {"jsonrpc": "2.0", "id": question.asked["id"], "error": error})
        (response,) = await stream.over()
    assert "Elicitation not supported" in error_text(response)


async def test_an_answer_of_the_wrong_shape_is_asked_for_again(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("greet")) as stream:
        await session.answer(two[1], await stream.asked(), accept(name=7))
        again = await stream.asked()
        assert "could not be used" in again.asked["params"]["message"]
        await session.answer(two[1], again, {"nonsense": True})
        await session.answer(two[1], await stream.asked(), {"action": "cancel"})
        (response,) = await stream.over()
    assert "dismissed" in error_text(response)


async def test_the_first_answer_counts(two: tuple[FastAPI, FastAPI]) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("greet")) as stream:
        who = await stream.asked()
        twice = [
            session.answer(two[n], who, accept(name=name)) for n, name in ((1, "Ann"), (1, "Bob"))
        ]
        assert [(await one).status_code for one in twice] == [202, 202]
        where = await stream.asked()
        assert where.asked["params"]["message"] == "Where is Ann?"
        await session.answer(two[1], where, accept(name="Rome"))
        (response,) = await stream.over()
    assert text(response) == "Ann in Rome"
    assert (await session.answer(two[1], where, accept(name="late"))).status_code == 202


@pytest.mark.parametrize("question_id", ["", "x", 7, "v1.a.b"])
async def test_an_answer_that_nobody_asked_for_is_refused(
    two: tuple[FastAPI, FastAPI], question_id: Any
) -> None:
    session = await opened(two[0])
    response = await session.send(two[0], {"jsonrpc": "2.0", "id": question_id, "result": {}})
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)
    assert "not asked" in response.json()["error"]["message"]


async def test_an_answer_from_another_session_is_none(two: tuple[FastAPI, FastAPI]) -> None:
    session, another = await opened(two[0]), await opened(two[0])
    async with session.stream(two[0], calling("greet")) as stream:
        question = await stream.asked()
        assert (await another.answer(two[1], question, accept(name="Eve"))).status_code == 400
        await session.answer(two[1], question, {"action": "cancel"})
        (response,) = await stream.over()
    assert "dismissed" in error_text(response)


@pytest.mark.parametrize(
    "wrong", [{"result": 1}, {"result": {}, "error": {}}, {"error": "no"}, {"result": None}]
)
async def test_a_response_that_is_none_is_refused(
    two: tuple[FastAPI, FastAPI], wrong: dict[str, Any]
) -> None:
    session = await opened(two[0])
    response = await session.send(two[0], {"jsonrpc": "2.0", "id": 1, **wrong})
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)


async def goes_on(session: Session, app: FastAPI, after: Event) -> str:
    """Resume a call of `greet` after an event, at a gateway, and answer the rest of its questions there."""
    async with session.resumed(app, after.id) as stream:
        while True:
            event = await stream.message()
            if "method" not in event:
                return text(event)
            name = "Ann" if event["params"]["message"] == "Who are you?" else "Rome"
            await session.answer(app, Event(None, event), accept(name=name))


@pytest.mark.parametrize("is_answered", ["before", "after"])
async def test_a_call_whose_holder_is_gone_goes_on_at_another_gateway(
    two: tuple[FastAPI, FastAPI], is_answered: str
) -> None:
    holder, other = two
    session = await opened(holder)
    async with session.stream(holder, calling("greet")) as stream:
        question = await stream.asked()
    # the stream has been cut off, and with it the call at its holder
    if is_answered == "before":
        await session.answer(other, question, accept(name="Ann"))
        assert await goes_on(session, other, question) == "Ann in Rome"
    else:
        async with session.resumed(other, question.id) as stream:
            await session.answer(other, question, accept(name="Ann"))
            where = await stream.asked()
        await session.answer(holder, where, accept(name="Rome"))
        assert await goes_on(session, holder, where) == "Ann in Rome"
    assert steps == ["before", "after Ann"]


async def test_a_question_that_the_client_has_not_seen_is_asked_again_and_no_other(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("three")) as stream:
        first = await stream.asked()
    async with session.resumed(two[1], first.id) as stream:
        rest = [await stream.asked() for _ in range(2)]
        assert first.asked["method"] not in {one.asked["method"] for one in rest}
        for one in (first, *rest):
            result = {
                "elicitation/create": accept(name="Bob"),
                "sampling/createMessage": sampled("a poem"),
                "roots/list": {"roots": [{"uri": "file:///a"}]},
            }[one.asked["method"]]
            await session.answer(two[0], one, result)
        (response,) = await stream.over()
    assert text(response) == "Bob, a poem, file:///a"


async def test_a_state_that_is_too_long_for_a_header_is_kept(two: tuple[FastAPI, FastAPI]) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("shed", size=20_000)) as stream:
        question = await stream.asked()
    assert question.id is not None
    assert len(question.id) < 4_100
    async with session.resumed(two[1], question.id) as stream:
        await session.answer(two[0], question, accept(name="Bob"))
        (response,) = await stream.over()
    assert text(response) == "Bob 20000"


@pytest.mark.parametrize("event_id", ["x", "x.1", "v1.a.b.1", "1", ".", "é"])
async def test_an_event_that_nobody_sent_is_refused(
    two: tuple[FastAPI, FastAPI], event_id: str
) -> None:
    session = await opened(two[0])
    async with session.resumed(two[0], event_id) as stream:
        body = await stream.body()
    assert stream.status == 400
    assert b"Last-Event-ID" in body


async def test_an_event_of_another_session_is_refused(two: tuple[FastAPI, FastAPI]) -> None:
    session, another = await opened(two[0]), await opened(two[0])
    async with session.stream(two[0], calling("greet")) as stream:
        question = await stream.asked()
    async with another.resumed(two[0], question.id) as stream:
        await stream.body()
    assert stream.status == 400


async def test_a_call_cut_off_before_its_question_arrived_asks_again_and_reruns_nothing(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("greet")) as stream:
        primed = await stream.next()
    assert primed.message is None
    assert await goes_on(session, two[1], primed) == "Ann in Rome"
    assert steps == ["before", "after Ann"]


@pytest.mark.parametrize("where", [0, 1])
async def test_a_call_that_is_cancelled_ends_without_a_response_wherever_that_is_said(
    two: tuple[FastAPI, FastAPI], where: int
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("greet", request_id=9)) as stream:
        await stream.asked()
        assert (await session.send(two[where], cancelling(9))).status_code == 202
        assert await stream.over() == []


@pytest.mark.parametrize(
    "settings",
    [
        {"sessions": {"answer_timeout_s": 1}},
        {"sessions": {"answer_timeout_s": 600}, "state": {"lifetime_s": 1}},
    ],
    ids=["answer", "state"],
)
async def test_a_question_that_is_not_answered_in_time_ends_its_call(
    using: Settings, settings: dict[str, Any]
) -> None:
    app = gateway(*TOOLS, using=using, **settings)
    session = await opened(app)
    async with session.stream(app, calling("greet")) as stream:
        await stream.asked()
        (response,) = await stream.over()
    assert "not answered in time" in error_text(response)


async def test_calls_that_wait_for_answers_are_bounded_for_each_caller(using: Settings) -> None:
    app = gateway(*TOOLS, using=using, http={"max_streams_per_caller": 2})
    session = await opened(app)
    async with (
        session.stream(app, calling("greet", 1)) as one,
        session.stream(app, calling("greet", 2)) as two_,
    ):
        await one.asked()
        question = await two_.asked()
        third = await session.send(app, calling("greet", 3))
        assert (
            third.status_code == 200
        )  # its first round has run, and 503 would make clients repeat it
        assert "wait for answers" in error_text(third.json())
        assert "may have taken effect" in error_text(third.json())
        await session.answer(app, question, {"action": "cancel"})
        await two_.over()
        async with session.stream(app, calling("greet", 4)) as again:
            assert (await again.asked()).id is not None


async def test_who_takes_no_stream_is_told_that_it_cannot_be_asked(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0])
    response = await session.send(two[0], calling("greet"), accept="application/json")
    assert "cannot be asked" in error_text(response.json())


async def test_where_no_stream_is_held_bodies_are_finite_and_resumed(finite: FastAPI) -> None:
    app, session = finite, await opened(finite)
    async with session.stream(app, calling("shed", size=10)) as stream:
        question = await stream.asked()
        assert await stream.over() == []
    await session.answer(app, question, accept(name="Ann"))
    async with session.resumed(app, question.id) as stream:
        (response,) = await stream.over()
    assert text(response) == "Ann 10"


async def test_there_a_get_waits_for_a_moment_only_and_says_where_to_go_on(finite: FastAPI) -> None:
    app, session = finite, await opened(finite)
    async with session.stream(app, calling("shed", size=10)) as stream:
        question = await stream.asked()
    async with session.resumed(app, question.id) as stream:
        async with asyncio.timeout(60):
            event = await stream.next()
        assert await stream.over() == []
    assert event.message is None
    await session.answer(app, question, accept(name="Ann"))
    async with session.resumed(app, event.id) as stream:
        (response,) = await stream.over()
    assert text(response) == "Ann 10"


def token_of(response: dict[str, Any], name: str = "continue_call") -> str:
    """The token of a result that says that a call is pending."""
    said: str = response["result"]["content"][0]["text"]
    assert f"Call the tool {name} with this token" in said
    word, token = said.split("\n")[0].split(" ")
    assert word == "PENDING"
    return token


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26"])
async def test_there_a_client_that_does_not_resume_goes_on_by_calling_again(
    finite: FastAPI, using: Settings, version: str
) -> None:
    steps.clear()
    other = gateway(*TOOLS, using=replace(using, listen="off"))
    session = await opened(finite, version, {"elicitation": {}, "sampling": {}})
    name = "greet" if version == "2025-06-18" else "sampled"
    async with session.stream(finite, calling(name)) as stream:
        who = await stream.asked()
        (response,) = await stream.over()
    token = token_of(response)
    assert len(token) < 1_010
    assert (await session.answer(other, who, said_by(who, "Ann"))).status_code == 202
    async with session.stream(other, calling("continue_call", 7, token=token)) as stream:
        where = await stream.asked()
        (response,) = await stream.over()
    assert response["id"] == 7
    await session.answer(finite, where, said_by(where, "Rome"))
    again = calling("continue_call", 8, token=token_of(response))
    response = (await session.send(finite, again)).json()
    assert text(response) == "Ann in Rome"
    assert steps == ["before", "after Ann"]


def said_by(question: Event, name: str) -> dict[str, Any]:
    """An answer of either kind."""
    is_form = question.asked["method"] == "elicitation/create"
    return accept(name=name) if is_form else sampled(name)


async def test_a_call_that_comes_too_early_there_is_pending_and_asks_nothing_twice(
    finite: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SHORT_WAIT_S", 0.2)
    session = await opened(finite, "2025-06-18")
    async with session.stream(finite, calling("greet")) as stream:
        question = await stream.asked()
        (response,) = await stream.over()
    early = calling("continue_call", token=token_of(response))
    async with session.stream(finite, early) as stream:
        body = json.loads(await stream.body())
    await session.answer(finite, question, {"action": "decline"})
    last = await session.send(finite, calling("continue_call", token=f"PENDING {token_of(body)}"))
    assert "declined" in error_text(last.json())


@pytest.mark.parametrize("token", [None, "", "x", "x.1", 7, ["a"], "v1.a.b.1"])
async def test_there_a_token_that_nobody_was_given_is_an_error_that_the_model_reads(
    finite: FastAPI, token: Any
) -> None:
    session = await opened(finite, "2025-06-18")
    response = await session.send(finite, calling("continue_call", token=token))
    assert "not valid" in error_text(response.json())


async def test_there_a_token_is_good_for_its_session_alone(finite: FastAPI) -> None:
    session, another = [await opened(finite, "2025-06-18") for _ in range(2)]
    async with session.stream(finite, calling("greet")) as stream:
        (_, response) = await stream.over()
    taken = await another.send(finite, calling("continue_call", token=token_of(response)))
    assert "not valid" in error_text(taken.json())


async def test_the_tool_for_tokens_is_listed_there_and_for_who_needs_it(
    finite: FastAPI, using: Settings
) -> None:
    async def listed(app: FastAPI, version: str) -> list[str]:
        result = await (await opened(app, version)).result(app, "tools/list")
        return [one["name"] for one in result["tools"]]

    assert (await listed(finite, "2025-06-18"))[-1] == "continue_call"
    assert "continue_call" not in await listed(finite, "2025-11-25")
    assert "continue_call" not in await listed(gateway(*TOOLS, using=using), "2025-06-18")


async def test_there_a_tool_with_an_output_schema_is_pending_as_an_error(finite: FastAPI) -> None:
    # clients refuse a result without structure where a schema promises some
    session = await opened(finite, "2025-06-18")
    async with session.stream(finite, calling("counted")) as stream:
        (_, response) = await stream.over()
    assert response["result"]["isError"]
    assert token_of(response)


async def test_there_who_takes_no_events_is_told_that_it_cannot_be_asked(finite: FastAPI) -> None:
    session = await opened(finite, "2025-06-18")
    response = await session.send(finite, calling("greet"), accept="application/json")
    assert "cannot be asked" in error_text(response.json())
