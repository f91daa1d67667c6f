"""JSON-RPC errors of servers on tools/call: their code and data, and pages that a user has to open
(-32042)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from roundgate.client import Client
from tests.support.asgi import client
from tests.support.older_servers import (
    CAPABLE,
    Asking,
    again,
    answer_to,
    asking,
    call,
    clients,
    gateways,
    older_server,
    replica,
    said,
)
from tests.support.scripted import Asked, error, scripted
from tests.support.sdk_servers import NEW, over_http
from tests.support.upstreams import Upstream, entry

PAGE = "https://bank.example/consent?id=1"
ACCEPT = {"action": "accept"}
NEEDED = {
    "elicitations": [{"mode": "url", "elicitationId": "e1", "message": "Sign in", "url": PAGE}]
}


@pytest.mark.parametrize("era", ["older", "newer"])
async def test_a_page_that_a_call_needs_is_asked_for_and_the_call_is_repeated(
    era: str, tmp_path: Path
) -> None:
    up = older_server(tmp_path) if era == "older" else over_http(NEW, tmp_path)
    async with up as server, clients(tmp_path, server.entry) as (one, other):
        asked = await call(one, "pay")
        (question,) = asked["result"]["inputRequests"].values()
        assert question == {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "Sign in", "url": PAGE},
        }
        assert said(await again(other, "pay", asked, ACCEPT)) == "paid"
        assert server.noted() == ["pay", "pay"]


async def test_clients_of_every_revision_with_pages_are_asked_for_the_page(tmp_path: Path) -> None:
    async with older_server(tmp_path) as up:
        with gateways(tmp_path, up.entry, count=1) as (server,):
            for version in ("2026-07-28", "2025-11-25"):
                pages: list[str] = []

                def opens(question: Any, pages: list[str] = pages) -> Any:
                    pages.append(question.url)
                    return True

                url = f"{server.url}/mcp"
                async with Client(url, versions=[version], answers=opens) as ann:
                    assert (await ann.call("up__pay")).text == "paid"
                assert pages == [PAGE]
            async with Client(url, versions=["2025-06-18"], answers=answer_to) as ann:
                assert PAGE in (await ann.call("up__pay")).text


async def test_a_page_that_the_user_refuses_ends_the_call(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path) as up,
        replica(tmp_path, up.entry) as app,
        client(app) as mcp,
    ):
        for action in ("decline", "cancel"):
            asked = await call(mcp, "pay")
            ended = await again(mcp, "pay", asked, {"action": action})
            assert ended["result"]["isError"] is True
            assert action in said(ended)
            assert said(await call(mcp, "pay")) == "paid"  # the server asks every other time
        assert up.noted() == ["pay"] * 4


async def test_a_page_is_asked_for_once_a_call_and_named_in_each_error(tmp_path: Path) -> None:
    refuses = Upstream(lambda asked: error(asked, -32042, "Sign in first", NEEDED))
    async with (
        scripted(refuses) as server,
        replica(tmp_path, entry(server)) as app,
        client(app) as mcp,
    ):
        ended = await again(mcp, "t", await call(mcp, "t"), ACCEPT)
        assert ended["result"]["isError"] is True
        assert f"Sign in: {PAGE}" in said(ended)
        assert server.methods().count("tools/call") == 2
        params = {"name": "up__t", "arguments": {}}
        alone = await mcp.result("tools/call", params)  # declares no capability
        assert f"Sign in: {PAGE}" in alone["content"][0]["text"]
        assert alone["_meta"]["roundgate/error"] == {"code": -32042, "data": NEEDED}


async def test_a_page_that_a_prompt_or_resource_needs_is_asked_for(tmp_path: Path) -> None:
    async with older_server(tmp_path) as up, clients(tmp_path, up.entry) as (one, other):
        for method, params, expected in (
            ("prompts/get", {"name": "up__bill", "arguments": {}}, "billed"),
            ("resources/read", {"uri": "bill://1"}, "billed"),
        ):
            sent: dict[str, Any] = {"clientCapabilities": CAPABLE}
            asked = (await one.post(method, params, **sent)).json()["result"]
            answered = {
                "inputResponses": dict.fromkeys(asked["inputRequests"], ACCEPT),
                "requestState": asked["requestState"],
            }
            assert expected in (await other.post(method, {**params, **answered}, **sent)).text


async def test_an_error_of_a_call_keeps_its_code_and_data(tmp_path: Path) -> None:
    data = {"retry": [1, None], "why": "full"}
    upstream = Upstream()
    async with (
        scripted(upstream) as server,
        replica(tmp_path, entry(server)) as app,
        client(app) as mcp,
    ):
        for code in (-32603, -32001, 1234):
            upstream.call = partial(error, code=code, message="no seats", data=data, status=200)
            result = (await call(mcp, "t"))["result"]
            assert result["isError"] is True
            assert "no seats" in result["content"][0]["text"]
            assert result["_meta"]["roundgate/error"] == {"code": code, "data": data}


async def test_an_error_after_a_question_keeps_its_code_and_data(tmp_path: Path) -> None:
    def refuse(asked: Asked) -> list[dict[str, Any]]:
        refusal = {"code": 1234, "message": "no seats", "data": {"left": 0}}
        return [{"id": asked.message["id"], "error": refusal}]

    async with asking(tmp_path, Asking(refuse)) as (_, app), client(app) as mcp:
        asked = await call(mcp, "t")
        result = (await again(mcp, "t", asked, {"action": "decline"}))["result"]
    assert "no seats" in result["content"][0]["text"]
    assert result["_meta"]["roundgate/error"] == {"code": 1234, "data": {"left": 0}}
