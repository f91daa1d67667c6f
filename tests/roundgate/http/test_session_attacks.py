"""Answers and events that are forged, swapped, replayed, or older than a key; clients
that go at any moment."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from msgspec.structs import replace

from roundgate import Context, tool
from roundgate.auth.principal import Principal
from roundgate.errors import Unavailable
from roundgate.http.older.streams import Followers
from roundgate.settings.process import Settings
from roundgate.storage import TaskRef
from roundgate.tasks import hidden
from roundgate.tasks.hidden import Looks
from roundgate.tokens.keys import new_key
from tests.support import wire
from tests.support.asgi import gateway
from tests.support.issuer import PUBLIC_URL, gateway_for, token
from tests.support.rounds import Name, accept
from tests.support.sessions import BOTH, Event, Session, calling, opened, opening, request, text

OLD, NEW = new_key(), new_key()
steps: list[str] = []


@tool
async def order(ctx: Context, what: str = "tea") -> str:
    """Asks who it is for and where they are, with a slow step between."""
    who = await ctx.elicit("who", f"Who gets {what}?", Name)
    await ctx.step("pack", packed, f"{what} for {who.name}")
    where = await ctx.elicit("where", f"Where is {who.name}?", Name)
    return f"{what} for {who.name} in {where.name}"


async def packed(what: str) -> None:
    steps.append(what)
    await asyncio.sleep(0.5)


@pytest.fixture
def using(tmp_path: Path) -> Settings:
    steps.clear()
    return Settings(store=f"sqlite:///{tmp_path}/shared.sqlite3", state_keys=OLD)


@pytest.fixture
def app(using: Settings) -> FastAPI:
    return gateway(order, using=using)


async def begun() -> None:
    """Wait until some gateway has begun the step."""
    async with asyncio.timeout(60):
        while not steps:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def finished(session: Session, app: FastAPI, after: Event) -> str:
    """What comes of a call whose second question is answered after an event."""
    async with session.resumed(app, after.id) as stream:
        question = await stream.asked()
        await session.answer(app, question, accept(name="Rome"))
        return text((await stream.over())[-1])


async def test_an_answer_counts_for_the_question_that_its_id_names_and_for_no_other(
    app: FastAPI,
) -> None:
    session = await opened(app)
    async with (
        session.stream(app, calling("order", 1, what="tea")) as tea,
        session.stream(app, calling("order", 2, what="cake")) as cake,
    ):
        of_tea, of_cake = await tea.asked(), await cake.asked()
        # the answers come in the other order, and one of them twice with other words
        await session.answer(app, of_cake, accept(name="Bob"))
        await session.answer(app, of_tea, accept(name="Ann"))
        await session.answer(app, of_cake, accept(name="Eve"))
        assert (await tea.asked()).asked["params"]["message"] == "Where is Ann?"
        assert (await cake.asked()).asked["params"]["message"] == "Where is Bob?"


@pytest.mark.parametrize("change", ["cut", "flipped", "another's round", "upper"])
async def test_a_question_id_that_was_changed_is_of_no_question(app: FastAPI, change: str) -> None:
    session = await opened(app)
    async with session.stream(app, calling("order")) as stream:
        question = (await stream.asked()).asked
        given = question["id"]
        forged = {
            "cut": given[:-4],
            "flipped": given[:-9] + ("A" if given[-9] != "A" else "B") + given[-8:],
            "another's round": (await stream_id(session, app)),
            "upper": given.upper(),
        }[change]
        said = {"jsonrpc": "2.0", "id": forged, "result": accept(name="Eve")}
        assert (await session.send(app, said)).status_code == 400


async def stream_id(session: Session, app: FastAPI) -> str:
    """The token of an event, which is sealed with the same keys as the id of a question."""
    async with session.stream(app, calling("order")) as stream:
        return str((await stream.asked()).id).rpartition(".")[0]


async def test_an_old_event_that_is_replayed_gives_what_came_of_it_and_runs_nothing(
    app: FastAPI,
) -> None:
    session = await opened(app)
    async with session.stream(app, calling("order")) as stream:
        who = await stream.asked()
        await session.answer(app, who, accept(name="Ann"))
        where = await stream.asked()
        await session.answer(app, where, accept(name="Rome"))
        assert text((await stream.over())[-1]) == "tea for Ann in Rome"
    for event in (who, where, who):
        async with session.resumed(app, event.id) as again:
            last = (await again.over())[-1]
        assert text(last) == "tea for Ann in Rome"
    assert steps == ["tea for Ann"]


async def test_what_an_old_key_sealed_holds_while_it_is_known_and_no_longer(
    app: FastAPI, using: Settings
) -> None:
    rotated = gateway(order, using=replace(using, state_keys=f"{NEW},{OLD}"))
    retired = gateway(order, using=replace(using, state_keys=NEW))
    session = await opened(app)
    async with session.stream(app, calling("order")) as stream:
        question = await stream.asked()
    assert (await session.answer(rotated, question, accept(name="Ann"))).status_code == 202
    assert (await session.answer(retired, question, accept(name="Eve"))).status_code == 404
    async with session.resumed(retired, question.id) as refused:
        await refused.body()
    assert refused.status == 404
    assert await finished(session, rotated, question) == "tea for Ann in Rome"
    assert steps == ["tea for Ann"]


async def test_a_client_that_goes_while_its_answer_is_worked_on_comes_back_to_a_result(
    app: FastAPI, using: Settings
) -> None:
    session, other = await opened(app), gateway(order, using=using)
    async with session.stream(app, calling("order")) as stream:
        question = await stream.asked()
        await session.answer(other, question, accept(name="Ann"))
        await begun()
        stream.hang_up()
    assert await finished(session, other, question) == "tea for Ann in Rome"
    assert steps == ["tea for Ann"]


async def test_a_client_that_disconnects_does_not_affect_its_other_requests(
    app: FastAPI, using: Settings
) -> None:
    session, other = await opened(app), gateway(order, using=using)
    async with session.stream(app, calling("order")) as stream:
        question = await stream.asked()
        await session.answer(app, question, accept(name="Ann"))
        await begun()
        for _ in range(3):
            async with session.resumed(other, question.id) as twin:
                twin.hang_up()
        assert (await stream.asked()).asked["params"]["message"] == "Where is Ann?"
    assert steps == ["tea for Ann"]


async def test_a_client_that_uses_one_id_for_all_its_calls_is_served(
    app: FastAPI, using: Settings
) -> None:
    session, other = await opened(app), gateway(order, using=using)
    async with session.stream(app, calling("order", 1, what="tea")) as stream:
        abandoned = await stream.asked()
    async with session.stream(other, calling("order", 1, what="cake")) as stream:
        asked = await stream.asked()
        assert (await session.answer(app, abandoned, accept(name="Eve"))).status_code == 202
        await session.answer(app, asked, accept(name="Bob"))
        assert (await stream.asked()).asked["params"]["message"] == "Where is Bob?"
    assert steps == ["cake for Bob"]


async def test_a_call_that_is_replaced_has_no_result_of_the_other(
    app: FastAPI, using: Settings
) -> None:
    session, other = await opened(app), gateway(order, using=using)
    async with session.stream(app, calling("order", 1, what="tea")) as first:
        asked = await first.asked()
        async with session.stream(other, calling("order", 1, what="cake")) as second:
            await session.answer(app, await second.asked(), accept(name="Bob"))
            assert await first.over() == []
            await session.answer(app, await second.asked(), accept(name="Rome"))
            assert text((await second.over())[-1]) == "cake for Bob in Rome"
    async with session.resumed(app, asked.id) as again:
        await again.body()
    assert again.status == 400


async def test_a_call_that_is_just_being_replaced_is_not_told_that_it_was_too_late(
    app: FastAPI, using: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task was deleted, and that of the other does not exist yet."""
    session, other = await opened(app), gateway(order, using=using)
    is_over, tasks, created = asyncio.Event(), other.state.core.stores.tasks, 0
    real = tasks.create

    async def create(task: Any) -> Any:
        nonlocal created
        created += 1
        if created == 2:  # the first attempt found the task of the other
            await asyncio.wait_for(is_over.wait(), 60)
        return await real(task)

    monkeypatch.setattr(tasks, "create", create)
    async with session.stream(app, calling("order", 1, what="tea")) as first:
        await first.asked()
        async with session.stream(other, calling("order", 1, what="cake")) as second:
            assert await first.over() == []
            is_over.set()
            await second.asked()
    assert created == 2


@pytest.mark.parametrize("moved", ["..0", ".x.1", ".x.9999", ".x.99999", ".x", "", ".é.1", ".x.-1"])
async def test_a_position_that_nobody_sent_asks_again_or_is_refused(
    app: FastAPI, moved: str
) -> None:
    session = await opened(app)
    async with session.stream(app, calling("order")) as stream:
        question = await stream.asked()
    token = str(question.id).rsplit(".", 2)[0]
    async with session.resumed(app, f"{token}{moved}") as again:
        if moved in ("..0", ".x.1", ".x.9999", ".é.1"):
            assert (await again.asked()).asked["params"] == question.asked["params"]
        else:
            await again.body()
            assert again.status == 400


async def test_a_call_with_which_every_process_dies_is_given_up(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden.HiddenTasks, "has_died_often", lambda tasks, record: True)
    session = await opened(app)
    async with session.stream(app, calling("order")) as stream:
        await session.answer(app, await stream.asked(), accept(name="Ann"))
        (response,) = await stream.over()
    assert "it is not run again" in text(response)
    assert steps == []


@tool(scopes=["orders"])
async def pay(ctx: Context) -> str:
    """Needs a scope, and asks."""
    return f"paid by {(await ctx.elicit('who', 'Who pays?', Name)).name}"


async def test_what_came_of_a_call_is_not_for_a_token_that_may_not_call_it(
    tmp_path: Path,
) -> None:
    using = Settings(
        store=f"sqlite:///{tmp_path}/shared.sqlite3",
        state_keys=OLD,
        public_url=PUBLIC_URL,
        listen="off",
    )
    async with gateway_for(pay, using=using) as (mcp, _):
        headers = {"content-type": "application/json", "accept": BOTH}
        full = {**headers, "authorization": f"Bearer {token(scope='orders')}"}
        opening_ = await mcp.http.post("/mcp", json=opening(), headers=full)
        full["mcp-session-id"] = opening_.headers["mcp-session-id"]
        asked = await mcp.http.post("/mcp", json=calling("pay"), headers=full)
        last = [line for line in asked.text.split("\r\n") if line.startswith("data: {")][-1]
        event_id = asked.text.rpartition("id: ")[2].partition("\r\n")[0]
        question = json.loads(last.removeprefix("data: "))
        said = {"jsonrpc": "2.0", "id": question["id"], "result": accept(name="Ann")}
        assert (await mcp.http.post("/mcp", json=said, headers=full)).status_code == 202
        full["last-event-id"] = event_id
        assert "paid by Ann" in (await mcp.http.get("/mcp", headers=full)).text
        # the same caller, whose token may do less now
        full["authorization"] = f"Bearer {token(scope='read')}"
        less = await mcp.http.get("/mcp", headers=full)
        assert less.status_code == 403
        assert "paid by Ann" not in less.text


async def test_a_batch_in_which_everything_is_wrong_has_an_error_for_each(app: FastAPI) -> None:
    session = await opened(app, "2025-03-26")
    twice = request("ping", request_id="same")
    wrong: list[Any] = [
        7,
        None,
        [],
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"},
        {"jsonrpc": "2.0", "id": "nobody asked", "result": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "no/such"},
        request("tools/call", {"name": 7}, 2),
        request("tools/call", {"name": "continue_call", "arguments": {"token": "x"}}, 3),
        request("subscriptions/listen", {"notifications": {}}, 4),
    ]
    response = await session.send(app, [*wrong, twice, twice])
    assert response.status_code == 200
    answers = wire.events(response.text)
    assert ["error" in one for one in answers] == [True] * len(wrong) + [False] * 2
    assert [one["id"] for one in answers[-6:]] == [1, 2, 3, 4, "same", "same"]


def test_requests_that_wait_are_bounded_for_each_caller_and_for_all() -> None:
    followers = Followers(lambda ref: nullcontext(Looks()), max_open=5, max_per_caller=3)
    ref = TaskRef("owner", "~task")
    ann, bob, eve = (Principal("issuer", name, "client") for name in ("ann", "bob", "eve"))
    waiting = [followers.following(ref, ann) for _ in range(2)] + [followers.room(ann)]
    for one in waiting:
        one.__enter__()
    with pytest.raises(Unavailable, match="max_streams_per_caller"), followers.following(ref, ann):
        pass
    with followers.following(ref, bob), followers.room(bob), pytest.raises(Unavailable):
        followers.following(ref, eve).__enter__()
    for one in waiting:
        one.__exit__(None, None, None)
    assert followers.open == 0
    with followers.following(ref, ann) as looks:
        followers.close()
        assert looks.news.is_set()
