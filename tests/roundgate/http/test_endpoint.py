"""POST /mcp: which requests are taken at all, and what each is answered with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from tests.support import wire
from tests.support.asgi import Client, Exchange, client, gateway
from tests.support.functions import add

CALL = wire.call("add", {"a": 1, "b": 2})
HEADERS = wire.headers(CALL)


@pytest.mark.parametrize(
    "method", ["GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW"]
)
async def test_only_post_is_allowed(mcp: Client, method: str) -> None:
    response = await mcp.http.request(method, "/mcp", headers=HEADERS)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert method == "HEAD" or wire.valid_error(response)["code"] == -32600


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/json-rpc",
        "application/x-www-form-urlencoded",
        "",
        "json",
        "application/json,text/x",
    ],
)
async def test_only_json_is_taken(mcp: Client, content_type: str) -> None:
    response = await mcp.http.post(
        "/mcp", json=CALL, headers={**HEADERS, "content-type": content_type}
    )
    assert response.status_code == 415
    assert "application/json" in wire.valid_error(response)["message"]


async def test_a_body_without_content_type_is_not_taken(mcp: Client) -> None:
    response = await mcp.post("tools/list", headers={"content-type": None})
    assert response.status_code == 415


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "APPLICATION/JSON", " application/json ;x=y"],
)
async def test_the_content_type_may_have_parameters_and_any_case(
    mcp: Client, content_type: str
) -> None:
    response = await mcp.post("tools/list", headers={"content-type": content_type})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "accept",
    [
        "text/html",
        "",
        "application/xml, image/*",
        "application/jsonx",
        "a/b," * 100 + "application/json, text/event-stream",
    ],
)
async def test_a_client_that_accepts_neither_json_nor_events_is_refused(
    mcp: Client, accept: str
) -> None:
    response = await mcp.post("tools/list", headers={"accept": accept})
    assert response.status_code == 406
    assert "text/event-stream" in wire.valid_error(response)["message"]


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/*",
        "text/html, APPLICATION/JSON;q=0.9",
        "application/json,text/event-stream",
    ],
)
async def test_a_client_that_accepts_json_gets_json(mcp: Client, accept: str) -> None:
    response = await mcp.post("tools/list", headers={"accept": accept})
    assert response.headers["content-type"] == "application/json"
    wire.valid_result("tools/list", response.json())


async def test_a_client_that_says_nothing_of_what_it_accepts_is_served() -> None:
    no_accept = {name: value for name, value in HEADERS.items() if name != "accept"}
    async with Exchange(gateway(add), CALL, no_accept) as exchange:
        assert json.loads(await exchange.body())["result"]["structuredContent"] == 3


async def test_a_client_that_accepts_only_events_gets_the_result_as_an_event(mcp: Client) -> None:
    response = await mcp.post("tools/list", headers={"accept": "text/event-stream"})
    assert response.headers["content-type"] == "text/event-stream"
    (only,) = wire.events(response.text)
    wire.valid_result("tools/list", only)


@pytest.mark.parametrize(
    "lines",
    [["text/event-stream", "application/json"], ["application/json", "text/html"], ["", "*/*"]],
)
async def test_accept_may_come_in_several_lines(lines: list[str]) -> None:
    no_accept = {name: value for name, value in HEADERS.items() if name != "accept"}
    async with Exchange(
        gateway(add), CALL, no_accept, [("accept", line) for line in lines]
    ) as exchange:
        await exchange.body()
    assert (exchange.status, exchange.headers[b"content-type"]) == (200, b"application/json")


async def test_a_session_id_or_last_event_id_of_an_older_client_is_ignored(mcp: Client) -> None:
    response = await mcp.post("tools/list", headers={"mcp-session-id": "s", "last-event-id": "7"})
    assert response.status_code == 200
    assert "mcp-session-id" not in response.headers


@pytest.fixture
async def narrow() -> AsyncIterator[Client]:
    """A client of a gateway that takes bodies of at most 1024 bytes."""
    async with client(gateway(add, http={"max_body_bytes": 1024})) as made:
        yield made


def padded(size: int) -> bytes:
    """A valid call that is so many bytes long."""
    return json.dumps(CALL).encode().ljust(size)


async def in_chunks(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
async def test_a_chunked_body_without_content_length_is_read_to_its_end(
    narrow: Client, size: int
) -> None:
    response = await narrow.http.post(
        "/mcp", content=in_chunks(padded(1024), size), headers=HEADERS
    )
    assert "content-length" not in response.request.headers
    assert wire.valid_result("tools/call", response.json())["structuredContent"] == 3


@pytest.mark.parametrize("size", [1, 100, 5000])
async def test_a_chunked_body_that_is_too_large_is_refused(narrow: Client, size: int) -> None:
    response = await narrow.http.post(
        "/mcp", content=in_chunks(padded(1025), size), headers=HEADERS
    )
    assert response.status_code == 413
    assert "http.max_body_bytes" in wire.valid_error(response)["message"]


async def test_a_content_length_that_is_too_large_is_refused_before_the_body_is_read(
    narrow: Client,
) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield pytest.fail("the body was read")

    for length in ("1025", "9" * 400):
        response = await narrow.http.post(
            "/mcp", content=never(), headers={**HEADERS, "content-length": length}
        )
        assert response.status_code == 413


async def test_a_body_of_the_largest_size_is_taken(narrow: Client) -> None:
    assert (
        await narrow.http.post("/mcp", content=padded(1024), headers=HEADERS)
    ).status_code == 200
    assert (
        await narrow.http.post("/mcp", content=padded(1025), headers=HEADERS)
    ).status_code == 413


@pytest.mark.parametrize("length", ["", "-1", "many", "1e9", "\xb2"])
async def test_a_content_length_that_is_no_number_is_not_believed(
    narrow: Client, length: str
) -> None:
    sent = [
        *((name.encode(), value.encode()) for name, value in HEADERS.items()),
        (b"content-length", length.encode("latin-1")),
    ]
    response = await narrow.http.post("/mcp", content=in_chunks(padded(600), 200), headers=sent)
    assert wire.valid_result("tools/call", response.json())["structuredContent"] == 3


@pytest.mark.parametrize(
    "method", ["notifications/cancelled", "notifications/roots/list_changed", "notifications/x"]
)
async def test_a_notification_is_accepted_without_a_body(mcp: Client, method: str) -> None:
    response = await mcp.http.post(
        "/mcp", json={"jsonrpc": "2.0", "method": method}, headers=HEADERS
    )
    assert (response.status_code, response.content) == (202, b"")
    assert "content-type" not in response.headers


async def test_a_notification_does_not_need_the_headers_of_a_request(mcp: Client) -> None:
    asked = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert (await mcp.http.post("/mcp", json=asked)).status_code == 202


@pytest.mark.parametrize(
    ("body", "code", "request_id"),
    [
        (b"", -32700, None),
        (b'{"jsonrpc": "2.0", "id": 1', -32700, None),
        (b'{"id": 1, "id": 2}', -32700, None),
        (b'{"id": NaN}', -32700, None),
        (b"\xff\xfe{\x00}\x00", -32700, None),
        (b"[" * 90_000, -32700, None),
        (b'{"jsonrpc": "2.0", "id": "%b", "method": "tools/list"}' % (b"x" * 257), -32600, None),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}]', -32600, None),
        (b'{"jsonrpc": "1.0", "id": "a", "method": "tools/list"}', -32600, "a"),
        (b'{"jsonrpc": "2.0", "id": null, "method": "tools/list"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "tools/list"}', -32600, None),
        (b'{"jsonrpc": "2.0", "method": "tools/list"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": 0, "result": {}}', -32600, 0),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": []}', -32600, 7),
        (b'{"jsonrpc": "2.0", "id": "", "method": "tools/list"}', -32602, ""),
    ],
)
async def test_a_body_that_is_no_request_is_one_json_rpc_error(
    mcp: Client, body: bytes, code: int, request_id: Any
) -> None:
    response = await mcp.http.post(
        "/mcp", content=body, headers={**HEADERS, "mcp-method": "tools/list"}
    )
    assert (response.status_code, wire.valid_error(response)["code"]) == (400, code)
    assert response.json().get("id") == request_id


@pytest.mark.parametrize(
    "request_id", [0, -1, 2**63 - 1, -(2**63), "", "1", "ü\u2028\x00", "x" * 256]
)
async def test_the_id_comes_back_as_it_was(mcp: Client, request_id: Any) -> None:
    for method, status in (("tools/list", 200), ("no/such", 404)):
        response = await mcp.post(method, request_id=request_id)
        assert (response.status_code, response.json()["id"]) == (status, request_id)
        assert type(response.json()["id"]) is type(request_id)


async def test_an_exception_of_our_own_making_is_an_internal_error_that_tells_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr("roundgate.methods.parts.Replies.tool", fails)
    async with client(gateway(echo_any)) as mcp:
        params = {"name": "echo_any", "arguments": {"value": 1}}
        status, error = await mcp.error("tools/call", params)
    assert (status, error["code"]) == (200, -32603)
    (failure,) = [record for record in caplog.records if record.exc_info]
    assert failure.__dict__["fields"]["reference"] in error["message"]
    assert "a fault of ours" not in error["message"]


def with_nodes(count: int) -> str:
    """Arguments with so many values and keys, and strings full of what looks like more."""
    return json.dumps(
        {"text": ",:[{" * 50_000, "more": [0] * (count - 30), "quoted": '\\"\\' * 1000}
    )


async def test_a_body_may_have_many_values_but_not_any_number() -> None:
    async with client(gateway(echo_any, http={"max_json_nodes": 2_000})) as mcp:
        few, many = (json.loads(with_nodes(count)) for count in (1_900, 2_200))
        assert (
            await mcp.post("tools/call", {"name": "echo_any", "arguments": {"value": few}})
        ).status_code == 200
        response = await mcp.post("tools/call", {"name": "echo_any", "arguments": {"value": many}})
    assert response.status_code == 413
    assert "http.max_json_nodes" in wire.valid_error(response)["message"]


async def test_large_bodies_that_are_being_served_are_bounded_together() -> None:
    app = gateway(wait_for_gate, http={"max_pending_bytes": 1_000_000})
    asked = wire.call("wait_for_gate", {"text": "x" * 400_000})
    async with Exchange(app, asked), Exchange(app, asked), asyncio.timeout(60):
        await at_the_gate.get()
        await at_the_gate.get()
        async with Exchange(app, asked) as third:
            assert b"http.max_pending_bytes" in await third.body()
        assert (third.status, third.headers[b"retry-after"]) == (503, b"5")
        async with client(app) as mcp:
            assert (await mcp.post("tools/list")).status_code == 200, "a small one is served"
    async with Exchange(app, asked), asyncio.timeout(60):
        await at_the_gate.get()  # what was taken is given back


async def test_a_stream_is_not_kept_for_a_large_request(mcp: Client) -> None:
    params = {"notifications": {"toolsListChanged": True}, "more": "x" * 70_000}
    response = await mcp.post("subscriptions/listen", params)
    assert response.status_code == 413
    assert "65536" in wire.valid_error(response)["message"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "note://" + "x" * 8_200}),
        (
            "subscriptions/listen",
            {"notifications": {"resourceSubscriptions": ["note://" + "x" * 8_200]}},
        ),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": "x" * 8_200},
                "argument": {"name": "a", "value": "b"},
            },
        ),
    ],
)
async def test_a_uri_over_8_kb_is_refused_before_it_is_matched(
    mcp: Client, method: str, params: dict[str, Any]
) -> None:
    headers: dict[str, str | None] = {"mcp-name": params["uri"]} if "uri" in params else {}
    response = await mcp.post(method, params, headers=headers)
    assert response.status_code == 400
    error = wire.valid_error(response)
    assert error["code"] == -32602
    assert "8192" in error["message"]


async def test_a_long_progress_token_is_none(everything: FastAPI) -> None:
    asked = wire.call("report", progressToken="x" * 257)
    async with Exchange(everything, asked) as one:
        await one.body()
    assert one.headers[b"content-type"] == b"application/json"


async def test_who_does_not_read_its_events_loses_its_call_under_any_server() -> None:
    ended = asyncio.Event()

    @tool
    async def talk(ctx: Context) -> str:
        """Talks without end."""
        try:
            while True:
                await ctx.log("info", "x")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    app = gateway(talk, http={"send_timeout_s": 0.05})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roundgate.main.GRACE_S", 0.05)
        app = gateway(talk, http={"send_timeout_s": 0.05})
    asked = wire.call("talk", logLevel="info")
    async with Exchange(app, asked) as one:
        await one.event()
        one.reading.clear()
        await asyncio.wait_for(ended.wait(), 60)
        await asyncio.wait_for(one.running, 60)


@tool
async def echo_any(value: Any) -> str:
    """Takes anything."""
    return "taken"


at_the_gate: asyncio.Queue[None] = asyncio.Queue()
"""An item for each call of `wait_for_gate` that has begun."""


@tool
async def wait_for_gate(text: str) -> str:
    """Waits until it is cancelled."""
    at_the_gate.put_nowait(None)
    await asyncio.Event().wait()
    return text
