"""Clients of the transport of 2024-11-05 show why they are not served."""

from __future__ import annotations

import json

import httpx
import pytest
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client

from roundgate.http import routes
from roundgate.settings.process import Settings
from tests.support.asgi import gateway
from tests.support.functions import EVERYTHING
from tests.support.listening import served_in_a_thread

SAYS = "use Streamable HTTP at /mcp"


async def test_the_official_client_of_that_transport_shows_the_sentence() -> None:
    with served_in_a_thread(gateway(*EVERYTHING), log_config=None, lifespan="off") as url:
        async with sse_client(f"{url}/sse") as (read, write), ClientSession(read, write) as session:
            with pytest.raises(MCPError, match=SAYS):
                await session.initialize()


@pytest.mark.parametrize("streams", [True, False])
async def test_a_post_is_refused_with_the_sentence_under_its_id(streams: bool) -> None:
    app = gateway(*EVERYTHING, using=Settings(listen="auto" if streams else "off"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as http:
        opening = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {}}
        response = await http.post("/sse", json=opening)
        assert (response.status_code, response.json()["id"]) == (400, 7)
        assert SAYS in response.json()["error"]["message"]
        plain = await http.get("/sse", headers={"accept": "application/json"})
        assert SAYS in plain.json()["error"]["message"]
        garbage = await http.post("/sse", content=b"\xff" * 70_000)
        assert garbage.status_code == 400


async def test_a_stream_is_not_opened_where_none_can_be_held() -> None:
    app = gateway(*EVERYTHING, using=Settings(listen="off"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as http:
        response = await http.get("/sse", headers={"accept": "text/event-stream"})
    assert response.status_code == 400
    assert SAYS in response.json()["error"]["message"]


async def test_the_stream_says_where_to_post_and_ends_after_some_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "PAUSES_S", (0.0, 0.01))
    app = gateway(*EVERYTHING)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as http:
        response = await http.get("/sse", headers={"accept": "text/event-stream"})
    first, *errors = response.text.strip().split("\r\n\r\n")
    assert first == "event: endpoint\r\ndata: /sse?from=sse"
    assert [json.loads(one.partition("data: ")[2])["id"] for one in errors] == [0, 1, 0, 1]
