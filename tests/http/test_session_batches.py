"""Batches of 2025-03-26: every element is answered for itself, and whatever is wrong
with one is its own error."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from roundgate.protocol.messages import MAX_BATCH
from tests.support import wire
from tests.support.asgi import gateway
from tests.support.functions import EVERYTHING
from tests.support.sessions import Session, calling, opened, opening, request

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
    ping, add, unknown = response.json()
    assert ping == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert (add["id"], add["result"]["content"][0]["text"]) == ("b", "3")
    assert (unknown["id"], unknown["error"]["code"]) == ("c", -32602)


async def test_a_batch_without_requests_is_accepted(app: FastAPI, session: Session) -> None:
    response = await session.send(app, [NOTE, NOTE])
    assert (response.status_code, response.content) == (202, b"")


async def test_what_is_told_of_a_batch_makes_it_a_stream(app: FastAPI, session: Session) -> None:
    asked = calling("report", "r")
    asked["params"]["_meta"] = {"progressToken": 1}
    response = await session.send(app, [asked, request("ping", request_id="p")])
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
    wrong, well = response.json()
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
