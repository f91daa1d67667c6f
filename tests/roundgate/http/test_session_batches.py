"""Batches of 2025-03-26: every element is answered for itself, and whatever is wrong
with one is its own error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import tool
from roundgate.http.older.endpoint import MAX_BATCH
from tests.support import wire
from tests.support.asgi import gateway
from tests.support.functions import EVERYTHING
from tests.support.sessions import Session, calling, opened, opening, request, telling

NOTE = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return gateway(*EVERYTHING)


@pytest.fixture
async def session(app: FastAPI) -> Session:
    return await opened(app, "2025-03-26")


async def test_each_request_of_a_batch_has_its_response(app: FastAPI, session: Session) -> None:
    batch = [
        request("ping", request_id="a"),
        NOTE,
        calling("add", request_id="b", a=1, b=2),
        calling("no", "c"),
    ]
    response = await session.send(app, batch)
    assert response.status_code == 200
    ping, add, unknown = wire.events(response.text)
    assert ping == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert (add["id"], add["result"]["content"][0]["text"]) == ("b", "3")
    assert (unknown["id"], unknown["error"]["code"]) == ("c", -32602)


async def test_a_batch_without_requests_is_accepted(app: FastAPI, session: Session) -> None:
    response = await session.send(app, [NOTE, NOTE])
    assert (response.status_code, response.content) == (202, b"")


async def test_what_is_told_of_a_batch_makes_it_a_stream(app: FastAPI, session: Session) -> None:
    response = await session.send(app, [telling("report", "r"), request("ping", request_id="p")])
    events = wire.events(response.text)
    assert [one.get("id") for one in events[-2:]] == ["r", "p"]
    assert {one["method"] for one in events[:-2]} == {
        "notifications/progress",
        "notifications/message",
    }


@pytest.mark.parametrize(
    ("element", "code"),
    [
        ([request("ping")], -32600),
        (7, -32600),
        ({}, -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, -32600),
        (opening(), -32600),
        ({"jsonrpc": "2.0", "id": "nobody asked", "result": {}}, -32600),
        (request("resources/read", {"uri": "note://nowhere/x/y/z"}), -32002),
    ],
)
async def test_what_is_wrong_with_an_element_is_its_own_error(
    app: FastAPI, session: Session, element: Any, code: int
) -> None:
    response = await session.send(app, [element, request("ping", request_id="well")])
    assert response.status_code == 200
    wrong, well = wire.events(response.text)
    assert wrong["error"]["code"] == code
    assert well["id"] == "well"


@pytest.mark.parametrize("batch", [[], [NOTE] * (MAX_BATCH + 1)], ids=["none", "too many"])
async def test_a_batch_has_some_elements_and_not_too_many(
    app: FastAPI, session: Session, batch: Any
) -> None:
    response = await session.send(app, batch)
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)
    assert str(MAX_BATCH) in response.json()["error"]["message"]


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_other_revisions_have_no_batches(app: FastAPI, version: str) -> None:
    response = await (await opened(app, version)).send(app, [request("ping")])
    assert response.status_code == 400
    assert version in response.json()["error"]["message"]


async def test_a_batch_of_no_session_is_none_of_2026_07_28(app: FastAPI) -> None:
    response = await Session("nobody's", "2025-03-26").send(app, [request("ping")])
    assert response.status_code == 404


class Shop:
    """Tools that note how many of them run at once."""

    def __init__(self) -> None:
        self.running, self.most, self.ran = 0, 0, 0

    def gateway(self, **sections: Any) -> FastAPI:
        @tool
        async def bring(size: int) -> str:
            """Brings a text of so many characters."""
            self.ran += 1
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            return "x" * size

        return gateway(bring, **sections)


async def test_the_elements_of_a_batch_are_served_as_one_request_after_another() -> None:
    shop = Shop()
    app = shop.gateway()
    session = await opened(app, "2025-03-26")
    response = await session.send(app, [calling("bring", n, size=10) for n in range(MAX_BATCH)])
    assert [one["id"] for one in wire.events(response.text)] == list(range(MAX_BATCH))
    assert (shop.ran, shop.most) == (MAX_BATCH, 1)


async def test_what_has_no_room_in_the_answer_to_a_batch_is_not_run() -> None:
    shop = Shop()
    app = shop.gateway(http={"max_body_bytes": 10_000})
    session = await opened(app, "2025-03-26")
    batch = [calling("bring", n, size=6_000) for n in range(4)]
    response = await session.send(app, [*batch, NOTE, request("ping", request_id="late")])
    first, second, *others = wire.events(response.text)
    assert {len(one["result"]["content"][0]["text"]) for one in (first, second)} == {6_000}
    assert [one["id"] for one in others] == [2, 3, "late"]
    assert {one["error"]["message"].partition(";")[0] for one in others} == {
        "The answers before this one in the batch are too large (http.max_body_bytes)"
    }
    assert shop.ran == 2


async def test_a_client_that_has_hung_up_has_no_more_of_its_batch_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "roundgate.request")
    begun, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @tool
    async def slow(number: int) -> str:
        """Takes a while."""
        begun.set()
        await go_on.wait()
        ran.append(number)
        return "done"

    app = gateway(slow)
    session = await opened(app, "2025-03-26")
    batch: Any = [calling("slow", n, number=n) for n in range(3)]
    async with session.stream(app, batch) as stream:
        await begun.wait()
        await stream.gone()
        go_on.set()
        await stream.over()
    assert ran == [0]
    lines = [record.__dict__["fields"] for record in caplog.records]
    ends = {line["method"]: line["outcome"] for line in lines if "method" in line}
    assert ends["batch"] == "cancelled"


async def test_each_response_of_a_batch_is_sent_when_it_is_there() -> None:
    go_on = asyncio.Event()

    @tool
    async def slow(waits: bool) -> str:
        """Takes a while, if it waits."""
        if waits:
            await go_on.wait()
        return "done"

    app = gateway(slow)
    session = await opened(app, "2025-03-26")
    batch: Any = [calling("slow", 1, waits=False), calling("slow", 2, waits=True)]
    async with session.stream(app, batch) as stream:
        assert (await stream.message())["id"] == 1
        go_on.set()
        assert [one["id"] for one in await stream.over()] == [2]


async def test_a_client_that_takes_no_streams_gets_one_array(
    app: FastAPI, session: Session
) -> None:
    batch = [request("ping", request_id=n) for n in range(3)]
    response = await session.send(app, batch, accept="application/json")
    assert response.headers["content-type"] == "application/json"
    assert [one["id"] for one in response.json()] == [0, 1, 2]
