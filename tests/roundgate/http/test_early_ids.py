"""What is refused before it is read is answered under its id where that is easily had:
clients show nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from roundgate.http.bodies import MAX_BYTES, id_from_body
from tests.support import wire
from tests.support.asgi import Client

LONG = "x" * (MAX_BYTES + 1)


def sent(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("request_id", [7, 0, -1, "seven", ""])
async def test_a_request_to_a_wrong_host_is_refused_under_its_id(
    mcp: Client, request_id: Any
) -> None:
    response = await mcp.post("tools/list", request_id=request_id, headers={"host": "evil.example"})
    assert response.status_code == 403
    assert response.json()["id"] == request_id
    assert "evil.example" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"accept": "text/html"}, 406),
        ({"origin": "https://evil.example"}, 403),
    ],
)
async def test_so_it_is_whatever_is_wrong_with_its_head(
    mcp: Client, headers: dict[str, str | None], status: int
) -> None:
    response = await mcp.post("tools/list", request_id="seven", headers=headers)
    assert (response.status_code, response.json()["id"]) == (status, "seven")


async def test_a_body_of_unknown_length_is_not_read_for_its_id(mcp: Client) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield pytest.fail("the body was read")

    headers = {"content-type": "application/json", "host": "evil.example"}
    response = await mcp.http.post("/mcp", content=never(), headers=headers)
    assert response.status_code == 403
    assert "id" not in response.json()


async def test_a_body_with_too_many_values_is_refused_under_its_id(mcp: Client) -> None:
    response = await mcp.post(
        "tools/call", {"name": "add", "arguments": {"a": [0] * 200_000}}, request_id=9
    )
    assert (response.status_code, response.json()["id"]) == (413, 9)
    swapped = {"jsonrpc": "2.0", "method": "tools/call", "params": {"a": [0] * 200_000}, "id": 9}
    last = await mcp.http.post(
        "/mcp", content=sent(swapped), headers=wire.headers(wire.message("tools/list"))
    )
    assert (last.status_code, last.json()["id"]) == (413, 9)


@pytest.mark.parametrize("origin", ["http://127.0.0.1"])
async def test_pages_may_read_the_session_and_the_challenge(mcp: Client, origin: str) -> None:
    response = await mcp.post("tools/list", headers={"origin": origin})
    exposed = {
        name.strip().lower()
        for name in response.headers["access-control-expose-headers"].split(",")
    }
    assert exposed == {"www-authenticate", "mcp-session-id"}


async def test_pages_may_end_a_session(mcp: Client) -> None:
    preflight = {"origin": "http://127.0.0.1", "access-control-request-method": "DELETE"}
    response = await mcp.http.options("/mcp", headers=preflight)
    assert response.status_code == 200
    assert "DELETE" in response.headers["access-control-allow-methods"]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (sent({"jsonrpc": "2.0", "id": 1, "method": "ping"}), 1),
        (sent({"id": 1, "result": {}}), None),
        (sent([{"id": 1, "method": "ping"}]), None),
        (b'{"id": 1, "method": ', None),
        (b"\xff", None),
        (sent({"jsonrpc": "2.0", "id": "a", "method": "x", "params": {"t": LONG}}), "a"),
        (sent({"method": "x", "params": {"t": LONG}, "jsonrpc": "2.0", "id": 3}), 3),
        (sent({"method": "x", "params": {"t": LONG, "id": 3}}), None),
        (sent({"method": "x", "params": {"id": 3, "t": LONG}, "jsonrpc": "2.0"}), None),
        (sent({"method": "x", "id": None, "params": {"t": LONG}}), None),
    ],
    ids=range(10),
)
def test_an_id_is_found_where_clients_write_it_and_nowhere_else(body: bytes, found: Any) -> None:
    assert id_from_body(body) == found
