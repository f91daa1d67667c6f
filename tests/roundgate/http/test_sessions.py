"""Clients of the revisions with sessions: what they open, ask and are told, each as its
own specification has it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from mcp_types import _v2025_11_25 as official

from roundgate import ResourceLink, TextContent, ToolResult, tool
from roundgate.protocol.content import ContentBlock
from roundgate.protocol.v2025 import VERSIONS
from tests.support import wire
from tests.support.asgi import Client, gateway
from tests.support.functions import EVERYTHING
from tests.support.sessions import BOTH, Session, calling, opened, opening, request, telling

EVERY = pytest.mark.parametrize("version", VERSIONS)

RESULTS: dict[str, Any] = {
    "tools/list": official.ListToolsResult,
    "tools/call": official.CallToolResult,
    "resources/list": official.ListResourcesResult,
    "resources/templates/list": official.ListResourceTemplatesResult,
    "resources/read": official.ReadResourceResult,
    "prompts/list": official.ListPromptsResult,
    "prompts/get": official.GetPromptResult,
    "completion/complete": official.CompleteResult,
}
ASKED: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "add", "arguments": {"a": 1, "b": 2}},
    "resources/read": {"uri": "note://one"},
    "prompts/get": {"name": "review", "arguments": {"language": "python"}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "review"},
        "argument": {"name": "language", "value": "p"},
    },
}
OF_LATER = {"resultType", "ttlMs", "cacheScope", "_meta"}


@tool(
    title="Rich",
    output_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
    meta={"x": 1},
)
async def rich() -> ToolResult:
    """Has all that a tool may have."""
    blocks: list[ContentBlock | str] = [
        TextContent("text", meta={"y": 2}),
        ResourceLink("note://one", "one", description="A note"),
    ]
    return ToolResult(blocks, structured_content={"n": 1})


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return gateway(*EVERYTHING, rich)


@EVERY
async def test_a_client_gets_the_revision_that_it_asks_for(app: FastAPI, version: str) -> None:
    assert (await opened(app, version)).version == version


@pytest.mark.parametrize("version", ["2024-11-05", "2099-01-01", "nonsense"])
async def test_a_client_that_asks_for_another_gets_the_newest_with_sessions(
    app: FastAPI, version: str
) -> None:
    assert (await opened(app, version)).version == VERSIONS[0]


@EVERY
async def test_initialize_says_who_the_server_is_and_what_it_can_do(
    mcp: Client, version: str
) -> None:
    headers = {"content-type": "application/json", "accept": BOTH}
    response = await mcp.http.post("/mcp", json=opening(version), headers=headers)
    result = response.json()["result"]
    official.InitializeResult.model_validate(result)
    assert result.keys() == {"protocolVersion", "capabilities", "serverInfo"}
    assert result["serverInfo"] == {"name": "roundgate", "version": "0.0.0"}
    assert result["capabilities"].keys() == {
        "tools",
        "prompts",
        "resources",
        "completions",
        "logging",
    }
    assert all("!" <= char <= "~" for char in response.headers["mcp-session-id"])


@EVERY
@pytest.mark.parametrize("method", RESULTS)
async def test_a_result_has_the_shape_of_the_revision(
    app: FastAPI, version: str, method: str
) -> None:
    result = await (await opened(app, version)).result(app, method, ASKED.get(method))
    RESULTS[method].model_validate(result)
    assert not result.keys() & OF_LATER


async def test_a_revision_is_told_nothing_that_it_does_not_know(app: FastAPI) -> None:
    listed, results = {}, {}
    for version in VERSIONS:
        session = await opened(app, version)
        tools = (await session.result(app, "tools/list"))["tools"]
        listed[version] = next(one for one in tools if one["name"] == "rich")
        results[version] = await session.result(app, "tools/call", {"name": "rich"})
    assert listed["2025-03-26"].keys() == {"name", "description", "inputSchema"}
    assert listed["2025-06-18"].keys() == {
        "name",
        "title",
        "description",
        "inputSchema",
        "outputSchema",
        "_meta",
    }
    text, link = results["2025-03-26"]["content"]
    assert text == {"type": "text", "text": "text"}
    assert link == {"type": "text", "text": "one: A note (note://one)"}
    assert "structuredContent" not in results["2025-03-26"]
    assert results["2025-06-18"] == results["2025-11-25"]
    assert results["2025-06-18"]["structuredContent"] == {"n": 1}
    assert [block["type"] for block in results["2025-06-18"]["content"]] == [
        "text",
        "resource_link",
    ]


async def test_a_structured_result_that_is_no_object_is_told_in_its_text_alone(
    app: FastAPI,
) -> None:
    session = await opened(app)
    tools = {one["name"]: one for one in (await session.result(app, "tools/list"))["tools"]}
    assert "outputSchema" not in tools["add"]
    assert await session.result(app, "tools/call", ASKED["tools/call"]) == {
        "content": [{"type": "text", "text": "3"}]
    }


@EVERY
async def test_what_is_about_the_session_itself_has_an_empty_result(
    app: FastAPI, version: str
) -> None:
    session = await opened(app, version)
    for method, params in {
        "ping": {},
        "logging/setLevel": {"level": "error"},
        "resources/subscribe": {"uri": "note://one"},
        "resources/unsubscribe": {"uri": "note://one"},
    }.items():
        assert await session.result(app, method, params) == {}


@pytest.mark.parametrize(
    ("method", "params", "code", "says"),
    [
        ("tools/call", {"name": "nothing"}, -32602, "Unknown tool"),
        ("tools/call", {}, -32602, "params.name"),
        ("resources/read", {"uri": "note://nowhere/at/all/x"}, -32002, "Resource not found"),
        ("logging/setLevel", {"level": "loud"}, -32602, "params.level"),
        ("resources/subscribe", {}, -32602, "uri"),
        ("server/discover", {}, -32601, "Method not found"),
        ("subscriptions/listen", {"notifications": {}}, -32601, "Method not found"),
        ("tasks/get", {"taskId": "x"}, -32601, "Method not found"),
        ("nothing/at/all", {}, -32601, "Method not found"),
    ],
)
async def test_an_error_comes_under_its_id_and_with_200(
    app: FastAPI, method: str, params: dict[str, Any], code: int, says: str
) -> None:
    error = await (await opened(app)).error(app, method, params)
    assert error["code"] == code
    assert says in error["message"]


async def test_a_tool_that_needs_what_the_client_cannot_do_says_so_to_the_model(
    app: FastAPI,
) -> None:
    result = await (await opened(app, capabilities={})).result(
        app, "tools/call", {"name": "sample"}
    )
    assert result["isError"]
    assert "sampling" in result["content"][0]["text"]


async def test_progress_and_log_messages_come_on_the_stream_of_the_call(app: FastAPI) -> None:
    session = await opened(app)
    assert await session.result(app, "logging/setLevel", {"level": "error"}) == {}
    async with session.stream(app, telling("report")) as stream:
        first = await stream.next()
        *told, response = await stream.over()
    assert first.message is None
    assert first.id is not None
    assert [
        one["params"]["progress"] for one in told if one["method"] == "notifications/progress"
    ] == [1, 2, 3]
    assert [one["params"]["level"] for one in told if one["method"] == "notifications/message"] == [
        "error"
    ]
    assert response["result"]["content"] == [{"type": "text", "text": "reported"}]


async def test_a_client_of_an_earlier_revision_gets_no_event_without_a_message(
    app: FastAPI,
) -> None:
    session = await opened(app, "2025-06-18")
    async with session.stream(app, telling("report")) as stream:
        first = await stream.next()
        await stream.over()
    assert first.message is not None
    assert first.message["params"]["progressToken"] == "p"


async def test_who_takes_no_stream_is_told_nothing_but_the_result(app: FastAPI) -> None:
    session = await opened(app)
    response = await session.send(app, calling("report"), accept="application/json")
    assert response.json()["result"]["content"] == [{"type": "text", "text": "reported"}]


async def test_who_takes_nothing_but_streams_gets_one(app: FastAPI) -> None:
    session = await opened(app)
    response = await session.send(app, request("tools/list"), accept="text/event-stream")
    assert response.headers["content-type"] == "text/event-stream"
    assert "tools" in wire.events(response.text)[0]["result"]


@pytest.mark.parametrize(
    "method", ["initialized", "progress", "roots/list_changed", "cancelled", "nothing/known"]
)
async def test_a_notification_is_accepted(app: FastAPI, method: str) -> None:
    session = await opened(app)
    told = {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": {"requestId": "none"}}
    response = await session.send(app, told)
    assert (response.status_code, response.content) == (202, b"")


async def test_a_session_that_was_ended_is_not_found(app: FastAPI) -> None:
    session = await opened(app)
    assert (await session.end(app)).status_code == 200
    for message in (
        request("ping"),
        request("tools/list"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ):
        assert (await session.send(app, message)).status_code == 404
    assert (await session.end(app)).status_code == 404


@pytest.mark.parametrize("session_id", ["", "x", "v1.aaaaaaaa.bbbb", "v1." * 3_000])
async def test_a_session_that_nobody_opened_is_not_found_under_the_id_of_the_request(
    app: FastAPI, session_id: str
) -> None:
    response = await Session(session_id, "2025-06-18").send(
        app, request("ping", request_id="seven")
    )
    assert (response.status_code, response.json()["id"]) == (404, "seven")
    assert "initialize" in response.json()["error"]["message"]


async def test_a_session_of_other_keys_is_not_found(app: FastAPI) -> None:
    session = await opened(gateway(*EVERYTHING, state={"audience": "another"}))
    assert (await session.send(app, request("ping"))).status_code == 404


async def test_a_request_without_its_session_is_told_what_is_missing(mcp: Client) -> None:
    headers = {
        "content-type": "application/json",
        "accept": BOTH,
        "mcp-protocol-version": "2025-06-18",
    }
    response = await mcp.http.post("/mcp", json=request("tools/list"), headers=headers)
    assert (response.status_code, response.json()["id"]) == (400, 1)
    assert "Mcp-Session-Id" in response.json()["error"]["message"]


@pytest.mark.parametrize("version", ["2024-11-05", "nonsense", "2025-11-25, 2025-11-25"])
async def test_a_version_that_is_not_served_is_told_those_that_are(
    app: FastAPI, version: str
) -> None:
    session = await opened(app)
    response = await session.send(app, request("ping"), **{"mcp-protocol-version": version})
    assert response.status_code == 400
    for served in (*VERSIONS, "2026-07-28"):
        assert served in response.json()["error"]["message"]


async def test_a_request_of_a_session_needs_no_version(app: FastAPI, mcp: Client) -> None:
    session = await opened(app, "2025-03-26")
    headers = {
        name: value for name, value in session.headers().items() if name != "mcp-protocol-version"
    }
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as http:
        response = await http.post("/mcp", json=request("ping"), headers=headers)
    assert response.json()["result"] == {}


async def test_a_session_means_nothing_to_a_request_of_2026_07_28(
    app: FastAPI, mcp: Client
) -> None:
    response = await mcp.post("tools/list", headers={"mcp-session-id": "nobody's"})
    assert response.json()["result"]["resultType"] == "complete"


async def test_the_metadata_of_2026_07_28_counts_for_more_than_a_session(app: FastAPI) -> None:
    session = await opened(app)
    response = await session.send(app, wire.message("tools/list"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH"])
async def test_what_belongs_to_no_session_takes_post_alone(mcp: Client, method: str) -> None:
    response = await mcp.http.request(method, "/mcp", headers={"accept": BOTH})
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_a_get_that_takes_no_stream_is_not_acceptable(app: FastAPI) -> None:
    session = await opened(app)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as http:
        response = await http.get("/mcp", headers=session.headers(accept="application/json"))
    assert response.status_code == 406


async def test_changes_of_lists_and_subscribed_resources_arrive_on_the_sessions_stream(
    app: FastAPI,
) -> None:
    session = await opened(app)
    await session.result(app, "resources/subscribe", {"uri": "note://one"})
    await session.result(app, "resources/subscribe", {"uri": "note://two"})
    await session.result(app, "resources/unsubscribe", {"uri": "note://two"})
    async with session.resumed(app) as stream:
        assert await stream.event() is None  # it is open
        await session.result(
            app, "tools/call", {"name": "change", "arguments": {"uri": "note://two"}}
        )
        await session.result(app, "tools/call", {"name": "change"})
        told = [await stream.message()]
        while told[-1]["method"] != "notifications/resources/updated":
            told.append(await stream.message())
    assert {json.dumps([one["method"], one["params"]]) for one in told} == {
        '["notifications/tools/list_changed", {}]',
        '["notifications/prompts/list_changed", {}]',
        '["notifications/resources/list_changed", {}]',
        '["notifications/resources/updated", {"uri": "note://one"}]',
    }


async def test_a_session_cannot_subscribe_to_more_than_its_share(app: FastAPI) -> None:
    session = await opened(app)
    assert await session.result(app, "resources/subscribe", {"uri": "note://" + "x" * 7_000}) == {}
    error = await session.error(app, "resources/subscribe", {"uri": "note://" + "y" * 7_000})
    assert "unsubscribe" in error["message"]
